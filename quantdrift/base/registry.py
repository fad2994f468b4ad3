"""Registries of parts: an object in a module of quantdrift, or in an entry point of another package.

A registry consists of folders of modules, each with one object of a fixed name, and of a group of entry points, each
with one such object. Nothing else lists them. Entry points of quantdrift itself, as its optional packages have, count
as built in.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb, walk_tb
from typing import Any, Generic, TypeVar

from quantdrift.base.errors import QuantDriftError, UnsupportedError

Entry = TypeVar("Entry")
_NAME = re.compile("[a-z][a-z0-9_-]{0,40}")
REGISTRIES: "dict[str, Registry[Any]]" = {}
"""All registries of the modules imported so far, by group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that a part needs.

    Attributes:
        name: the name to install it by; for GPTQ and AWQ also its name in a scheme, `+backend=`.
        module: the module to import.
        extra: the extra of quantdrift that installs it.
        note: its purpose, for `quantdrift doctor`.
    """

    name: str
    module: str
    extra: str
    note: str


def imported(where: str) -> Any:
    """Load the object at "module:name"."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


@dataclass(eq=False)
class Registry(Mapping[str, Entry], Generic[Entry]):
    """Parts of one kind by name: those of quantdrift's modules, and those of a group of entry points.

    Parts are loaded at the first look-up and ordered by their `place`, if they have one.

    A part is called like its module, with `joint` for "_". A module may also hold a dict of parts by name, or none. A
    part of another package that cannot be loaded is in `broken`, which `quantdrift doctor` shows; the others still
    work. The entry point of a part with a `name` must have that name.

    Attributes:
        group: name of the group of entry points, e.g. "quantdrift.features".
        package: the packages with quantdrift's own modules, or the only one.
        attribute: name of the object in each module.
        kind: the class of the parts.
        joint: the character that replaces "_" in names.
        own: parts that are loaded already; looking one up loads nothing else.
        clash: returns why a part of another package cannot be added to the others, or None.
        broken: name of each entry point that cannot be used, and the reason.
    """

    group: str
    _: KW_ONLY
    package: str | tuple[str, ...] = ()
    attribute: str = ""
    kind: type[Entry]
    joint: str = "-"
    own: Mapping[str, Entry] = field(default_factory=dict)
    clash: Callable[[Mapping[str, Entry], Entry], str | None] = lambda *_: None
    broken: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        REGISTRIES[self.group] = self

    @cached_property
    def _ours(self) -> dict[str, str]:
        """The built-in parts by name, each as a module or as "module:object"."""
        modules = {
            module.name.replace("_", self.joint): f"{package}.{module.name}"
            for package in ((self.package,) if isinstance(self.package, str) else self.package)
            for module in iter_modules(import_module(package).__path__)
        }
        optional = {point.name: point.value for point in _optional() if point.group == self.group}
        return dict(sorted({**modules, **optional}.items()))

    @cached_property
    def _others(self) -> list[EntryPoint]:
        ours = {*_optional()}
        return [point for point in entry_points(group=self.group) if point not in ours]

    @cached_property
    def points(self) -> dict[str, EntryPoint]:
        """The entry points of other packages, by name."""
        return {point.name: point for point in self._others}

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        entries = dict(self.own)
        for name, where in self._ours.items():
            module, _, attribute = where.partition(":")
            entry: Any = getattr(import_module(module), attribute or self.attribute, None)
            entries |= entry if isinstance(entry, dict) else {} if entry is None else {name: entry}
        for name, point in self.points.items():
            owners = {package_of(other)[0] for other in self._others if other.name == name}
            if len(owners) > 1:  # whichever came last would be taken
                self.broken[name] = f"ValueError: {' and '.join(sorted(owners))} have one of that name; uninstall one"
                continue
            try:
                entries[name] = self._loaded(name, point, entries)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # somebody else's module, which may even end the process
                self.broken[name] = f"{type(error).__name__}: {error}"
        places = {name: (entry.place, name) for name, entry in entries.items() if hasattr(entry, "place")}
        return dict(sorted(entries.items(), key=lambda entry: places.get(entry[0], (0, ""))))

    @cached_property
    def packages(self) -> dict[str, Package]:
        """The packages that the parts need, by name."""
        return {package.name: package for entry in self.values() for package in getattr(entry, "packages", ())}

    def versions(self, *entries: Entry) -> dict[str, str]:
        """Name and version of each other package that some parts come from; nothing for built-in parts.

        They belong to a run's record, because the package decides what its part computes.
        """
        names = [name for name, entry in self.items() if any(entry is given for given in entries)]
        return dict(package_of(self.points[name]) for name in names if name in self.points and name not in self.broken)

    @contextmanager
    def tried(
        self,
        entry: Entry,
        raises: type[QuantDriftError] = UnsupportedError,
        passes: tuple[type[Exception], ...] = (QuantDriftError, ModuleNotFoundError),
    ) -> Iterator[None]:
        """Turn an unexpected error of another package's part inside the block into one line that names both.

        Args:
            entry: a part of this registry.
            raises: the class of the new error.
            passes: errors that are let through; by default those raised on purpose, and a missing package.

        Raises:
            QuantDriftError: the part raised an unexpected error.
        """
        try:
            yield
        except passes:
            raise
        except (Exception, SystemExit) as error:
            if not self.versions(entry):  # a fault of quantdrift's own keeps its traceback
                raise
            name = next(name for name, other in self.items() if other is entry)
            at = extract_tb(error.__traceback__)[-1]
            raise raises(
                f"{name!r} of {self.group}, from the package {' '.join(package_of(self.points[name]))}, failed: "
                f"{type(error).__name__}: {error!s:.500} ({Path(at.filename).name}, line {at.lineno}). Tell whoever "
                "maintains it, or leave it out"
            ) from error

    def _loaded(self, name: str, point: EntryPoint, entries: Mapping[str, Entry]) -> Entry:
        if name in entries:
            raise ValueError(f"quantdrift has a {name!r} of its own")
        if not _NAME.fullmatch(name):
            raise ValueError(f"expected a name in lower case, got {name!r}")
        entry = point.load()
        if not isinstance(entry, self.kind):
            raise TypeError(f"expected {self.kind.__name__}, got {entry!r:.80}")
        if (called := getattr(entry, "name", name)) != name:
            raise ValueError(f"it is called {called!r}, and its entry point {name!r}; expected one name")
        if (why := self.clash(entries, entry)) is not None:
            raise ValueError(why)
        return entry

    def module(self, name: str) -> str | None:
        """The module that a part comes from; None if there is no part of this name."""
        if name not in self:
            return None
        return self._ours[name].partition(":")[0] if name in self._ours else self.points[name].module

    def __getitem__(self, name: str) -> Entry:
        return self.own[name] if name in self.own else self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _optional() -> Iterable[EntryPoint]:
    """The entry points of quantdrift itself."""
    try:
        return distribution("quantdrift").entry_points
    except PackageNotFoundError:  # a source tree that is not installed
        return ()


def package_of(point: EntryPoint) -> tuple[str, str]:
    """Name and version of the package of an entry point."""
    try:
        return point.dist.name, point.dist.version  # type: ignore[union-attr]
    except Exception:  # its metadata cannot be read
        return point.value.partition(":")[0], "?"


def blamed(error: BaseException) -> str:
    """Name the other package, and its parts, that an error was raised in; empty if there is none."""
    points = [point for registry in REGISTRIES.values() for point in registry.points.values()]
    for frame, _ in reversed([*walk_tb(error.__traceback__)]):
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if there := [point for point in points if re.split("[.:]", point.value)[0] == module]:
            return f" in {' '.join(package_of(there[0]))} ({', '.join(point.name for point in there)})"
    return ""
