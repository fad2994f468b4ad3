"""Quantize a model's layers in calling order, each seeing the quantized ones before it."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.quantizers.base import LayerQuantizer, Moments, QuantizedWeight

# --- What torch keeps for each thread, carried from one thread to another -------------------------

_KINDS = ("cpu", "cuda", "mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Settings of one thread.

    Attributes:
        n_threads: for one operation.
        autocast: device kind to the type that operations are cast to there.
        device: where new tensors go.
        cuda_device: number of the present GPU; None where there is none.
    """

    n_threads: int
    autocast: dict[str, torch.dtype]
    device: torch.device
    cuda_device: int | None

    @classmethod
    def present(cls) -> TorchSettings:
        """Those of the calling thread."""
        return cls(
            n_threads=torch.get_num_threads(),
            autocast={kind: torch.get_autocast_dtype(kind) for kind in _KINDS if torch.is_autocast_enabled(kind)},
            device=torch.get_default_device(),
            cuda_device=torch.cuda.current_device() if torch.cuda.is_available() else None,
        )

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the calling thread has them; gradients are off."""
        torch.set_num_threads(self.n_threads)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.device != torch.get_default_device():
                stack.enter_context(self.device)
            if self.cuda_device is not None:
                stack.enter_context(torch.cuda.device(self.cuda_device))
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield


# --- Several forward passes that wait for each other at every layer -------------------------------


class _Abandoned(BaseException):
    """Ends a pass that nobody waits for any more; no `except Exception` on the way holds it."""


class Runner:
    """One computation that stops where it arrives.

    Attributes:
        place: where it waits; None before it has begun and when it has ended.
        value: what it brought there; kept until it arrives elsewhere.
    """

    def __init__(self, work: Callable[[], object], settings: TorchSettings) -> None:
        self.place: int | None = None
        self.value: object = None
        self._work, self._settings = work, settings
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._ended = self._abandoned = False
        # an uncaught interrupt of the main thread must not wait for this one
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True)

    @property
    def thread_id(self) -> int | None:
        """Which thread it runs in."""
        return self._thread.ident

    def start(self) -> None:
        """Start the thread, which waits for `advance`."""
        self._thread.start()

    def advance(self) -> None:
        """Run until the next place or the end.

        Raises:
            BaseException: whatever the computation raised.
        """
        if self._ended:
            return
        self.place = None
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait_at(self, place: int, value: object) -> None:
        """Called by the computation: hand over, and wait to be advanced."""
        if self._abandoned:  # somebody on the way held the end of it, and tried again
            raise _Abandoned
        self.place, self.value = place, value
        self._stopped.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End it where it waits."""
        if self._thread.ident is None:
            return
        if not self._ended:
            self._abandoned = True
            self._go.release()
        self._thread.join()
        self.value = None

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._abandoned:
                with self._settings.again():
                    self._work()
        except _Abandoned:
            pass
        except BaseException as error:  # raised again in the main thread
            self._error = error
        finally:
            self._ended = True
            self.place = self.value = None
            self._stopped.release()


