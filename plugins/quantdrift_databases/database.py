"""A vector database as an index, in a folder of its own; it is searched query by query, and its answers are checked."""

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
"""Range of the documents that an engine may be asked for."""
_LEVEL = 1e-5
"""Largest rise of a score over the one before it that counts as rounding."""
_PROBED = 4
"""Searches that test whether an exhaustive search returns all documents."""
_TOLD = 3
"""Lines of an engine's log that become notes at most."""
_PRINTED = 1 << 16
"""Bytes of its output that are read at most."""


class Database(SearchIndex):
    """An index in a vector database, whose ids are the positions of the documents.

    Any error of the library becomes an UnsupportedError of one line.

    Attributes:
        package: name of the Python package.
        library: name and version for run.json; by default those of the package.
        modules: names of its loggers.
        varies: why its answers differ from time to time; empty if they do not.
        rescores: whether it rescores the documents found by codes with the vectors themselves.
        opened: the stack of what to close before the folder is removed.
        asked: the order's numbers for searching, without the limit.
    """

    package: str
    modules: tuple[str, ...]
    library = ""
    varies = ""
    rescores = False

    def __init__(self, order: Order) -> None:
        self.order, self.n_docs = order, len(order.documents)
        self.lossless = self.lossless and order.stored.startswith("float32")
        self.asked = dict(order.asked)
        self.returns = self.asked.pop("limit", DEFAULT_LIMIT)
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
        """Build the index of the order's documents in an empty folder, with their positions as ids."""
        raise NotImplementedError

    def ask(self, query: NDArray[np.float32], k: int, *, exhaustive: bool = False) -> Hits:
        """Search for the k nearest documents of a query, float32 [dim].

        An exhaustive search scores as many documents by their codes as the engine allows.
        """
        raise NotImplementedError

    def measured(self, folder: Path) -> int:
        """Bytes on disk, without the holes of sparse files."""
        return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())

    def close(self) -> None:
        """Close everything, and remove the folder."""
        self.opened.close()

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]  # it grows with every search
        """Remarks for the run."""
        name = f"+index={self.order.name}"
        why = "rescores by itself" if self.rescores else "does not score every document by its codes"
        notes = {
            f"{name} was asked for {self.returns} documents a query; +search=limit=N asks for others": True,
            f"{name} gives different answers from time to time: {self.varies}": self.varies,
            f"{name} {why}, so that compression error and search recall are one number": not self.known,
            f"{name} found fewer documents than asked for in {self._short:,} searches": self._short,
            **{f"{self.package} says: {line}": True for line in list(dict.fromkeys(self._said))[:_TOLD]},
        }
        return tuple(note for note, holds in notes.items() if holds)

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Search, and check the answers."""
        wanted = min(k, self.n_docs)
        found = [self._hits(query, wanted) for query in queries]
        self._short += sum(int(positions[-1] < 0) for positions, _ in found)
        positions, scores = (np.stack(part) for part in zip(*found, strict=True))
        return Found(positions, scores)

    def scores(self, queries: NDArray[Any]) -> NDArray[np.float32]:
        """Scores of all documents by their codes, from exhaustive searches."""
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
        """Describe the index for run.json; the bytes on disk include the vectors."""
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
        # if scores are not in the order of the answer, it was not ranked by them
        return all((positions >= 0).all() and (np.diff(scores) <= _LEVEL).all() for positions, scores in found)

    def _refusing(self, what: str) -> AbstractContextManager[None]:
        return refusing(f"+index={self.order.name}: {self.package}", what)


def checked(
    ids: Sequence[Any], scores: Sequence[float] | NDArray[Any], n_docs: int, k: int, *, what: str
) -> tuple[Any, Any]:
    """Check one answer, and return positions int64 [k], filled up with -1, and scores float32 [k].

    Raises:
        UnsupportedError: there are more than k ids, an id is not one of 0 to n_docs - 1 or occurs twice, or a score is
            not finite.
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
        with np.errstate(over="ignore"):  # checked below
            positions[:n], values[:n] = ids, scores
        if not np.isfinite(values[:n]).all():
            fault = "a score that is no finite number"
    if fault:
        raise UnsupportedError(f"{what} cannot be used: it answered a query with {fault}")
    return positions, values


def nearness(distances: Any, *, euclidean: bool) -> NDArray[Any]:
    """Scores from distances of an engine: minus the root of a squared distance, or 1 minus one of cosine or product."""
    numbers: NDArray[np.float32] = np.asarray(distances, dtype=np.float32)
    return -np.sqrt(np.maximum(numbers, 0)) if euclidean else 1 - numbers


@contextmanager
def refusing(who: str, what: str) -> Iterator[None]:
    """A block in which an error of a library becomes an UnsupportedError of one line, as do the panics of Rust."""
    try:
        yield
    except (QuantDriftError, ModuleNotFoundError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = clean(" ".join(str(error).split()))[:300]
        if isinstance(error, LookupError | TypeError | JSONDecodeError):  # an answer of another form
            reason = f"its answer has an unknown form ({type(error).__name__}: {reason})"
        raise UnsupportedError(f"{who} refuses {what}: {reason}") from error


@contextmanager
def quietly(said: list[str]) -> Iterator[None]:
    """A block whose warnings and output, also that of native code, are added to `said`.

    Deprecation warnings and the lines of our own progress bar are left out.
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
