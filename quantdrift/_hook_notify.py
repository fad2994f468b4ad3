"""The start-up hook's work when a watched harness module is imported.

The spec comes from the other finders; only its loader is replaced, until the module has run. An error in one of our
functions becomes a line on standard error and never reaches the harness.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Protocol


class Finder(Protocol):
    """The part of the hook's finder that is used here."""

    off_switch: str
    watched: dict[str, str]
    patched: list[str]
    errors: dict[str, str]


def find_spec(
    finder: Finder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return the spec of the finders after ours, with a loader that notifies us."""
    finders: list[Any] = list(sys.meta_path)
    for other in finders[finders.index(finder) + 1 :]:  # those before ours were asked already
        find = getattr(other, "find_spec", None)
        spec: ModuleSpec | None = find(fullname, path, target) if find else None
        if spec is not None:
            # a loader without exec_module (load_module only, namespace packages) is left as it is
            if hasattr(spec.loader, "exec_module"):
                loader: Any = _NotifyingLoader(finder, spec)
                spec.loader = loader
            return spec
    return None


class _NotifyingLoader:
    """Replaces a loader until its module runs, and passes on everything else."""

    def __init__(self, finder: Finder, spec: ModuleSpec) -> None:
        self._finder = finder
        self._spec = spec
        self._loader: Any = spec.loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy made without __init__ would recurse without end
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


def change(watched: Mapping[str, str], harness: str) -> None:
    """Hook into a harness now, whatever the off switch says."""
    for name, ours in watched.items():
        if name.partition(".")[0] == harness:
            resolve_name(ours)(import_module(name))


def notify(finder: Finder, name: str, module: ModuleType) -> None:
    """Call the function of a watched module; its errors end here."""
    try:
        resolve_name(finder.watched[name])(module)
    except Exception as error:  # whatever the error, the harness must go on without us
        harness = name.partition(".")[0]
        said = any(watched.startswith(f"{harness}.") for watched in finder.errors)
        finder.errors[name] = " ".join(f"{type(error).__name__}: {error}".split())
        if not said and sys.stderr is not None:  # once a harness, and no warning, which -W error would raise
            print(  # noqa: T201 -- nothing more is loaded here
                f"quantdrift could not hook into {name} ({finder.errors[name]}); {harness} goes on without "
                f"quantdrift. {finder.off_switch}=0 switches the hook off.",
                file=sys.stderr,
            )
    else:
        finder.errors.pop(name, None)
        if name not in finder.patched:
            finder.patched.append(name)
