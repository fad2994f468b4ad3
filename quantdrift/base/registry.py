"""What can be added from outside: one object a module of ours, or an entry point of another package.

A registry is a folder of modules, each of which has one object of a fixed name, and a group of entry points that give
such objects from elsewhere. Nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

from quantdrift.base.errors import QuantDriftError

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Objects by name: those of a package of ours, and those of the entry points of a group.

    A module's name is the object's, with "-" for "_"; a module that begins with "_" or has no such object is none.

    Attributes:
        group: of the entry points, e.g. "quantdrift.features".
        package: of our own modules.
        attribute: name of the object in each.
        kind: what an object has to be.
    """

    def __init__(self, group: str, *, package: str, attribute: str, kind: type[Entry]) -> None:
        self.group, self.package, self.attribute, self.kind = group, package, attribute, kind

    @cached_property
    def _ours(self) -> dict[str, str]:
        within = import_module(self.package).__path__
        return {module.name.replace("_", "-"): f"{self.package}.{module.name}" for module in iter_modules(within)}

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        entries: dict[str, Any] = {
            name: getattr(import_module(module), self.attribute, None) for name, module in self._ours.items()
        }
        entries = {name: entry for name, entry in entries.items() if entry is not None}
        for name, point in self._others.items():
            if name in entries:
                raise QuantDriftError(f"{point.value} of {self.group} takes the name {name!r}, which quantdrift has")
            try:
                entries[name] = point.load()
            except Exception as error:  # somebody else's module
                raise QuantDriftError(
                    f"{name!r} of {self.group}, {point.value}, cannot be loaded: {type(error).__name__}: {error}. "
                    "Mend or uninstall the package that gives it"
                ) from error
        for name, entry in entries.items():
            if not isinstance(entry, self.kind):
                raise QuantDriftError(f"{name!r} of {self.group}: expected {self.kind.__name__}, got {entry!r:.80}")
        return entries

    def module(self, name: str) -> str | None:
        """Name of the module that an object comes from; None if there is none of this name."""
        if name not in self:
            return None
        return self._ours.get(name) or self._others[name].module

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