class Lockstep:
    """The runners of one pass."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = list(runners)
        self._by_thread = {runner.thread_id: runner for runner in self.runners}

    def current(self) -> Runner | None:
        """The runner whose thread calls; None in any other thread."""
        return self._by_thread.get(threading.get_ident())

    def advance(self, runners: Sequence[Runner]) -> None:
        """Let each run to its next place, one after another."""
        for runner in runners:
            runner.advance()

    def next_place(self) -> tuple[int, list[Runner]] | None:
        """The lowest place where runners wait, and who waits there; None when all have ended."""
        waiting = [runner for runner in self.runners if runner.place is not None]
        if not waiting:
            return None
        place = min(runner.place for runner in waiting if runner.place is not None)
        return place, [runner for runner in waiting if runner.place == place]


@contextmanager
def lockstep(works: Sequence[Callable[[], object]]) -> Iterator[Lockstep]:
    """Runners for the computations, none begun; on leaving, those that still wait are ended.

    Args:
        works: what to compute; in it, `runner.wait_at` is called by whoever watches it.
    """
    settings = TorchSettings.present()
    runners = [Runner(work, settings) for work in works]
    try:
        for runner in runners:
            runner.start()
        yield Lockstep(runners)
    finally:
        for runner in runners:
            runner.abandon()


# --- Seeing the inputs of a model's linear layers while it runs -----------------------------------

Arrive = Callable[[int, Tensor, Tensor | None], None]
"""Called with the layer's number, its input [..., in_features] and, where known, which rows count:
bool, shaped as the input without its last axis."""

_DEPTH_OF_MASK = 3


class _Local(threading.local):
    """What a thread is in the middle of."""

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.masks: list[Tensor | None] = []
        self.called: int | None = None


@contextmanager
def hooked_inputs(modules: Sequence[nn.Module], layers: Sequence[LinearLayer], arrive: Arrive) -> Iterator[_Local]:
    """Inside, `arrive` is called before each of the layers' modules runs.

    Args:
        modules: the model.
        layers: its layers; their numbers are positions in this sequence.
        arrive: as above; it may block.
    """
    local = _Local()
    with ExitStack() as stack:
        for root in modules:
            for name, module in root.named_modules():
                if name.count(".") < _DEPTH_OF_MASK:
                    enter, leave = _mask_hooks(local)
                    hook = module.register_forward_pre_hook(enter, with_kwargs=True)
                    stack.callback(hook.remove)
                    stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        for number, layer in enumerate(layers):
            for module in layer.modules:
                before, after = _layer_hooks(local, number, arrive)
                hook = module.register_forward_pre_hook(before, with_kwargs=True)
                stack.callback(hook.remove)
                stack.callback(module.register_forward_hook(after, always_call=True).remove)
        yield local


def _mask_hooks(local: _Local) -> tuple[Callable[..., None], Callable[..., None]]:
    """Take the mask that a module is given for as long as it runs."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given: Any = kwargs.get("attention_mask")
        if given is None and args and isinstance(args[0], Mapping):  # a SentenceTransformer
            given = args[0].get("attention_mask")
        local.masks.append(local.mask)
        if isinstance(given, Tensor) and given.dim() == 2 and not given.is_floating_point():  # noqa: PLR2004 -- one row per input
            local.mask = given.bool()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if local.masks:
            local.mask = local.masks.pop()

    return enter, leave


def _layer_hooks(local: _Local, number: int, arrive: Arrive) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, Tensor):
            arrive(number, x, _fitting(local.mask, x))
            local.called = number

    def after(module: nn.Module, args: Any, output: Any) -> None:
        local.called = None

    return before, after


