"""A vector database as an index: filled in chunks in a folder of its own, asked query by query, its answers checked."""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from json import JSONDecodeError
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import (
    DEFAULT_LIMIT,
    Found,
    Order,
    QuantDriftError,
    SearchIndex,
    UnsupportedError,
    captured_logs,
    clean,
)

Hits = tuple[Sequence[Any], Sequence[float] | NDArray[Any]]
"""Ids and scores of one query, best first; larger is nearer."""
LIMIT = (1, 10_000)
"""Documents that an engine may be asked for, at the least and at the most."""
_LEVEL = 1e-5
"""How much a score may be above the one before it, by rounding."""
_PROBED = 4
"""Documents that are searched for, to see whether all can be had."""
_TOLD = 3
"""Lines of an engine's log that become notes."""
_PRINTED = 1 << 16
"""Bytes that are read of what it prints."""


class Database(SearchIndex):
    """An index that another program keeps, as positions of the documents.

    Its methods may raise whatever the library raises, which becomes an UnsupportedError of one line.

    Attributes:
        package: that does it, for the version.
        library: what run.json says of it; the package and its version unless `fill` knows better.
        modules: names under which its parts log.
        varies: why it does not answer the same every time; empty where it does.
        rescores: whether it orders what it found by its codes by the vectors themselves.
        opened: takes what has to be closed before the folder goes.
    """

    package: str
    modules: tuple[str, ...]
    library = ""
    varies = ""
    rescores = False

    def __init__(self, order: Order) -> None:
        self.order, self.n_docs = order, len(order.documents)
        self.lossless = self.lossless and order.stored.startswith("float32")
        self.returns = order.asked.get("limit", DEFAULT_LIMIT)
        self._short = 0
        self._said: list[str] = []
        self.opened = ExitStack()
        try:
            folder = self.opened.enter_context(TemporaryDirectory(prefix="quantdrift-", ignore_cleanup_errors=True))
            self.opened.enter_context(captured_logs(self.modules, self._hear))
            with self._refusing("to build it"), quietly(self._said):
                self.fill(Path(folder))
            self.library = self.library or f"{self.package} {version(self.package)}"
            self.size = self.measured(Path(folder))
            self.known = self.lossless or (not self.rescores and self._can_be_asked_for_all())
        except BaseException:
            self.close()
            raise

    def _hear(self, record: logging.LogRecord) -> None:
        self._said.extend(clean(line)[:200] for line in record.getMessage().splitlines()[:1])

    def fill(self, folder: Path) -> None:
        """Build the index of the order's documents, known by their positions, in an empty folder."""
        raise NotImplementedError

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """The k nearest documents of a query float32 [dim], as a search of this kind finds them.

        An exhaustive one scores as many by their codes as the engine lets it.
        """
        raise NotImplementedError

    def measured(self, folder: Path) -> int:
        """Bytes that it takes on disk: a sparse file counts for what is written."""
        return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())

    def close(self) -> None:
        """Close what is open, and remove the folder."""
        self.opened.close()

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]  # it grows with every search
        """What a run should say."""
        name = f"+index={self.order.name}"
        why = "rescores by itself" if self.rescores else "does not score every document by its codes"
        notes = {
            f"{name} was asked for {self.returns} documents a query; +search=limit=N asks for others": True,
            f"{name} does not answer the same every time: {self.varies}": self.varies,
            f"{name} {why}, so that the loss of its codes and that of its search are one number": not self.known,
            f"{name} found fewer documents than asked for in {self._short:,} searches": self._short,
            **{f"{self.package} says: {line}": True for line in list(dict.fromkeys(self._said))[:_TOLD]},
        }
        return tuple(note for note, holds in notes.items() if holds)

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """What the database finds, checked."""
        wanted = min(k, self.n_docs)
        found = [self._hits(query, wanted) for query in queries]
        self._short += sum(int(positions[-1] < 0) for positions, _ in found)
        positions, scores = (np.stack(part) for part in zip(*found, strict=True))
        return Found(positions, scores)

    def scores(self, queries: NDArray[Any]) -> NDArray[np.float32]:
        """Scores of all documents by their codes, from an exhaustive search."""
        rows = np.empty((len(queries), self.n_docs), dtype=np.float32)
        for row, query in zip(rows, queries, strict=True):
            positions, scores = self._hits(query, self.n_docs, exhaustive=True)
            if (positions < 0).any():
                raise UnsupportedError(
                    f"+index={self.order.name} scored every document of some queries and not of others; expected "
                    "another +index="
                )
            row[positions] = scores
        return rows

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json; bytes are those on disk, with the vectors that it was given."""
        return {
            "name": self.order.name,
            "search": self.order.search,
            "library": self.library,
            "bytes": self.size,
            "stored": self.order.stored,
        }

    def _hits(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> tuple[Any, Any]:
        with self._refusing("a search"):
            ids, scores = self.ask(query, k, exhaustive=exhaustive)
        return checked(ids, scores, self.n_docs, k, what=f"+index={self.order.name}")

    def _can_be_asked_for_all(self) -> bool:
        try:
            found = [self._hits(query, self.n_docs, exhaustive=True) for query in self.order.documents[:_PROBED]]
        except UnsupportedError:
            return False
        # scores that are not in the order of the answer are no scores of a ranking
        return all((positions >= 0).all() and (np.diff(scores) <= _LEVEL).all() for positions, scores in found)

    def _refusing(self, what: str) -> AbstractContextManager[None]:
        return refusing(f"+index={self.order.name}: {self.package}", what)


def checked(
    ids: Sequence[Any], scores: Sequence[float] | NDArray[Any], n_docs: int, k: int, *, what: str
) -> tuple[Any, Any]:
    """Positions int64 [k], -1 where there are fewer, and scores float32 [k] of one answer.

    Raises:
        UnsupportedError: an id is none of 0 to n_docs - 1 or there twice, there are more than k, or a score is no
            finite number.
    """
    fault, n = "", len(ids)
    positions, values = np.full(k, -1, dtype=np.int64), np.full(k, np.nan, dtype=np.float32)
    if n > k or n != len(scores):
        fault = f"{n:,} ids and {len(scores):,} scores, where {k:,} were asked for"
    elif any(isinstance(name, bool) or not isinstance(name, int | np.integer) for name in ids):
        fault = "an id that is no number"
    elif n and not 0 <= min(ids) <= max(ids) < n_docs:
        fault = f"an id that none of its {n_docs:,} documents has"
    elif len({*ids}) < n:
        fault = "a document twice"
    else:
        with np.errstate(over="ignore"):  # told below
            positions[:n], values[:n] = ids, scores
        if not np.isfinite(values[:n]).all():
            fault = "a score that is no finite number"
    if fault:
        raise UnsupportedError(f"{what} cannot be used: it answered a query with {fault}")
    return positions, values


def nearness(distances: Any, *, euclidean: bool) -> NDArray[Any]:
    """Scores of distances as engines give them: minus the root of a squared one, or 1 - that of an angle or product."""
    numbers: NDArray[np.float32] = np.asarray(distances, dtype=np.float32)
    return -np.sqrt(np.maximum(numbers, 0)) if euclidean else 1 - numbers


@contextmanager
def refusing(who: str, what: str) -> Iterator[None]:
    """Inside, an error of a library is an UnsupportedError of one line; Rust's own come as no Exception."""
    try:
        yield
    except (QuantDriftError, ModuleNotFoundError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = clean(" ".join(str(error).split()))[:300]
        if isinstance(error, LookupError | TypeError | JSONDecodeError):  # of what reads its answers
            reason = f"its answer has a form that is not known here ({type(error).__name__}: {reason})"
        raise UnsupportedError(f"{who} refuses {what}: {reason}") from error


@contextmanager
def quietly(said: list[str]) -> Iterator[None]:
    """Inside, warnings are kept, and whatever is printed, also by native code.

    Left out are what will be deprecated, and the lines of a progress bar that is shown meanwhile.
    """
    known = (DeprecationWarning, PendingDeprecationWarning, ResourceWarning)
    with TemporaryFile() as printed, warnings.catch_warnings(record=True) as caught:
        before = {stream: os.dup(stream) for stream in (1, 2)}
        try:
            for stream in before:
                os.dup2(printed.fileno(), stream)
            yield
        finally:
            for stream, old in before.items():
                os.dup2(old, stream)
                os.close(old)
        printed.seek(0)
        lines = printed.read(_PRINTED).decode("utf-8", "replace").splitlines()
    said.extend(clean(line)[:200] for line in lines if line.strip() and "\x1b" not in line)
    said.extend(clean(str(warning.message))[:200] for warning in caught if not issubclass(warning.category, known))
