"""The calls of modules that a run of a model is made of, and a way to stand in between."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from quantdrift.errors import UnsupportedError

__all__ = ["NEVER", "Call", "Handler", "Interception", "Trace"]

NEVER = 1 << 62
"""A time after every run."""

Handler = Callable[[int, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Gets a module's number, its forward and arguments, and returns what the call returns."""


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call of a module.

    Times count the begins and ends of calls in a run, from 1.

    Attributes:
        number: in the order of their begin.
        module: number of the module.
        parent: the call that it is made in.
        start: time of its begin.
        end: time of its end.
        children: calls made in it, in order.
        skippable: whether what it does to the rest of the run is what it returns.
        volatile: whether what it returned is written over later.
        kept_until: end of the innermost skippable call around it: then nobody asks for it.
        data_until: from when on nobody looks into what it returned.
    """

    number: int
    module: int
    parent: Call | None
    start: int
    end: int = NEVER
    children: list[Call] = field(default_factory=list)
    skippable: bool = False
    volatile: bool = False
    kept_until: int = NEVER
    data_until: int = NEVER

    @property
    def run_until(self) -> int:
        """From when on what is computed in it, outside of the calls in it, need not be."""
        return self.end if self.skippable else self.kept_until


class Trace:
    """The calls of a run, as they come."""

    def __init__(self) -> None:
        self.clock = 0
        self.calls: list[Call] = []
        self.outermost: list[Call] = []
        self.inside: Call | None = None

    def enter(self, module: int) -> Call:
        """A call begins."""
        self.clock += 1
        call = Call(number=len(self.calls), module=module, parent=self.inside, start=self.clock)
        (self.outermost if self.inside is None else self.inside.children).append(call)
        self.calls.append(call)
        self.inside = call
        return call

    def leave(self, call: Call) -> None:
        """It ends, be it by an error."""
        self.clock += 1
        call.end = self.clock
        self.inside = call.parent


class Interception:
    """The modules of a model whose calls can be seen.

    The inside of what is compiled is not touched, nor that of modules that copy themselves to run
    in threads.

    Attributes:
        modules: those modules, by number.
    """

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self.modules: list[nn.Module] = []
        self._homes: dict[nn.Module, int | None] = {}
        self._owners: dict[int, list[nn.Module]] = {}
        for root in roots:
            self._visit(root, None)
        for module in self._homes:
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), []).append(module)

    def home(self, module: nn.Module) -> int | None:
        """Number of a module, or of the innermost around it whose calls are seen."""
        return self._homes.get(module)

    def owners(self, parameter: nn.Parameter) -> list[nn.Module]:
        """The modules that keep a parameter."""
        return self._owners.get(id(parameter), [])

    @contextmanager
    def by(self, handler: Handler) -> Iterator[None]:
        """Inside, calls go through the handler; also those of `forward` past the hooks.

        Raises:
            UnsupportedError: a module is called in another thread.
        """
        before: list[tuple[dict[str, Any], Any]] = []
        thread = threading.get_ident()
        try:
            for number, module in enumerate(self.modules):
                # module.forward = ... would go through the module's own __setattr__
                attributes = module.__dict__
                before.append((attributes, attributes.get("forward", before)))
                attributes["forward"] = _through(handler, number, module.forward, thread)
            yield
        finally:
            for attributes, own in before:
                if own is not before:
                    attributes["forward"] = own
                else:
                    attributes.pop("forward", None)

    def _visit(self, module: nn.Module, around: int | None) -> None:
        if module in self._homes:
            return
        home = around
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        if not compiled and not isinstance(module, torch.jit.ScriptModule) and _has_forward(module):
            home = len(self.modules)
            self.modules.append(module)
        self._homes[module] = home
        closed = compiled or isinstance(module, torch.jit.ScriptModule | nn.DataParallel)
        closed = closed or type(module).__name__ == "OptimizedModule"
        for child in module.children():
            if closed:
                for inner in child.modules():
                    self._homes.setdefault(inner, home)
            else:
                self._visit(child, home)


def _has_forward(module: nn.Module) -> bool:
    return "forward" in module.__dict__ or type(module).forward is not nn.Module.forward


def _through(
    handler: Handler, number: int, forward: Callable[..., Any], thread: int
) -> Callable[..., Any]:
    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            raise UnsupportedError("expected modules to be called in one thread, got several")
        return handler(number, forward, args, kwargs)

    return call
