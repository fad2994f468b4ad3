"""One run observed: which calls can be left out of a later one, and when weights are first used.

A call can be left out if all it does is to return something. What a run does is seen operation by
operation: a call that writes into memory that others gave it (a cache of keys and values, an
activation in place) is not left out, and what is written over once it was returned is kept as a
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from quantdrift.allocation.prefix.calls import NEVER, Call, Interception, Trace
from quantdrift.allocation.prefix.plan import Plan
from quantdrift.allocation.prefix.values import tensors_in
from quantdrift.models.layers import LinearLayer, memory_range
from quantdrift.models.reach import WeightUse

__all__ = ["observe"]


def observe(
    interception: Interception, layers: Sequence[LinearLayer], run: Callable[[], object]
) -> Plan:
    """Run a batch and note what can be left out of it.

    Args:
        interception: the model's modules.
        layers: whose first use matters.
        run: puts the batch through the model.
    """
    watch = _Watch(layers)
    with interception.by(watch.called), watch:
        run()
    watch.judge()
    begun: dict[int | None, int] = {None: 0}
    for call in watch.trace.calls:
        begun.setdefault(call.module, call.start)
    touched = {id(layers[number].parameter) for number in watch.first_touch}
    first_use = {}
    for number, layer in enumerate(layers):
        owners = layer.modules or interception.owners(layer.parameter)
        starts = [begun[home] for home in map(interception.home, owners) if home in begun]
        touch = watch.first_touch.get(number)
        # A kernel that nobody tells of gets its weights while the module is called. Where a touch
        # of one expert was seen, one of another would have been.
        certain = touch is not None or id(layer.parameter) in touched
        if starts and not (certain and not layer.modules):
            first_use[number] = min(starts if touch is None else [touch, *starts])
        elif touch is not None:
            first_use[number] = touch
    return Plan(outermost=watch.trace.outermost, calls=watch.trace.calls, first_use=first_use)


class _Watch(WeightUse):  # type: ignore[no-untyped-call]  # untyped in torch
    """Follows memory through a run."""

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        super().__init__(layers)
        self.trace = Trace()
        self.first_touch: dict[int, int] = {}
        self._touched = 0
        # by storage: when it was made, who writes into it when, who reads it
        self._made: dict[StorageWeakRef, int] = {}
        self._writes: dict[StorageWeakRef, list[tuple[int, Call | None]]] = {}
        self._reads: dict[StorageWeakRef, set[Call | None]] = {}
        self._returned: dict[Call, list[StorageWeakRef | None]] = {}

    def called(
        self,
        module: int,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Handles a module's call."""
        call = self.trace.enter(module)
        # kernels of other libraries read their inputs without telling anybody
        self._read(tensors_in((args, kwargs)), call)
        try:
            output = forward(*args, **kwargs)
        finally:
            self.trace.leave(call)
        found = tensors_in(output)
        self._returned[call] = [_key(tensor) for tensor in found]
        if call.parent is None:
            self._read(found, None)
        return output

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        outputs, clock = tensors_in(result), self.trace.clock
        schema = func._schema
        for key in filter(None, map(_key, outputs)):
            self._made.setdefault(key, clock)
        inputs = tensors_in((args, kwargs))
        if _is_view(schema, inputs, outputs):
            return result  # nothing was looked at
        self._read(inputs, self.trace.inside)
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for key in filter(None, map(_key, tensors_in(given.get(argument.name)))):
                    self._writes.setdefault(key, []).append((clock, self.trace.inside))
        if not outputs or any(output.numel() for output in outputs):
            self._touch(func, args, kwargs, inputs)
        return result

    def judge(self) -> None:
        """Say of every call whether it can be left out, and how long what it returned is needed."""
        for call in self._returned:  # one that failed is not among them
            call.skippable = True
        for key, writes in self._writes.items():
            made = self._made.get(key, -1)
            for _, writer in writes:
                for call in _outwards(writer):
                    call.skippable = call.skippable and call.start <= made
        for call, keys in self._returned.items():
            written = [key for key in keys if key is not None and key in self._writes]
            given = any(self._made.get(key, -1) < call.start for key in written)
            late = [key for key in written if self._writes[key][-1][0] >= call.end]
            call.volatile = bool(late)
            if given or (late and len(set(keys)) < len(keys)):  # copies would lie apart
                call.skippable = False
        for call in self.trace.calls:
            call.kept_until = NEVER if call.parent is None else call.parent.run_until
        needed = {
            key: max(NEVER if reader is None else reader.run_until for reader in readers)
            for key, readers in self._reads.items()
        }
        for call, keys in self._returned.items():
            ends = [NEVER if key is None else needed.get(key, 0) for key in keys]
            call.data_until = NEVER if call.volatile else max(ends, default=0)

    def _read(self, tensors: Sequence[Tensor], reader: Call | None) -> None:
        for key in filter(None, map(_key, tensors)):
            self._reads.setdefault(key, set()).add(reader)

    def _touch(self, func: Any, args: Any, kwargs: Any, inputs: Sequence[Tensor]) -> None:
        stack, experts = self._chosen(func, args, kwargs)
        touched = 0
        for tensor in inputs:
            parts = [tensor[expert] for expert in experts] if tensor is stack else [tensor]
            for part in parts:
                touched |= self._weights.within(memory_range(part))
        new = touched & ~self._touched
        self._touched |= new
        while new:
            number = (new & -new).bit_length() - 1
            self.first_touch[number] = self.trace.clock
            new &= new - 1


def _is_view(schema: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether an operation gave nothing but other views of what it got."""
    if not any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
        return False
    known = {_key(tensor) for tensor in inputs}
    return all(_key(output) in known for output in outputs)


def _outwards(call: Call | None) -> Iterator[Call]:
    while call is not None:
        yield call
        call = call.parent


def _key(tensor: Tensor) -> StorageWeakRef | None:
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and fake tensors have none
        return None
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
