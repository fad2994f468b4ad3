"""What an engine of searches says of itself, and what it is given to build an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantdrift.base.errors import MissingExtraError
from quantdrift.base.registry import Package, Registry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantdrift.engine.scoring.indexes import SearchIndex


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """An index that is wanted.

    Attributes:
        name: as `+index=` says it, with the engine.
        search: as `+search=` says it; None if it does not.
        seed: of what is drawn; None for the engine's own.
        documents: float32 [n_docs, dim], what is stored: normalized where similarity is cosine; of bytes and bits their
            codes, a bit as -1 or 1.
        similarity: "cosine", "dot" or "euclidean".
        precision: that of `+emb=`; None for float32.
    """

    name: str
    search: str | None = None
    seed: int | None = None
    documents: NDArray[Any]
    similarity: str
    precision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine, told without importing its library.

    Attributes:
        what: in words.
        build: makes the index that is wanted; UnsupportedError where it cannot.
        packages: that it stands on, whose extra is told where one is missing.
        reads: whether what `+index=` says is one of its indexes.
        check: raises where what `+index=` and `+search=` say is none that it can make, whatever the documents.
        place: in the order in which engines are asked, ascending.
    """

    what: str
    build: Callable[[Order], SearchIndex]
    packages: tuple[Package, ...]
    reads: Callable[[str], bool]
    check: Callable[[str, str | None], None] = lambda *_: None
    place: int = 50

    @contextmanager
    def installed(self, needed_for: str) -> Iterator[None]:
        """Inside, a package of the engine that is not installed is an error that names the extra."""
        try:
            yield
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            package = next((package for package in self.packages if package.module == module), None)
            if package is None:
                raise
            raise MissingExtraError(package.name, package.extra, needed_for=needed_for) from error


ENGINES: Registry[Engine] = Registry(
    "quantdrift.search_engines", package="quantdrift.features.index.engines", attribute="ENGINE", kind=Engine
)
"""All engines by name, in the order in which they are asked."""


def engine_of(index: str) -> Engine:
    """The engine that reads what `+index=` says; the last one, faiss, reads whatever the others do not."""
    return next(engine for engine in ENGINES.values() if engine.reads(index))
