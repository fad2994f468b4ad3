"""A corpus in Parquet or JSON lines files, in a folder, as shards.

The files are read once, to count documents and compute digests; then each worker reads the shards that it scores. So
the texts are never all in memory.
"""

import gzip
import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
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
    in_one_line,
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
        if os.stat(self.url).st_size != self.size:
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
    """True for data with a folder corpus/ instead of corpus.jsonl, and data asked for in shards."""
    folder = Path(place)
    return asked or ((folder / "corpus").is_dir() and not any(folder.glob("corpus.jsonl*")))


def read_sharded(place: str | Path, split: str, *, shard: int | None = None, progress: Progress) -> ShardedDataset:
    """Read queries and labels, and read the files of the corpus once.

    Args:
        place: folder with LAYOUT.
        split: which labels to read.
        shard: documents of a shard at most.
        progress: where progress is shown.

    Raises:
        DataError: a file is missing, unreadable or empty.
    """
    folder = Path(place).resolve()
    with in_one_line(f"{folder} cannot be read", kind=DataError):
        shards = _cut(_corpus_files(folder), shard or SHARD, progress)
        return ShardedDataset.of(folder, split, path=str(folder), shards=shards)


# --- files ----------------------------------------------------------------------------------------


def _corpus_files(folder: Path) -> list[str]:
    """The files of the corpus, sorted by name."""
    files = sorted(str(file) for file in (folder / "corpus").rglob("*") if file.name.endswith(_ENDINGS))
    files = files or [str(file) for end in _ENDINGS if (file := folder / f"corpus{end}").is_file()][:1]
    if not files:
        raise DataError(f"{folder} has no corpus; expected {LAYOUT}")
    return files


def _unpacked(url: str, at: int = 0) -> Any:
    """Open a file, unzipped, at a byte."""
    if not Path(url).is_file():
        raise DataError(f"expected a file; got {url}")
    stream: Any = gzip.open(url) if url.endswith(".gz") else open(url, "rb")  # noqa: SIM115 -- who asks closes it
    stream.seek(at)
    return stream


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
    whole: dict[str, Any] = {"url": url, "digest": digest.hexdigest(), "size": os.stat(url).st_size}
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
