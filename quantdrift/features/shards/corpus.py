"""A corpus in many files, read a part at a time: Parquet or JSON lines, in a folder or wherever fsspec reaches.

Its texts are never all in memory. The files are gone through once, to count them and take their digests; then shards
of some thousand documents are read where they are needed, by whoever scores them.
"""

import gzip
import hashlib
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from quantdrift.base.display import in_one_line
from quantdrift.base.errors import DataError
from quantdrift.base.extras import extras_named
from quantdrift.base.progress import Progress
from quantdrift.base.records import LONGEST, refuse_bomb
from quantdrift.base.text import some
from quantdrift.data import retrieval
from quantdrift.data.streamed import StreamedDataset, is_url

SHARD = 16_384
"""Documents of a shard: what a worker that is killed does again."""
LAYOUT = (
    "queries.jsonl, qrels/SPLIT.tsv for relevance metrics, and the documents in corpus/*.parquet (columns _id, text "
    "and perhaps title) or corpus/*.jsonl, which may end in .gz; or in one such file, corpus.jsonl or corpus.parquet"
)
_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
_ROWS = 4096
_digest: Callable[[], Any] = partial(hashlib.blake2b, digest_size=16)

Document = tuple[str, str, str]
"""Id, text, and text without its title."""


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

    def read(self) -> list[Document]:
        """Read the documents.

        Raises:
            DataError: a document is broken, or the file is not what it was; names file and line or row.
        """
        with in_one_line(f"{self.url} cannot be read", kind=DataError):
            if _size_of(self.url) != self.size:
                raise DataError(f"{self.url} has changed while it was read; start again")
            documents, made = list[Document](), 0
            for document in islice(self._rows() if self.url.endswith(".parquet") else self._lines(), self.n):
                made += len(document[1])
                refuse_bomb(made, self.size)
                documents.append(document)
        if len(documents) < self.n:
            end = self.row + len(documents)
            raise DataError(f"{self.url} ends after {end:,} rows; it has changed while it was read")
        retrieval.check_ids([name for name, *_ in documents], where=self.url)
        return documents

    def _lines(self) -> Iterator[Document]:
        lines = islice(retrieval.lines_of(lambda: _unpacked(self.url, self.at), self.url, first=self.row), self.n)
        for where, name, record in retrieval.read_records(self.url, '{"_id": "...", "text": "..."}', lines):
            yield name, retrieval.text_of(record, where), record["text"]

    def _rows(self) -> Iterator[Document]:
        with _unpacked(self.url) as stream:
            file, (key, *texts) = _parquet(stream, self.url)
            sizes = (file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
            starts = [0, *accumulate(sizes)]
            first = bisect_right(starts, self.row) - 1
            row, groups = starts[first], range(first, file.num_row_groups)
            for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[key, *texts]):
                for place in range(max(0, self.row - row), len(batch)):
                    where = f"{self.url}, row {row + place + 1}"
                    # a text that is kept once for many rows is unpacked row by row
                    record = batch.slice(place, 1).to_pylist()[0]
                    retrieval.check_string(record["text"], f'{where}: "text"')
                    name = retrieval.named(record[key], f'{where}: "_id"')
                    yield name, retrieval.text_of(record, where), record["text"]
                row += len(batch)


class ByPosition(Sequence[Any]):
    """What belongs to each document of a corpus; that of the shard which was read last stays in memory.

    Args:
        shards: of the corpus.
        read: reads what belongs to the documents of a shard, in their order.
    """

    def __init__(self, shards: Sequence[Shard], read: Callable[[Shard], Sequence[Any]]) -> None:
        self._shards, self._read = shards, lru_cache(maxsize=1)(read)

    def __len__(self) -> int:
        return self._shards[-1].start + self._shards[-1].n

    def __getitem__(self, position: Any) -> Any:
        shard = self._shards[bisect_right(self._shards, position, key=lambda shard: shard.start) - 1]
        return self._read(shard)[position - shard.start]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardedDataset(StreamedDataset):
    """Queries with their labels, and a corpus in shards; its fingerprint is the same whatever the size of these."""

    shards: tuple[Shard, ...]

    def document_texts(self, wanted: Collection[str]) -> dict[str, str]:
        """Go through the corpus for the texts of some documents."""
        return {name: text for shard in self.shards for name, text, _ in shard.read() if name in wanted}


def is_sharded(place: str | Path, asked: bool = False) -> bool:
    """Whether data are at a URL, or in a folder with a folder of the corpus in place of a file, or are to be cut."""
    folder = Path(place)
    return asked or is_url(place) or ((folder / "corpus").is_dir() and not any(folder.glob("corpus.jsonl*")))


