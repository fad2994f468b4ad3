"""A corpus in many files, read a part at a time: Parquet or JSON lines, in a folder or wherever fsspec reaches.

Its texts are never all in memory. The files are gone through once, to count them and take their digests; then shards
of some thousand documents are read where they are needed, by whoever scores them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError, MissingExtraError
from quantdrift.base.progress import Progress
from quantdrift.base.records import LONGEST, refuse_bomb
from quantdrift.base.text import some
from quantdrift.data.retrieval import (
    counted,
    empty,
    feed,
    lines_of,
    named,
    read_queries,
    records_of,
    refuse_long,
    text_of,
)

SHARD = 16_384
"""Documents of a shard: what a worker that is killed does again."""
LAYOUT = (
    "queries.jsonl, qrels/SPLIT.tsv for relevance metrics, and the documents in corpus/*.parquet (columns _id, text "
    "and perhaps title) or corpus/*.jsonl, which may end in .gz; or in one such file, corpus.jsonl or corpus.parquet"
)
_FORMS = re.compile(r"\.(?:(?P<parquet>parquet)|jsonl(?:\.gz)?)$")
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Of a URL; one that went through a path has one slash."""
_ROWS = 4096
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Documents that follow each other in one file.

    Attributes:
        url: of the file.
        digest: of the whole file, unpacked.
        size: of the file in bytes, as it lies there.
        start: position of the first document in the corpus.
        n: how many there are.
        row: of the first document in the file; of JSON lines, its line.
        at: byte at which that line begins, unpacked.
    """

    url: str
    digest: str
    size: int
    start: int
    n: int
    row: int
    at: int = 0

    def read(self) -> tuple[list[str], list[str]]:
        """Names and texts.

        Raises:
            DataError: a document is broken, or the file is not what it was; names file and line or row.
        """
        with _refusing(self.url):
            if _size_of(self.url) != self.size:
                raise DataError(f"{self.url} has changed while it was read; start again")
            found, made = [], 0
            for name, text in islice(self._rows() if _is_parquet(self.url) else self._lines(), self.n):
                made += len(text)
                refuse_bomb(made, self.size)
                found.append((name, text))
        if len(found) < self.n:
            raise DataError(f"{self.url} ends after {self.row + len(found):,} rows; it has changed while it was read")
        names = [name for name, _ in found]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise DataError(f"{self.url}: every id must be unique; twice there is {some(twice)}")
        return names, [text for _, text in found]

    def _lines(self) -> Iterator[tuple[str, str]]:
        def opened() -> Any:
            stream = _unpacked(self.url)
            stream.seek(self.at)
            return stream

        lines = islice(lines_of(opened, self.url, first=self.row), self.n)
        for where, name, record in records_of(lines, self.url, '{"_id": "...", "text": "..."}'):
            yield name, text_of(record, where)

    def _rows(self) -> Iterator[tuple[str, str]]:
        import pyarrow.parquet as pq  # noqa: PLC0415 -- takes long to import

        with _unpacked(self.url) as stream:
            # texts that are kept once for many rows are unpacked row by row
            there = pq.read_schema(stream).names
            stream.seek(0)
            file = pq.ParquetFile(stream, read_dictionary=[name for name in ("text", "title") if name in there])
            ends = np.cumsum([file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)])
            first, last = (int(np.searchsorted(ends, row, side="right")) for row in (self.row, self.row + self.n - 1))
            row = int(ends[first - 1]) if first else 0
            columns = _columns(file, self.url)
            for batch in file.iter_batches(_ROWS, row_groups=range(first, last + 1), columns=list(columns.values())):
                skip, row = max(0, self.row - row), row + len(batch)
                if skip >= len(batch):
                    continue
                batch = batch.slice(skip)  # noqa: PLW2901 -- what comes before is another shard's
                values = {key: batch.column(name) for key, name in columns.items()}
                for at in range(len(batch)):
                    where = f"{self.url}, row {row - len(batch) + 1 + at}"
                    own = {key: column[at].as_py() for key, column in values.items()}
                    if not isinstance(own["text"], str):
                        raise DataError(f'{where}: "text" must be a string; got {type(own["text"]).__name__}')
                    yield named(own["_id"], f'{where}: "_id"'), text_of(own, where)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardedDataset:
    """Queries with their labels, and a corpus in shards.

    Attributes:
        name: what reports call it.
        path: folder or URL that it was read from.
        split: the split that the labels belong to.
        query_ids: one unique id a query.
        queries: their texts.
        qrels: query id to document id to grade.
        shards: of the corpus, in its order.
        fingerprint: digest of queries, labels and what the corpus' files hold, whatever the size of shards.
        warnings: what is worth telling, one sentence each.
    """

    name: str
    path: str
    split: str
    query_ids: tuple[str, ...]
    queries: Sequence[str]
    qrels: Mapping[str, Mapping[str, int]]
    shards: tuple[Shard, ...]
    fingerprint: str
    warnings: tuple[str, ...] = ()

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return self.shards[-1].start + self.shards[-1].n


@dataclass(slots=True)
class Documents:
    """Documents of a corpus by their positions; the shard that was read last is kept in memory."""

    shards: Sequence[Shard]
    _number: int = -1
    _last: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))

    def of(self, rows: NDArray[np.int64]) -> tuple[list[str], list[str]]:
        """Names and texts of some positions, in the order given; every shard is read once."""
        starts = [shard.start for shard in self.shards]
        found: dict[int, tuple[str, str]] = {}
        for row in np.unique(rows).tolist():
            number = bisect_right(starts, row) - 1
            if number != self._number:
                self._number, self._last = number, self.shards[number].read()
            at = row - starts[number]
            found[row] = self._last[0][at], self._last[1][at]
        return [found[row][0] for row in rows.tolist()], [found[row][1] for row in rows.tolist()]


def is_url(place: str | Path) -> bool:
    """Whether data lie elsewhere than in a folder here."""
    return bool(_URL.match(str(place)))


def is_sharded(place: str | Path) -> bool:
    """Whether data are at a URL, or in a folder with a folder of the corpus in place of a file."""
    folder = Path(place)
    return is_url(place) or ((folder / "corpus").is_dir() and not any(folder.glob("corpus.jsonl*")))


def read_sharded(place: str | Path, split: str = "test", *, size: int = SHARD, progress: Progress) -> ShardedDataset:
    """Read queries and labels, and go through the files of the corpus once.

    Args:
        place: folder or URL with LAYOUT.
        split: which labels to read.
        size: documents of a shard, at most.
        progress: where progress is shown.

    Raises:
        DataError: a file is missing, unreadable or empty; names it.
        MissingExtraError: fsspec is not installed.
    """
    url = str(Path(place).resolve())
    if is_url(place):
        url = re.sub(r":/+", "://", str(place), count=1).rstrip("/")
    with _refusing(url):
        files = _corpus_files(url)
        with _near(url) as folder:
            query_ids, queries, qrels, notes = read_queries(folder, split, known=None)
        if queries and not isinstance(queries[0], str):
            raise DataError(f"{url}: a corpus in shards takes queries that are texts, and these are images")
        shards: list[Shard] = []
        with progress.stage("reading the corpus", len(files)) as tell:
            for file in files:
                start = shards[-1].start + shards[-1].n if shards else 0
                with _refusing(file):
                    shards += _shards_of(file, start, size)
                tell(1)
    if not shards:
        raise DataError(f"{url} holds no document; expected {LAYOUT}")
    digest = hashlib.blake2b(digest_size=16)
    judgements = sorted((query, doc, str(grade)) for query, grades in qrels.items() for doc, grade in grades.items())
    of_files = dict.fromkeys((shard.url, shard.digest) for shard in shards)
    for part in (query_ids, queries, [one for judged in judgements for one in judged], [one for _, one in of_files]):
        feed(digest, part)
    told = [
        counted("empty queries", empty(query_ids, queries)),
        counted("queries without a judgement", [name for name in query_ids if qrels and not qrels.get(name)]),
        "" if qrels else "no relevance labels: drift is measured, relevance metrics are not",
    ]
    return ShardedDataset(
        name=url.rsplit("/", 1)[-1],
        path=url,
        split=split,
        query_ids=query_ids,
        queries=queries,
        qrels=qrels,
        shards=tuple(shards),
        fingerprint=digest.hexdigest(),
        warnings=(*notes, *filter(None, told)),
    )


# --- files ----------------------------------------------------------------------------------------


def _file_system(url: str) -> tuple[Any, str]:
    """What reaches a URL, and its path there."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # noqa: PLC0415 -- an optional package
    except ImportError as error:
        raise MissingExtraError("fsspec", "models", needed_for="reading a corpus in shards") from error
    found: tuple[Any, str] = url_to_fs(url)
    return found


