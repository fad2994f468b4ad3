"""Quantize a model by a library that walks it: layers, order and inputs are the library's."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from quantdrift.engine.calibration.in_order import LayerCandidate, output_error, put_in_place, quantize_in_order
from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.quantizers.base import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.engine.weights import left_as_it_was
from quantdrift.errors import UnsupportedError

# --- What a transformers model is given while it runs, taken apart into texts without padding -----

Example = dict[str, Tensor]
"""Texts of one length: "input_ids" and "attention_mask", int64 [n, n_tokens], on the CPU."""

INSTEAD = "use +backend=gptqmodel, which calibrates on whatever the model is run with"
"""What a message recommends for a model that optimum cannot take."""


def examples_of(model: nn.Module, batches: Sequence[Callable[[], object]]) -> list[Example]:
    """Run the batches, and take apart what the model is given.

    Args:
        model: a transformers model.
        batches: each runs the model on one batch of calibration inputs.

    Returns:
        Texts of the same call and length are one example; each has at least one token.

    Raises:
        UnsupportedError: the model was given something that optimum does not pass on.
    """
    examples: list[Example] = []
    for batch in batches:
        with calls_of(model) as calls:
            batch()
        for given in calls:
            examples += taken_apart(model, given)
    if not examples:
        raise UnsupportedError(
            f"optimum calls {type(model).__name__} on token ids, and no calibration input was a call of it; {INSTEAD}"
        )
    return examples


@contextmanager
def calls_of(model: nn.Module) -> Iterator[list[Mapping[str, Any]]]:
    """What the model is given in each of its calls, by the names of its parameters.

    A hook would miss calls of `forward` itself, which is how sentence-transformers calls a model.
    """
    calls: list[Mapping[str, Any]] = []
    forward = model.forward
    signature = inspect.signature(forward)
    rest = [one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]

    @functools.wraps(forward)
    def noted(*args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(*args, **kwargs).arguments)
        for name in rest:
            given |= given.pop(name, {})
        calls.append(given)
        return forward(*args, **kwargs)

    before = vars(model).get("forward")
    model.forward = noted
    try:
        yield calls
    finally:
        if before is None:
            del model.forward
        else:
            model.forward = before


def taken_apart(model: nn.Module, given: Mapping[str, Any]) -> Iterator[Example]:
    """The texts of one call, those of the same length together.

    Args:
        model: for the message.
        given: as from `calls_of`.

    Raises:
        UnsupportedError: optimum would drop some of what was given.
    """
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    dropped = [name for name, value in given.items() if _matters(name, value)]
    if isinstance(mask, Tensor) and isinstance(ids, Tensor) and mask.shape != ids.shape:
        dropped.append(f"attention_mask {list(mask.shape)}")
    if dropped or not isinstance(ids, Tensor):
        raise UnsupportedError(
            "optimum gives a model token ids and their attention mask, and drops the rest; "
            f"{type(model).__name__} was given {', '.join(dropped) or 'no input_ids'}; {INSTEAD}"
        )
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    lengths = real.sum(dim=1)
    for length in lengths.unique().tolist():
        rows = lengths == length
        if length:
            texts = ids[rows][real[rows]].view(-1, length).cpu()
            yield {"input_ids": texts, "attention_mask": torch.ones_like(texts)}


def _matters(name: str, value: object) -> bool:
    """Whether an input beside ids and mask may change what the blocks see."""
    if name in {"input_ids", "attention_mask"} or value is None or isinstance(value, bool | int):
        return False
    return not (name == "token_type_ids" and isinstance(value, Tensor) and not bool(value.any()))


# --- Which models optimum can walk: their blocks, run one after another, are the model ------------

_ONLY_IDS = "optimum gives a model token ids and their attention mask only, without padding"
_ALONE = "optimum runs each block by itself, on the output of the one before and the keyword inputs of the first"
_IN_A_BATCH, _ON_ONE_TEXT = (1e-3, 0.1), (1e-3, 0.01)
"""Relative difference of hidden states up to which they are the same, in full and low precision;
the same text without padding goes through other kernels than in a batch."""


def transformers_model(modules: Sequence[nn.Module]) -> nn.Module:
    """The one transformers model among the modules.

    Raises:
        UnsupportedError: there is none, or there are several, or it has an encoder and a decoder.
    """
    from transformers import PreTrainedModel  # noqa: PLC0415 -- comes with the library

    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for root in modules:
        for module in root.modules():
            if isinstance(module, PreTrainedModel) and module not in inner:
                found.append(module)
                inner.update(module.modules())
    if len(found) != 1:
        kinds = ", ".join(type(one).__name__ for one in found) or "none"
        raise UnsupportedError(f"optimum quantizes one transformers model, got {kinds}; {INSTEAD}")
    model = found[0]
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UnsupportedError(
            f"optimum quantizes one list of blocks, and {type(model).__name__} has an encoder and a decoder; {INSTEAD}"
        )
    return model


def block_list(model: nn.Module) -> str:
    """Path of the model's blocks: of the outermost lists of modules, that with most parameters.

    Raises:
        UnsupportedError: the model has no list of modules.
    """
    lists: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        nested = any(name.startswith(f"{outer}.") for outer in lists)
        if isinstance(module, nn.ModuleList) and len(module) and not nested:
            lists[name] = module
    if not lists:
        raise UnsupportedError(f"optimum quantizes a list of blocks, and {type(model).__name__} has none; {INSTEAD}")
    return max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()))


def check_blocks(model: nn.Module, name: str, batch: Callable[[], object]) -> bool:
    """Check on one text that what optimum runs is what the model does.

    Twice: a call with nothing but token ids and mask against the batch's own call, and the blocks
    one after another against that call.

    Args:
        model: a transformers model, set as optimum sets it.
        name: path of its blocks.
        batch: runs the model on calibration inputs; the first text is compared.

    Returns:
        Whether there was a text to compare.

    Raises:
        UnsupportedError: a block cannot be run by itself, or gives other outputs.
    """
    blocks = list(cast(nn.ModuleList, model.get_submodule(name)))
    with calls_of(model) as calls, _first_outputs(blocks) as in_batch:
        batch()
    text = {key: _first_row(value) for key, value in calls[0].items()} if calls else {}
    for example in taken_apart(model, text) if calls else ():  # at most one
        with _first_outputs(blocks) as in_model:
            hidden, shared = _first_inputs(model, blocks[0], example)
        mask = text.get("attention_mask")
        for number in range(len(blocks)):
            wanted = in_batch.get(number)
            if wanted is not None and mask is not None and mask.shape == wanted.shape[:-1]:
                wanted = wanted[:, mask[0].bool()]
            _expect(wanted, in_model.get(number), _ONLY_IDS, number, _IN_A_BATCH)
        for number, block in enumerate(blocks):
            try:
                output = block(hidden, **shared)
            except Exception as error:
                raise UnsupportedError(
                    f"{_ALONE}; block {number} of {name} cannot be run so ({type(error).__name__}: {error}); {INSTEAD}"
                ) from error
            hidden = output[0] if isinstance(output, tuple) else output
            _expect(in_model.get(number), hidden, _ALONE, number, _ON_ONE_TEXT)
        return True
    return False


def _first_inputs(model: nn.Module, block: nn.Module, example: Example) -> tuple[Tensor, dict[str, Any]]:
    """What optimum takes of the first call of a block: hidden states and keyword inputs."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = block.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    device = next(model.parameters()).device
    try:
        model(**{key: value.to(device) for key, value in example.items()})
    finally:
        hook.remove()
    args, kwargs = seen[0]
    shared = {key: value for key, value in kwargs.items() if key != "hidden_states"}
    return kwargs.get("hidden_states", *args[:1]), shared


