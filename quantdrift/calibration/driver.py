"""Quantize a model's layers in calling order, each seeing the quantized ones before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.calibration.lockstep import Lockstep, Runner, lockstep
from quantdrift.calibration.moments import moments_of, output_error
from quantdrift.calibration.taps import ProductTap, hooked_inputs, plain_products
from quantdrift.models.layers import LinearLayer
from quantdrift.quantizers import LayerQuantizer, Moments, QuantizedWeight

__all__ = ["LayerCandidate", "put_in_place", "quantize_in_order"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCandidate:
    """What became of one layer.

    Attributes:
        name: of the layer.
        quantized: codes and grid, on the CPU; None where weights are left alone.
        n_tokens: calibration tokens that reached it; None where none were asked for.
        absmax: largest absolute input over these.
        called: whether the layer's module was called, so that its input can be replaced.
        output_error: ||X (W - Q)^T||^2 / ||X W^T||^2 over the calibration tokens; None if not
            known.
        seconds: time the method took, without collecting the inputs.
        fallback: why it was rounded to nearest instead; None if it was not.
    """

    name: str
    quantized: QuantizedWeight | None
    n_tokens: int | None = None
    absmax: float = 0.0
    called: bool = False
    output_error: float | None = None
    seconds: float = 0.0
    fallback: str | None = None


def quantize_in_order(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    batches: Sequence[Callable[[], object]],
    *,
    quantizers: Sequence[LayerQuantizer | None],
    fallbacks: Sequence[LayerQuantizer],
    known: Mapping[int, LayerCandidate],
    done: Callable[[int, LayerCandidate], None],
) -> dict[int, float]:
    """Run the calibration batches once; quantize each layer, in place, when they arrive at it.

    Every layer's input comes from a model whose earlier layers are quantized (paper, appendix
    "Quantizers"). A layer that is called several times in one pass is quantized on the input of its
    first call.

    Args:
        modules: the model; its weights are changed in place, and stay so.
        layers: what to quantize.
        batches: each runs the model on one batch of calibration inputs.
        quantizers: of every layer the method; None leaves its weight alone and only takes the
            input's range.
        fallbacks: of every layer what takes its place if no calibration token comes by, and the
            method needs any.
        known: layers that are made already, by number; their codes are put in place.
        done: called with a layer's number and what became of it, in calling order; layers that no
            batch reaches come last.

    Returns:
        Number of every layer that was called again after it was made, to the largest absolute input
        of these calls.

    Raises:
        Exception: whatever running the model or the method raises.
    """
    maker = _Maker(layers, quantizers=quantizers, fallbacks=fallbacks, known=known, done=done)
    works = [_watched(batch, maker) for batch in batches]
    with (
        plain_products(modules),
        hooked_inputs(modules, layers, maker.call) as maker.local,
        lockstep(works) as maker.steps,
    ):
        maker.steps.advance(maker.steps.runners)
        while (found := maker.steps.next_place()) is not None:
            rank, here = found
            maker.make(maker.at(rank), here)
            maker.steps.advance(here)
    for number in range(len(layers)):
        if number not in maker.made:
            maker.make(number, [])
    return maker.later


def put_in_place(layer: LinearLayer, quantized: QuantizedWeight) -> None:
    """Give a layer the weights that the codes stand for."""
    weight = layer.weight.detach()
    weight.copy_(quantized.to(weight.device).dequantize(weight.dtype))


def _watched(batch: Callable[[], object], maker: _Maker) -> Callable[[], object]:
    """The batch, with the products in it seen; a tap is of one thread."""

    def run() -> None:
        with ProductTap(maker.layers, maker.arrive, maker.local):
            batch()

    return run


def _identity(x: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
    """The same for the same input, which a change in place makes another."""
    version = None if x.is_inference() else x._version
    where = None if mask is None else mask.data_ptr()
    return (x.data_ptr(), x.shape, x.stride(), version, where, float(x.float().sum()))


def _calling_order(layers: Sequence[LinearLayer]) -> list[int]:
    """Numbers of the layers in the order in which batches that part ways meet them.

    That is the order of definition, but for experts: one has all its layers called before the next.
    """
    first: dict[str, int] = {}
    keys = []
    for number, layer in enumerate(layers):
        if layer.expert is None:
            keys.append((number, 0, number))
        else:
            stack = layer.name.rsplit(".", 2)[0]
            keys.append((first.setdefault(stack, number), layer.expert, number))
    return sorted(range(len(layers)), key=keys.__getitem__)


class _Maker:
    """Makes one layer after another out of what the runners bring."""

    steps: Lockstep
    local: Any

    def __init__(
        self,
        layers: Sequence[LinearLayer],
        *,
        quantizers: Sequence[LayerQuantizer | None],
        fallbacks: Sequence[LayerQuantizer],
        known: Mapping[int, LayerCandidate],
        done: Callable[[int, LayerCandidate], None],
    ) -> None:
        self.layers, self.made = layers, set[int]()
        self._quantizers, self._fallbacks = quantizers, fallbacks
        self._known, self._done = known, done
        self._second = any(method is not None and method.needs_moments for method in quantizers)
        self._by_rank = _calling_order(layers)
        self._rank = {number: rank for rank, number in enumerate(self._by_rank)}
        self._called: set[int] = set()
        self.later: dict[int, float] = {}
        self._last: tuple[list[tuple[Any, ...]], Moments] | None = None

    def call(self, number: int, x: Tensor, mask: Tensor | None) -> None:
        """A layer's module is about to run."""
        self._called.add(number)
        if number in self.made:
            rows = x.detach() if mask is None else x.detach()[mask]
            if rows.numel():
                largest = float(rows.abs().max())
                self.later[number] = max(largest, self.later.get(number, 0.0))
        self.arrive(number, x, mask)

    def arrive(self, number: int, x: Tensor, mask: Tensor | None) -> None:
        """A forward pass is about to use a layer; it stops here until the layer is made."""
        runner = self.steps.current()
        if runner is not None and number not in self.made:
            runner.wait_at(self._rank[number], (x.detach(), mask))

    def at(self, rank: int) -> int:
        """The number of the layer of that rank."""
        return self._by_rank[rank]

    def make(self, number: int, here: Sequence[Runner]) -> None:
        """Make a layer out of the inputs of those that wait at it, and put it in place."""
        layer = self.layers[number]
        made = self._known.get(number)
        if made is not None:
            if made.quantized is not None:
                put_in_place(layer, made.quantized)
        else:
            made = self._made(number, self._moments(layer, here))
            made = replace(made, called=number in self._called)
        self._done(number, made)
        self.made.add(number)

    def _moments(self, layer: LinearLayer, here: Sequence[Runner]) -> Moments:
        """The moments over the runners' inputs; layers with the same input share them."""
        inputs: list[Any] = [runner.value for runner in here]
        which = [_identity(x, mask) for x, mask in inputs]
        if which and self._last is not None and self._last[0] == which:
            return self._last[1]
        moments = moments_of(inputs, layer.weight.shape[1], second=self._second)
        # the inputs stay alive in the runners until these go on, so an address is not used again
        self._last = (which, moments)
        return moments

    def _made(self, number: int, moments: Moments) -> LayerCandidate:
        layer, method, fallback = self.layers[number], self._quantizers[number], None
        weight = layer.weight.detach()
        if method is None:
            return LayerCandidate(
                name=layer.name, quantized=None, n_tokens=moments.n_tokens, absmax=moments.absmax
            )
        if method.needs_moments and moments.n_tokens == 0:
            method, fallback = self._fallbacks[number], "no calibration token reached it"
        start = time.perf_counter()
        quantized = method.quantize(weight, moments)
        seconds = time.perf_counter() - start
        error = None
        if self._second and moments.n_tokens:
            error = output_error(weight, quantized.dequantize(weight.dtype), moments.second)
        put_in_place(layer, quantized)
        return LayerCandidate(
            name=layer.name,
            quantized=quantized.to(torch.device("cpu")),
            n_tokens=moments.n_tokens,
            absmax=moments.absmax,
            output_error=error,
            seconds=seconds,
            fallback=fallback,
        )