@contextmanager
def _refusing(url: str) -> Iterator[None]:
    """Inside, what a file system or Arrow says of a file is told in one line."""
    try:
        yield
    except (DataError, MissingExtraError, MemoryError):
        raise
    except ImportError as error:  # of the package for that protocol
        raise DataError(f"{url} cannot be reached: {error}") from error
    except Exception as error:  # every file system has errors of its own
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{url} cannot be read: {told[0]}") from error


def _corpus_files(url: str) -> list[str]:
    """URLs of the corpus' files, by name."""
    system, root = _file_system(url)
    found = sorted(system.find(f"{root}/corpus")) if system.isdir(f"{root}/corpus") else []
    files = [file for file in found if _FORMS.search(file)]
    names = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.parquet")
    files = files or [f"{root}/{name}" for name in names if system.isfile(f"{root}/{name}")][:1]
    if not files:
        raise DataError(f"{url} has no corpus; expected {LAYOUT}")
    return [str(system.unstrip_protocol(file)) if is_url(url) else file for file in files]


@contextmanager
def _near(url: str) -> Iterator[Path]:
    """A folder here with the queries and labels, which are small."""
    if not is_url(url):
        yield Path(url)
        return
    system, root = _file_system(url)
    with tempfile.TemporaryDirectory(prefix="quantdrift-queries-") as name:
        folder = Path(name)
        (folder / "qrels").mkdir()
        wanted = [*system.glob(f"{root}/queries.jsonl*"), *system.glob(f"{root}/qrels/*.tsv*")]
        for file in wanted:
            last = file.rsplit("/", 1)[-1]
            system.get_file(file, str(folder / "qrels" / last if ".tsv" in last else folder / last))
        yield folder