def _fitting(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """The mask where it speaks of the rows of x: padding is no calibration token."""
    fits = mask is not None and mask.shape == x.shape[:-1] and mask.device == x.device
    return mask if fits else None


class ProductTap(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Sees products with weights whose module is not called; for one thread.

    Args:
        layers: the layers, as for `hooked_inputs`.
        arrive: likewise.
        local: what `hooked_inputs` gave, so that a layer is not seen twice.
    """

    def __init__(self, layers: Sequence[LinearLayer], arrive: Arrive, local: _Local) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._numbers: dict[object, int] = {
            (layer.weight.data_ptr(), frozenset(layer.weight.shape)): number for number, layer in enumerate(layers)
        }
        self._stacks: dict[object, list[tuple[int, int]]] = {}
        for number, layer in enumerate(layers):
            if layer.expert is not None:
                stack = layer.parameter
                key = (stack.data_ptr(), tuple(stack.shape))
                self._stacks.setdefault(key, []).append((number, layer.expert))
        self._arrive, self._local = arrive, local

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = _OPERANDS.get(func)
        if operands is not None:
            x, weight = args[operands[0]], args[operands[1]]
            number = self._numbers.get((_address(weight), frozenset(weight.shape)))
            if number is not None and number != self._local.called:
                self._arrive(number, x, None)
        elif func is _aten.bmm.default:
            x, stack = args[0], args[1]
            for number, expert in self._stacks.get((_address(stack), tuple(stack.shape)), ()):
                # tokens that are not for an expert come to it as zeros
                self._arrive(number, x[expert][x[expert].any(dim=-1)], None)
        return func(*args, **(kwargs or {}))


def _address(tensor: Tensor) -> int | None:
    """Where a tensor's numbers are; None for a sparse one, which has no such place."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None


_aten = torch.ops.aten
_OPERANDS = {
    _aten.linear.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.mm.default: (0, 1),
    _aten.matmul.default: (0, 1),
}
"""Product to the positions of its input and its weight."""


@contextmanager
def plain_products(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, nothing is fused that would hide a product with a layer's weight.

    Args:
        modules: the model. Torch's encoder layers run as separate operations, and experts one by
            one.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    configs: dict[int, Any] = {}
    for root in modules:
        for module in root.modules():
            config = getattr(module, "config", None)
            if getattr(config, "_experts_implementation", None) is not None:
                configs[id(config)] = config
    chosen = [(config, config._experts_implementation) for config in configs.values()]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for config, _ in chosen:
            config._experts_implementation = "eager"
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for config, before in chosen:
            config._experts_implementation = before


# --- The moments of a layer's input, over all calibration batches ---------------------------------

_BLOCK = 384


def gram(rows: Tensor) -> Tensor:
    """rows^T rows, of which half is computed and half mirrored.

    Args:
        rows: float32 [n_tokens, in_features].

    Returns:
        float32 [in_features, in_features], symmetric.
    """
    n = rows.shape[1]
    product = rows.new_empty(n, n)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        product[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


def moments_of(inputs: Sequence[tuple[Tensor, Tensor | None]], in_features: int, *, second: bool) -> Moments:
    """The moments over all tokens of several inputs.

    Args:
        inputs: of every batch the input [..., in_features], and which of its rows count (None for
            all of them).
        in_features: of the layer.
        second: whether the second moment is wanted; zeros stand for it otherwise.

    Returns:
        Float32, on the inputs' device.
    """
    device = inputs[0][0].device if inputs else torch.device("cpu")
    total = torch.zeros(in_features, in_features if second else 0, device=device)
    absolute = torch.zeros(in_features, device=device)
    largest = torch.zeros((), device=device)
    n_tokens = 0
    for x, mask in inputs:
        rows = (x.reshape(-1, in_features) if mask is None else x[mask]).to(torch.float32)
        if not len(rows):
            continue
        if second:
            total += gram(rows)
        absolute += rows.abs().sum(dim=0)
        largest = torch.maximum(largest, rows.abs().max())
        n_tokens += len(rows)
    return Moments(
        second=total / max(1, n_tokens), mean_abs=absolute / max(1, n_tokens), absmax=float(largest), n_tokens=n_tokens
    )


def output_error(weight: Tensor, low: Tensor, second: Tensor) -> float | None:
    """Relative squared error of a layer's output, ||X (W - Q)^T||^2 / ||X W^T||^2.

    Args:
        weight: [out_features, in_features].
        low: what takes its place, likewise.
        second: mean of x x^T over the calibration tokens, [in_features, in_features].

    Returns:
        At least 0; None where the layer's output is zero.
    """
    exact = weight.to(torch.float32)
    error = exact - low.to(torch.float32)
    power = float(((exact @ second) * exact).sum())
    return max(0.0, float(((error @ second) * error).sum()) / power) if power > 0 else None


# --- Quantize a model's layers in calling order, each seeing the quantized ones before it ---------


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
            return LayerCandidate(name=layer.name, quantized=None, n_tokens=moments.n_tokens, absmax=moments.absmax)
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


# --- Quantized activations: one fixed range per tensor, at the input of every linear layer --------


def fake_quantize(x: Tensor, *, absmax: float, bits: int) -> Tensor:
    """Round a tensor to a symmetric grid and clip what lies beyond (paper, appendix on A8).

    scale = absmax / (2^(bits-1) - 1), value = clamp(round(x / scale)) * scale, halves to even.

    Args:
        x: float, any shape; the arithmetic is done in float32.
        absmax: end of the range, fixed by calibration; 0 gives zeros.
        bits: 4 to 8.

    Returns:
        As x.
    """
    levels = 2 ** (bits - 1) - 1
    if absmax == 0:
        return torch.zeros_like(x)
    scale = absmax / levels
    codes = torch.round(x.to(torch.float32) / scale).clamp_(-levels, levels)
    quantized: Tensor = (codes * scale).to(x.dtype)
    return quantized


@contextmanager
def quantized_inputs(layers: Sequence[LinearLayer], ranges: Mapping[str, float], bits: int) -> Iterator[None]:
    """Inside, the layers' modules get quantized inputs.

    Args:
        layers: the layers; one whose weight is used without a call of its module is passed over.
        ranges: layer name to the largest absolute input that calibration saw.
        bits: 4 to 8.
    """
    with ExitStack() as stack:
        for layer in layers:
            if layer.name in ranges:
                for module in layer.modules:
                    hook = _hook(ranges[layer.name], bits)
                    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                    stack.callback(handle.remove)
        yield


def _hook(absmax: float, bits: int) -> Callable[..., tuple[Any, Any]]:
    def quantize(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Tensor):
            args = (fake_quantize(args[0], absmax=absmax, bits=bits), *args[1:])
        elif isinstance(x := kwargs.get("input"), Tensor):
            kwargs = {**kwargs, "input": fake_quantize(x, absmax=absmax, bits=bits)}
        return args, kwargs

    return quantize
