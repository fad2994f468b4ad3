"""Quantize a model by a library that walks it: layers, order and inputs are the library's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from quantdrift.calibration.block_walk import block_list, check_blocks, transformers_model
from quantdrift.calibration.driver import LayerCandidate, put_in_place, quantize_in_order
from quantdrift.calibration.moments import output_error
from quantdrift.calibration.text_examples import examples_of
from quantdrift.models.layers import LinearLayer
from quantdrift.models.left_as_it_was import left_as_it_was
from quantdrift.quantizers import LayerQuantizer, Moments, QuantizedWeight

__all__ = ["WholeModelQuantizer", "quantize_whole_model"]


@runtime_checkable
class WholeModelQuantizer(Protocol):
    """A `LayerQuantizer` that also says which layers come when, and what they see."""

    @property
    def needs_moments(self) -> bool:
        """As of a `LayerQuantizer`."""
        ...

    @property
    def has_zero_points(self) -> bool:
        """As of a `LayerQuantizer`."""
        ...

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """As of a `LayerQuantizer`."""
        ...

    def describe(self) -> dict[str, str]:
        """As of a `LayerQuantizer`."""
        ...

    def walk_blocks(
        self,
        model: nn.Module,
        blocks: str,
        examples: Sequence[Mapping[str, Tensor]],
        arrive: Callable[[nn.Module, Moments], None],
    ) -> None:
        """Run a model on examples, and stop at each layer of its blocks.

        Args:
            model: a transformers model, which may be changed.
            blocks: path in the model of its list of blocks.
            examples: "input_ids" and "attention_mask", int64 [n, n_tokens], on the CPU.
            arrive: called with a module and the moments of its input, when its weights are to be
                quantized in place. No token may have reached it.
        """
        ...


def quantize_whole_model(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    batches: Sequence[Callable[[], object]],
    *,
    quantizer: WholeModelQuantizer,
    fallback: LayerQuantizer,
    done: Callable[[int, LayerCandidate], None],
) -> dict[int, float]:
    """Let the quantizer walk the model's blocks; round the layers that it leaves out.

    The batches run three times: to see what the model is given, as the quantizer runs it, and, for
    the layers that are left out, over the quantized blocks.

    Args:
        modules: the model; its weights are changed in place, and stay so. All else is as before
            afterwards.
        layers: what to quantize.
        batches: each runs the model on one batch of calibration inputs.
        quantizer: the method.
        fallback: for layers that it leaves out.
        done: called with a layer's number and what became of it, in the order of the walk.

    Returns:
        As `quantize_in_order`: of layers called more than once, the largest absolute input.

    Raises:
        UnsupportedError: the quantizer would not run the model as it is.
        Exception: whatever running the model or the method raises.
    """
    model = transformers_model(modules)
    blocks = block_list(model)
    numbers = {module: number for number, layer in enumerate(layers) for module in layer.modules}
    made: dict[int, LayerCandidate] = {}
    why: dict[int, str] = {}

    def arrive(module: nn.Module, moments: Moments) -> None:
        number = numbers.get(module)
        if number is None or number in made:
            return
        if not moments.n_tokens:
            why[number] = "no calibration token reached it"
            return
        made[number] = _made(layers[number], quantizer, moments)
        done(number, made[number])

    def rest(number: int, layer: LayerCandidate) -> None:
        if number not in made:
            outside = f"outside the blocks that {quantizer.describe()['backend']} quantizes"
            done(number, replace(layer, fallback=why.get(number, outside)))

    with torch.no_grad(), left_as_it_was(model):
        model.eval()
        if (config := getattr(model, "config", None)) is not None:
            config.use_cache = False  # as optimum sets it, where it finds the setting
        examples = examples_of(model, batches)
        any(check_blocks(model, blocks, batch) for batch in batches)
        quantizer.walk_blocks(model, blocks, examples, arrive)
    rounded = [fallback] * len(layers)
    return quantize_in_order(
        modules, layers, batches, quantizers=rounded, fallbacks=rounded, known=made, done=rest
    )


def _made(layer: LinearLayer, quantizer: LayerQuantizer, moments: Moments) -> LayerCandidate:
    start = time.perf_counter()
    weight = layer.weight
    quantized = quantizer.quantize(weight, moments)
    seconds = time.perf_counter() - start
    error = output_error(weight, quantized.dequantize(weight.dtype), moments.second)
    put_in_place(layer, quantized)
    return LayerCandidate(
        name=layer.name,
        quantized=quantized.to(torch.device("cpu")),
        n_tokens=moments.n_tokens,
        absmax=moments.absmax,
        called=True,
        output_error=error,
        seconds=seconds,
    )
