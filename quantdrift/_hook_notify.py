"""What the start-up hook does once a watched harness module is being imported.

The real spec comes from the finders behind ours; only its loader is replaced, and only until the module runs. An
error in one of our functions becomes a warning and never reaches the harness.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from quantdrift import _hook


@dataclass(frozen=True, slots=True, kw_only=True)
class HookStatus:
    """What the hook has done so far in this process.

    Attributes:
        active: the finder is in place and not switched off.
        switched_off: the environment variable `QUANTDRIFT_HOOK` says off.
        started_by: "pth", "start" or "manual"; None when the finder is not in place.
        patched: the watched modules whose function has run, in that order.
        errors: watched module -> the error its function ended in.
    """

    active: bool
    switched_off: bool
    started_by: str | None = None
    patched: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


def status(finder: _hook.HookFinder | None) -> HookStatus:
    """The state of this finder, which is None where the hook was never started."""
    off = _hook.switched_off()
    seen: dict[str, Any] = {}
    if finder is not None:
        seen = {"started_by": finder.started_by, "patched": tuple(finder.patched), "errors": dict(finder.errors)}
    return HookStatus(active=not off and finder is not None, switched_off=off, **seen)


def find_spec(
    finder: _hook.HookFinder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """The spec that the finders behind ours give, with a loader that notifies us afterwards."""
    search = (threading.get_ident(), fullname)
    if search in finder.searching:  # another hook asks every finder in turn: answer only once
        return None
    finder.searching.add(search)
    try:
        spec = _ask_behind(finder, fullname, path, target)
    finally:
        finder.searching.discard(search)
    # A loader without exec_module (load_module only, namespace packages) is left as it is.
    if spec is not None and hasattr(spec.loader, "exec_module"):
        loader: Any = _NotifyingLoader(finder, spec)
        spec.loader = loader
    return spec


def _ask_behind(
    finder: _hook.HookFinder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    # Those in front of ours have been asked already.
    finders: list[Any] = list(sys.meta_path)
    behind = finders[finders.index(finder) + 1 :] if finder in finders else finders
    for other in behind:
        find = getattr(other, "find_spec", None)
        spec: ModuleSpec | None = find(fullname, path, target) if find else None
        if spec is not None:
            return spec
    return None


class _NotifyingLoader:
    """Stands in for a loader until its module runs; everything but that is the real loader's."""

    def __init__(self, finder: _hook.HookFinder, spec: ModuleSpec) -> None:
        self._finder = finder
        self._spec = spec
        self._loader: Any = spec.loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy made without __init__ would ask itself for ever
            raise AttributeError(name)
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        # The real loader goes back first: the module's own code, and later importlib.resources,
        # inspect, pickle and reload, must see what they would see without us.
        self._spec.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        notify(self._finder, self._spec.name, module)


def change(harness: str) -> None:
    """Change a harness here and now, whatever the off switch says."""
    for name, ours in _hook.WATCHED.items():
        if name.partition(".")[0] == harness:
            _function(ours)(import_module(name))


def _function(ours: str) -> Any:
    target, _, function = ours.partition(":")
    return getattr(import_module(target), function)


def notify(finder: _hook.HookFinder, name: str, module: ModuleType) -> None:
    """Call the function that the table names for this module; its errors end here."""
    try:
        _function(_hook.WATCHED[name])(module)
    except Exception as error:  # whatever it is, the harness must go on as if we were not here
        finder.errors[name] = type(error).__name__
        with suppress(Exception):  # an error that cannot be told, nowhere to tell it
            finder.errors[name] = " ".join(f"{type(error).__name__}: {error}".split())
            _warn_once(finder, name)
    else:
        finder.errors.pop(name, None)
        if name not in finder.patched:
            finder.patched.append(name)


def _warn_once(finder: _hook.HookFinder, name: str) -> None:
    harness = name.partition(".")[0]
    if harness in finder.warned:
        return
    finder.warned.add(harness)
    message = (
        f"quantdrift could not hook into {name} ({finder.errors[name]}); {harness} goes on "
        f"without quantdrift. {_hook.OFF_SWITCH}=0 switches the hook off."
    )
    try:
        # Explicit, because `warn` would print a second line: the source line it points at.
        warnings.warn_explicit(message, RuntimeWarning, "<quantdrift start-up hook>", 1)
    except RuntimeWarning:  # under -W error even a warning would break the harness
        if sys.stderr is not None:
            print(message, file=sys.stderr)  # noqa: T201 -- nothing more is loaded here