def _is_parquet(url: str) -> bool:
    form = _FORMS.search(url)
    return form is not None and form["parquet"] is not None


def _unpacked(url: str) -> Any:
    system, path = _file_system(url)
    if not is_url(url) and not Path(url).is_file():
        raise DataError(f"{url} is no file, or a pipe or a device; expected a file")
    stream = system.open(path, "rb")
    return gzip.open(stream) if url.endswith(".gz") else stream


def _size_of(url: str) -> int:
    system, path = _file_system(url)
    return int(system.size(path))


def _shards_of(url: str, start: int, size: int) -> Iterator[Shard]:
    """The shards of one file, whose first document has a position in the corpus."""
    digest, begins = hashlib.blake2b(digest_size=16), [(0, 0)]
    with _unpacked(url) as stream:
        if _is_parquet(url):
            import pyarrow.parquet as pq  # noqa: PLC0415 -- takes long to import

            while block := stream.read(_BLOCK):
                digest.update(block)
            stream.seek(0)
            file = pq.ParquetFile(stream)
            _columns(file, url)
            n = file.metadata.num_rows
            begins = [(row, 0) for row in range(0, n, size)]
        else:
            n, begins = _counted_lines(stream, url, size, digest.update)
    for number, (row, at) in enumerate(begins):
        yield Shard(
            url=url,
            digest=digest.hexdigest(),
            size=_size_of(url),
            start=start + number * size,
            n=min(size, n - number * size),
            row=row,
            at=at,
        )


def _counted_lines(
    stream: io.BufferedIOBase, url: str, size: int, feed_digest: Callable[[bytes], None]
) -> tuple[int, list[tuple[int, int]]]:
    """How many lines are not blank, and of every `size`-th of them its number, from 1, and where it begins."""
    n, at, begins = 0, 0, []
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
        refuse_long(line, f"{url}, line {number}")
        feed_digest(line)
        if line.strip():
            if n % size == 0:
                begins.append((number, at))
            n += 1
        at += len(line)
    return n, begins


def _columns(file: Any, url: str) -> dict[str, str]:
    """Key of a document to the column of a Parquet file that has it."""
    there = file.schema_arrow.names
    name = next((one for one in ("_id", "id") if one in there), None)
    if name is None or "text" not in there:
        raise DataError(f"{url}: expected the columns _id, text and perhaps title; got {some(there)}")
    return {"_id": name, "text": "text", **({"title": "title"} if "title" in there else {})}