@contextmanager
def _first_outputs(blocks: Sequence[nn.Module]) -> Iterator[dict[int, Tensor]]:
    """Number of a block to what it put out for the first text of its first call inside."""
    outputs: dict[int, Tensor] = {}

    def keep(number: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if number not in outputs and isinstance(hidden, Tensor):
                outputs[number] = hidden[:1].detach().clone()

        return hook

    with ExitStack() as stack:
        for number, block in enumerate(blocks):
            stack.callback(block.register_forward_hook(keep(number)).remove)
        yield outputs


def _first_row(value: Any) -> Any:
    return value[:1] if isinstance(value, Tensor) and value.dim() else value


def _expect(wanted: Tensor | None, found: Tensor | None, how: str, number: int, same: tuple[float, float]) -> None:
    """Compare hidden states [1, n_tokens, dim], token by token; None is like nothing."""
    difference, (most, most_in_low_precision) = math.inf, same
    if wanted is not None and found is not None and wanted.shape == found.shape:
        exact = wanted.float()
        apart = (found.float() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-12)
        difference = float(apart.max())
        if found.dtype not in {torch.float32, torch.float64}:
            most = most_in_low_precision
    if not difference < most:
        raise UnsupportedError(
            f"{how}; block {number} then gives outputs that differ by {difference:.1%} from those "
            f"in the model; {INSTEAD}"
        )


# --- Quantize a model by a library that walks it: layers, order and inputs are the library's ------


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
    return quantize_in_order(modules, layers, batches, quantizers=rounded, fallbacks=rounded, known=made, done=rest)


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
