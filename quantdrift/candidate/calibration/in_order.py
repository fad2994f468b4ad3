"""Quantize a model's layers in calling order, each on inputs from the quantized layers before it."""

import contextvars
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.candidate.calibration.inputs import hooked_inputs, moments_of, output_error, plain_products, was_watched
from quantdrift.candidate.calibration.sample import Sample
from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.models.layers import LinearLayer
from quantdrift.models.weights import dismiss

NOT_REACHED = "no calibration token reached it"
NOT_SEEN = "its product with an input is not seen"

# --- forward passes that wait for each other at every layer ---------------------------------------


class _Abandoned(BaseException):
    """Ends an abandoned pass; no `except Exception` on the way catches it."""


class ForwardPass(threading.Thread):
    """The computation of one batch, which waits at every layer; one pass runs at a time.

    Attributes:
        place: number of the layer that it waits at; None if it does not wait.
        value: the input of that layer and its mask.
        error: the error that ended it.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)  # so that an interrupt of the main thread does not wait for it
        self.place: int | None = None
        self.value: tuple[Tensor, Tensor | None] | None = None
        self.error: BaseException | None = None
        self._work, self._context, self._n_threads = work, contextvars.copy_context(), torch.get_num_threads()
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else -1
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._abandoned = False

    def run(self) -> None:
        """Called by the thread."""
        self._go.acquire()
        try:
            if not self._abandoned:
                torch.set_num_threads(self._n_threads)  # a setting of each thread, like the others
                with torch.no_grad(), torch.cuda.device(self._gpu):
                    self._context.run(self._work)
        except _Abandoned:
            pass
        except BaseException as error:  # raised again in the main thread
            self.error = error
        finally:
            self.place = self.value = None
            self._stopped.release()

    def advance(self) -> None:
        """Run until the next place or the end; raise the error that ended it."""
        self.place = None
        self._go.release()
        self._stopped.acquire()
        if self.error is not None:
            raise self.error

    def wait_at(self, place: int, value: tuple[Tensor, Tensor | None]) -> None:
        """Hand over an input and wait for `advance`; called by the computation."""
        if not self._abandoned:  # else somebody caught the exception and tried again
            self.place, self.value = place, value
            self._stopped.release()
            self._go.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End the pass where it waits."""
        if self.ident is not None:
            self._abandoned = True
            self._go.release()
            self.join()


def in_lockstep(works: Sequence[Callable[[], object]], make: Callable[[int, list[ForwardPass]], None]) -> None:
    """Run computations that call `wait_at`; when all wait, those at the lowest place continue."""
    passes = [ForwardPass(work) for work in works]
    try:
        for forward in passes:
            forward.start()
        here = passes
        while here:
            for forward in here:
                forward.advance()
            waiting = [(forward.place, forward) for forward in passes if forward.place is not None]
            place = min((place for place, _ in waiting), default=0)
            here = [forward for where, forward in waiting if where == place]
            if here:
                make(place, here)
    finally:
        for forward in passes:
            forward.abandon()


# --- layers, one after another -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCandidate:
    """The result of quantizing one layer.

    Attributes:
        name: name of the layer.
        quantized: codes and grid, on the CPU; None if weights are left alone.
        n_tokens: number of calibration tokens that reached it; None without calibration.
        absmax: largest absolute input over these tokens.
        output_error: ||X (W - Q)^T||^2 / ||X W^T||^2 over these tokens; None if unknown.
        seconds: time of the method, without collecting the inputs.
        fallback: the reason why it was rounded to nearest instead, or None.
    """

    name: str
    quantized: QuantizedWeight | None
    n_tokens: int | None = None
    absmax: float = 0.0
    output_error: float | None = None
    seconds: float = 0.0
    fallback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeLayers:
    """A candidate's calibrated layers.

    Attributes:
        layers: in the order of the model's layers.
        sample: the calibration inputs.
        of: digest of the reference's weights, and its runtime.
        seconds: time of the calibration, including forward passes.
        kept: number of layers that came from the cache.
    """

    layers: list[LayerCandidate]
    sample: Sample
    of: tuple[str, Mapping[str, str]]
    seconds: float
    kept: int

    def ranges(self) -> dict[str, float]:
        """Map the layers whose inputs can be quantized to their largest absolute input."""
        return {made.name: made.absmax for made in self.layers if made.n_tokens}

    def describe(self) -> dict[str, Any]:
        """Describe the layers for the record of a run, as JSON values."""
        return {
            "calibration": dict(self.sample.record),
            "seconds": round(self.seconds, 3),
            "seconds_in_method": round(sum(made.seconds for made in self.layers), 3),
            "layers_kept_from_before": self.kept,
            "fallbacks": {made.name: made.fallback for made in self.layers if made.fallback},
            "fallback_weights": self._fallback_weights(),
            "layers": [
                {
                    "name": made.name,
                    "n_tokens": made.n_tokens,
                    "input_absmax": made.absmax,
                    "output_error": made.output_error,
                    "seconds": round(made.seconds, 4),
                    **({} if made.quantized is None else made.quantized.notes),
                }
                for made in self.layers
            ],
        }

    def _fallback_weights(self) -> dict[str, float]:
        """Map the reasons why layers were rounded to nearest to the share of these layers in all weights."""
        sizes = [0 if made.quantized is None else made.quantized.codes.numel() for made in self.layers]
        shares: dict[str, float] = defaultdict(float)
        for made, size in zip(self.layers, sizes, strict=True):
            if made.fallback:
                shares[made.fallback] += size / sum(sizes)
        return dict(shares)