def read_sharded(place: str | Path, split: str, *, shard: int | None = None, progress: Progress) -> ShardedDataset:
    """Read queries and labels, and go through the files of the corpus once.

    Args:
        place: folder or URL with LAYOUT.
        split: which labels to read.
        shard: documents of a shard, at most.
        progress: where progress is shown.

    Raises:
        DataError: a file is missing, unreadable or empty; names it.
        MissingExtraError: fsspec is not installed.
    """
    url = re.sub(r":/+", "://", str(place), count=1).rstrip("/") if is_url(place) else str(Path(place).resolve())
    with in_one_line(f"{url} cannot be read", kind=DataError):
        files = _corpus_files(url)
        with _near(url) as folder:
            query_ids, queries, qrels, notes = retrieval.read_queries(folder, split, document_ids=None)
        if queries and not isinstance(queries[0], str):
            raise DataError(f"{url}: a corpus in shards takes queries that are texts, and these are images")
        shards: list[Shard] = []
        with progress.stage("reading the corpus", len(files)) as tell:
            for file in files:
                start = shards[-1].start + shards[-1].n if shards else 0
                with in_one_line(f"{file} cannot be read", kind=DataError):
                    shards += _shards_of(file, start, shard or SHARD)
                tell(1)
    if not shards:
        raise DataError(f"{url} holds no document; expected {LAYOUT}")
    digest = _digest()
    judgements = sorted((query, doc, str(grade)) for query, grades in qrels.items() for doc, grade in grades.items())
    digests = dict.fromkeys((piece.url, piece.digest) for piece in shards)  # one for each file
    for part in (query_ids, queries, [word for line in judgements for word in line], [end for _, end in digests]):
        retrieval.feed(digest, part)
    warnings = [
        retrieval.counted("empty queries", retrieval.empty(query_ids, queries)),
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
        n_documents=shards[-1].start + shards[-1].n,
        fingerprint=digest.hexdigest(),
        warnings=(*notes, *filter(None, warnings)),
    )


# --- files ----------------------------------------------------------------------------------------


def _file_system(url: str) -> tuple[Any, str]:
    """What reaches a URL, and its path there."""
    with extras_named(needed_for="reading a corpus in shards"):
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # noqa: PLC0415 -- an optional package
    system, path = url_to_fs(url)
    return system, path


def _corpus_files(url: str) -> list[str]:
    """URLs of the corpus' files, by name."""
    system, root = _file_system(url)
    files = [file for file in sorted(system.find(f"{root}/corpus")) if file.endswith(_ENDINGS)]
    files = files or [file for ending in _ENDINGS if system.isfile(file := f"{root}/corpus{ending}")][:1]
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
    with tempfile.TemporaryDirectory(prefix="quantdrift-queries-") as folder:
        for names in ("queries.jsonl*", "qrels/*.tsv*"):
            target = Path(folder, names).parent
            target.mkdir(exist_ok=True)
            for file in system.glob(f"{root}/{names}"):
                system.get_file(file, str(target / file.rsplit("/", 1)[-1]))
        yield Path(folder)


def _unpacked(url: str, at: int = 0) -> Any:
    """The content of a file from a byte on."""
    system, path = _file_system(url)
    if not is_url(url) and not Path(url).is_file():
        raise DataError(f"{url} is no file, or a pipe or a device; expected a file")
    raw = system.open(path, "rb")
    stream = gzip.GzipFile(fileobj=raw) if url.endswith(".gz") else raw
    stream.seek(at)
    return stream


def _size_of(url: str) -> int:
    system, path = _file_system(url)
    return int(system.size(path))


def _shards_of(url: str, start: int, size: int) -> Iterator[Shard]:
    """The shards of one file, whose first document has a position in the corpus."""
    begins: list[tuple[int, int]] = []  # row and byte
    with _unpacked(url) as stream:
        if url.endswith(".parquet"):
            digest = hashlib.file_digest(stream, _digest)
            n = _parquet(stream, url)[0].metadata.num_rows
            begins = [(row, 0) for row in range(0, n, size)]
        else:
            digest, n, at = _digest(), 0, 0
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
                retrieval.refuse_long(line, f"{url}, line {number}")
                digest.update(line)
                if line.strip():
                    begins += [(number, at)] if n % size == 0 else []
                    n += 1
                at += len(line)
    whole: dict[str, Any] = {"url": url, "digest": digest.hexdigest(), "size": _size_of(url)}
    for number, (row, at) in enumerate(begins):
        done = number * size
        yield Shard(**whole, start=start + done, n=min(size, n - done), row=row, at=at)


def _parquet(stream: Any, url: str) -> tuple[Any, list[str]]:
    """A Parquet file, and its columns for the id, the text and perhaps the title."""
    import pyarrow.parquet as pq  # noqa: PLC0415 -- takes long to import

    stream.seek(0)
    there = pq.read_schema(stream).names
    keys = [name for name in ("_id", "id") if name in there]
    if not keys or "text" not in there:
        raise DataError(f"{url}: expected the columns _id, text and perhaps title; got {some(there)}")
    texts = [name for name in ("text", "title") if name in there]
    stream.seek(0)
    return pq.ParquetFile(stream, read_dictionary=texts), [keys[0], *texts]
