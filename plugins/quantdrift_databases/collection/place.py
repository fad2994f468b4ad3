"""The place of a collection, and its reader, which is an entry point of this package or of another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quantdrift.parts import Package, Registry, UnsupportedError, clean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IDS = ("_id", "id", "doc_id", "document_id")
"""Usual names of the field with the ids of documents."""
_PLACE = re.compile(r"(?P<at>[^#]+)#(?P<name>[^,]+)(?:,limit=(?P<limit>[0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A collection as `+collection=` names it.

    Attributes:
        at: a URL or a folder.
        name: name of the collection.
        limit: documents that it is asked for; None for the default.
    """

    at: str
    name: str
    limit: int | None = None

    def __str__(self) -> str:
        return f"{self.at}#{self.name}"

    @property
    def folder(self) -> Path:
        """The folder, which may not exist."""
        return Path(self.at).expanduser()


class Held(Protocol):
    """An open collection.

    Attributes:
        library: name and version of the library that reads it.
        count: number of documents.
        dim: dimension of the vectors.
        metric: "cosine", "dot" or "euclidean".
    """

    library: str
    count: int
    dim: int
    metric: str

    def ids(self) -> Iterator[str]:
        """Ids of all documents."""

    def ask(self, query: NDArray[np.float32], k: int) -> tuple[Sequence[str], Sequence[float] | NDArray[Any]]:
        """Ids of the nearest documents, best first, and their scores: the cosine, product, or minus the distance."""

    def close(self) -> None:
        """Close it, without a change to the collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A kind of collections.

    Attributes:
        what: a description.
        accepts: returns whether a place has collections of this kind, without importing a library.
        open: opens a collection.
        packages: the packages that it needs.
    """

    what: str
    accepts: Callable[[Place], bool]
    open: Callable[[Place], Held]
    packages: tuple[Package, ...] = ()


READERS: Registry[Reader] = Registry("quantdrift.collections", kind=Reader)
"""Readers by name."""


def read_place(written: str) -> Place:
    """Read a place that is written as URL#NAME or FOLDER#NAME."""
    match = _PLACE.fullmatch(written)
    if match is None:
        raise UnsupportedError(f"{written}: expected a collection as URL#NAME or FOLDER#NAME")
    limit = match["limit"]
    return Place(at=match["at"], name=match["name"], limit=None if limit is None else int(limit))


def reader_of(place: Place) -> Reader:
    """The reader of a place; UnsupportedError if there is none, or the folder does not exist."""
    if "://" not in place.at and not place.folder.exists():
        raise UnsupportedError(f"{place.at}: expected a URL, or a folder that exists")
    for reader in READERS.values():
        if reader.accepts(place):
            return reader
    kinds = "; ".join(reader.what for reader in READERS.values())
    raise UnsupportedError(f"{place.at} is no collection that can be asked; expected {kinds}")


def field_of_ids(names: Any, where: Place) -> str:
    """The field with the ids of documents, which has one of the usual names."""
    if (field := next((name for name in IDS if name in names), None)) is None:
        raise UnsupportedError(f"{where} has no field of document ids; expected one of {', '.join(IDS)}")
    return field


def only(vectors: dict[str, Any], place: Place) -> tuple[str, Any]:
    """Name and description of the only vectors; UnsupportedError if there are several or none."""
    if len(vectors) != 1:
        names = f" ({clean(', '.join(vectors))[:200]})" if vectors else ""
        raise UnsupportedError(f"{place} holds vectors of {len(vectors)} names{names}; expected one")
    return next(iter(vectors.items()))
