"""A corpus in Parquet or JSON lines files, in a folder or at a URL that fsspec reads, as shards.

The files are read once, to count documents and compute digests; then each worker reads the shards that it scores. So
the texts are never all in memory.
"""

import gzip
import hashlib
import os
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from quantdrift.parts import (
    DataError,
    Document,
    Progress,
    Shard,
    StreamedDataset,
    Workers,
    document_of,
    extras_named,
    in_one_line,
    is_url,
    json_documents,
    raw_lines,
)
from quantdrift_shards.workers import in_processes

SHARD = 16_384
"""Documents of a shard, which a killed worker repeats."""
LAYOUT = (
    "queries.jsonl, qrels/SPLIT.tsv for relevance metrics, and the documents in corpus/*.parquet (columns _id, text "
    "and perhaps title) or corpus/*.jsonl, which may end in .gz; or in one such file, corpus.jsonl or corpus.parquet"
)
_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
_ROWS, _NAMED = 4096, 4
_digest: Callable[[], Any] = partial(hashlib.blake2b, digest_size=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShard(Shard):
    """Consecutive documents of one file: JSON lines, gzipped or not, or Parquet.

    Attributes:
        at: for JSON lines, the byte at which the first document begins, unzipped.
    """

    at: int = 0

    def documents(self) -> Iterator[Document]:
        """Yield the documents; refuse a file that has changed."""
        if _size_of(self.url) != self.size:
            raise DataError(f"{self.url} has changed while it was read; start again")
        if self.url.endswith(".parquet"):
            yield from self._rows()
        else:
            yield from json_documents(lambda: _unpacked(self.url, self.at), self.url, first=self.row)

    def _rows(self) -> Iterator[Document]:
        with _unpacked(self.url) as stream:
            file, (key, *texts) = _parquet(stream, self.url)
            sizes = (file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
            starts = [0, *accumulate(sizes)]
            first = bisect_right(starts, self.row) - 1
            row, groups = starts[first], range(first, file.num_row_groups)
            for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[key, *texts]):
                for place in range(max(0, self.row - row), len(batch)):
                    # row by row, as Parquet may store a text once for many rows
                    record = batch.slice(place, 1).to_pylist()[0]
                    yield document_of({**record, "_id": record[key]}, f"{self.url}, row {row + place + 1}")
                row += len(batch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardedDataset(StreamedDataset):
    """Queries with their labels, and a corpus in files."""

    def workers(self, n: int | None) -> Workers | None:
        """Return the processes that score the shards; None for this process alone."""
        return partial(in_processes, n=n, threads=max(1, (os.cpu_count() or 1) // n)) if n not in {None, 1} else None


def is_sharded(place: str | Path, asked: bool = False) -> bool:
    """True for data at a URL, data with a folder corpus/ instead of corpus.jsonl, and data asked for in shards."""
    folder = Path(place)
    return asked or is_url(place) or ((folder / "corpus").is_dir() and not any(folder.glob("corpus.jsonl*")))


def read_sharded(place: str | Path, split: str, *, shard: int | None = None, progress: Progress) -> ShardedDataset:
    """Read queries and labels, and read the files of the corpus once.

    Args:
        place: folder or URL with LAYOUT.
        split: which labels to read.
        shard: documents of a shard at most.
        progress: where progress is shown.

    Raises:
        DataError: a file is missing, unreadable or empty.
        MissingExtraError: fsspec is not installed.
    """
    url = re.sub(r":/+", "://", str(place), count=1).rstrip("/") if is_url(place) else str(Path(place).resolve())
    with in_one_line(f"{url} cannot be read", kind=DataError):
        shards = _cut(_corpus_files(url), shard or SHARD, progress)
        with _near(url) as folder:
            return ShardedDataset.of(folder, split, path=url, shards=shards)


# --- files ----------------------------------------------------------------------------------------


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    with extras_named(needed_for="reading a corpus in shards"):
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # noqa: PLC0415 -- an optional package
    system, path = url_to_fs(url)
    return system, path


def _corpus_files(url: str) -> list[str]:
    """URLs of the files of the corpus, sorted by name."""
    system, root = _file_system(url)
    files = [file for file in sorted(system.find(f"{root}/corpus")) if file.endswith(_ENDINGS)]
    files = files or [file for ending in _ENDINGS if system.isfile(file := f"{root}/corpus{ending}")][:1]
    if not files:
        raise DataError(f"{url} has no corpus; expected {LAYOUT}")
    return [str(system.unstrip_protocol(file)) if is_url(url) else file for file in files]


@contextmanager
def _near(url: str) -> Iterator[Path]:
    """A local folder with the queries and labels, which are small."""
    if not is_url(url):
        yield Path(url)
        return
    system, root = _file_system(url)
    with tempfile.TemporaryDirectory(prefix="quantdrift-queries-") as folder:
        for names in ("queries.jsonl*", "qrels/*.tsv*"):
            target = Path(folder, names).parent
            target.mkdir(exist_ok=True)
            for file in system.glob(f"{root}/{names}"):
                system.get_file(file, str(target / file.rsplit("/", 1)[-1]))
        yield Path(folder)


def _unpacked(url: str, at: int = 0) -> Any:
    """Open a file, unzipped, at a byte."""
    system, path = _file_system(url)
    if not is_url(url) and not Path(url).is_file():
        raise DataError(f"expected a file; got {url}")
    raw = system.open(path, "rb")
    stream = gzip.GzipFile(fileobj=raw) if url.endswith(".gz") else raw
    stream.seek(at)
    return stream


def _size_of(url: str) -> int:
    system, path = _file_system(url)
    return int(system.size(path))


def _cut(files: Sequence[str], size: int, progress: Progress) -> Iterator[FileShard]:
    """Yield the shards of all files; each file is read when its first shard is needed."""
    start = 0
    with progress.stage("reading the corpus", len(files)) as tell:
        for file in files:
            with in_one_line(f"{file} cannot be read", kind=DataError):
                shards = list(_shards_of(file, start, size))
            yield from shards
            start += sum(shard.n for shard in shards)
            tell(1)


def _shards_of(url: str, start: int, size: int) -> Iterator[FileShard]:
    """Yield the shards of one file; `start` is the position of its first document in the corpus."""
    begins: list[tuple[int, int]] = []  # row and byte
    with _unpacked(url) as stream:
        if url.endswith(".parquet"):
            digest = hashlib.file_digest(stream, _digest)
            n = _parquet(stream, url)[0].metadata.num_rows
            begins = [(row, 0) for row in range(0, n, size)]
        else:
            digest, n, at = _digest(), 0, 0
            for number, line in raw_lines(stream, url):
                digest.update(line)
                if line.strip():
                    begins += [(number, at)] if n % size == 0 else []
                    n += 1
                at += len(line)
    whole: dict[str, Any] = {"url": url, "digest": digest.hexdigest(), "size": _size_of(url)}
    for number, (row, at) in enumerate(begins):
        done = number * size
        yield FileShard(**whole, start=start + done, n=min(size, n - done), row=row, at=at)


def _parquet(stream: Any, url: str) -> tuple[Any, list[str]]:
    """Open a Parquet file, and return its columns for the id, the text and perhaps the title."""
    import pyarrow.parquet as pq  # noqa: PLC0415 -- takes long to import

    stream.seek(0)
    there = pq.read_schema(stream).names
    keys = [name for name in ("_id", "id") if name in there]
    if not keys or "text" not in there:
        raise DataError(f"{url}: expected the columns _id, text and perhaps title; got {', '.join(there[:_NAMED])}")
    texts = [name for name in ("text", "title") if name in there]
    stream.seek(0)
    return pq.ParquetFile(stream, read_dictionary=texts), [keys[0], *texts]