def put_in_place(layer: LinearLayer, quantized: QuantizedWeight) -> None:
    """Write the weights of the codes into a layer."""
    weight = layer.weight.detach()
    weight.copy_(quantized.to(weight.device).dequantize(weight.dtype))
    dismiss(quantized.codes)


def quantize_in_order(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    batches: Sequence[Callable[[], object]],
    *,
    quantizers: Sequence[LayerQuantizer | None],
    fallbacks: Sequence[LayerQuantizer],
    kept: Mapping[int, LayerCandidate],
    done: Callable[[int, LayerCandidate], None],
) -> dict[int, float]:
    """Run the calibration batches once, and quantize each layer in place when they arrive at it.

    The input of a layer comes from a model whose earlier layers are quantized (paper, appendix "Quantizers"). A layer
    that is called several times in one pass is quantized on the input of its first call. Return the largest absolute
    inputs of later calls, by layer number.
    """
    second = any(method is not None and method.needs_moments for method in quantizers)
    made: dict[int, int] = {}  # layer to the number of tokens that reached it
    later: dict[int, float] = {}
    shared: tuple[list[Any], Moments] | None = None

    def arrive(number: int, x: Tensor, mask: Tensor | None) -> None:
        current = threading.current_thread()
        if number in made:
            rows = x.detach() if mask is None else x.detach()[mask]
            if rows.numel():
                later[number] = max(float(rows.abs().max()), later.get(number, 0.0))
        elif isinstance(current, ForwardPass):
            current.wait_at(number, (x.detach(), mask))

    def make(number: int, here: Sequence[ForwardPass]) -> None:
        nonlocal shared
        layer, candidate = layers[number], kept.get(number)
        if candidate is None:
            inputs = [forward.value for forward in here if forward.value is not None]
            which = [_identity(*layer_input) for layer_input in inputs]
            # the passes keep their inputs until they continue, so an address is not used again
            if not which or shared is None or shared[0] != which:
                shared = None  # only one is in memory
                shared = which, moments_of(inputs, layer.weight.shape[1], second=second)
            moments = shared[1]
            candidate = make_layer(layer, quantizers[number], fallbacks[number], moments)
        elif candidate.quantized is not None:
            put_in_place(layer, candidate.quantized)
        made[number] = candidate.n_tokens or 0
        if candidate.fallback and not was_watched(layer, layers, [made.get(other, 0) for other in range(len(layers))]):
            candidate = replace(candidate, fallback=NOT_SEEN)
        done(number, candidate)

    with plain_products(modules), hooked_inputs(modules, layers, arrive):
        in_lockstep(batches, make)
    for number in range(len(layers)):
        if number not in made:
            make(number, [])
    return later


def make_layer(
    layer: LinearLayer, method: LayerQuantizer | None, fallback: LayerQuantizer, moments: Moments
) -> LayerCandidate:
    """Quantize a layer in place on the moments of its input, or by the fallback if needed moments are missing."""
    weight = layer.weight.detach()
    candidate = LayerCandidate(name=layer.name, quantized=None, n_tokens=moments.n_tokens, absmax=moments.absmax)
    if method is None:
        return candidate
    reason = None
    if method.needs_moments and moments.n_tokens == 0:
        method, reason = fallback, NOT_REACHED
    start = time.perf_counter()
    quantized = method.quantize(weight, moments)
    seconds = time.perf_counter() - start
    error = None
    if moments.second.numel() and moments.n_tokens:
        error = output_error(weight, quantized.dequantize(weight.dtype), moments.second)
    put_in_place(layer, quantized)
    on_cpu = quantized.to(torch.device("cpu"))
    return replace(candidate, quantized=on_cpu, output_error=error, seconds=seconds, fallback=reason)


def _identity(x: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
    """Return an identity of an input, which changes if the input is changed in place."""
    return (x.data_ptr(), x.shape, x.stride(), None if mask is None else mask.data_ptr(), float(x.float().sum()))
