"""Data that are never in memory as a whole: their documents come in shards, each read where it is scored.

Each kind of such data is an entry point, also of another package.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

from quantdrift.base.display import in_one_line
from quantdrift.base.errors import DataError
from quantdrift.base.progress import Progress
from quantdrift.base.records import refuse_bomb
from quantdrift.base.registry import Registry, imported
from quantdrift.data import retrieval

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""The start of a URL; one that was made a Path has a single slash."""
Document = tuple[str, str, str]
"""Id, text, and text without its title."""
Score = Callable[[Any], bytes]
"""Scores a shard and returns its result."""
Workers = Callable[[Callable[..., Score], Sequence[Any]], Iterator[tuple[Any, bytes]]]
"""Hands each shard to one of several workers, and yields it with its result as soon as it is scored.

Each worker calls the first argument once to load its model, with the keywords `number`, of the worker on its machine,
and `threads`, for torch.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Consecutive documents of a file or a table; a subclass reads them.

    Attributes:
        url: URL of the file or table.
        digest: digest of the whole file or table.
        size: its stored size in bytes.
        start: position of the first document in the corpus.
        n: number of documents.
        row: number of the first document in the file or table.
    """

    url: str
    digest: str
    size: int
    start: int
    n: int
    row: int

    def documents(self) -> Iterator[Document]:
        """Yield the documents from the first; only `n` are taken."""
        raise NotImplementedError

    def read(self) -> list[Document]:
        """Read the documents.

        Raises:
            DataError: a document is broken, or there are fewer than `n`; names file and line or row.
        """
        with in_one_line(f"{self.url} cannot be read", kind=DataError):
            documents, made = list[Document](), 0
            for document in islice(self.documents(), self.n):
                made += len(document[1])
                refuse_bomb(made, self.size)
                documents.append(document)
        if len(documents) < self.n:
            end = self.row + len(documents)
            raise DataError(f"{self.url} ends after {end:,} rows; it was changed during the run")
        retrieval.check_ids([name for name, *_ in documents], where=self.url)
        return documents


class ByPosition(Sequence[Any]):
    """A sequence with one value for each document of a corpus; it keeps the shard that was read last in memory.

    Args:
        shards: the shards of the corpus.
        read: reads the values of a shard's documents, in their order.
    """

    def __init__(self, shards: Sequence[Shard], read: Callable[[Any], Sequence[Any]]) -> None:
        self._shards, self._read = shards, lru_cache(maxsize=1)(read)

    def __len__(self) -> int:
        return self._shards[-1].start + self._shards[-1].n

    def __getitem__(self, position: Any) -> Any:
        shard = self._shards[bisect_right(self._shards, position, key=lambda shard: shard.start) - 1]
        return self._read(shard)[position - shard.start]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamedDataset:
    """Queries with their labels, and documents of which one shard is in memory at a time.

    Attributes:
        name: the name in reports.
        path: folder or URL that it was read from.
        split: the split that the labels belong to.
        query_ids: one unique id for each query.
        queries: their texts.
        qrels: query id to document id to grade.
        shards: the shards of documents, in order.
        fingerprint: digest of queries, labels and documents, independent of the size of shards.
        warnings: faults that are tolerated, one sentence each.
        keep_own_ids: whether queries that are also documents find themselves.
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
    keep_own_ids: bool = False

    @classmethod
    def of(cls, folder: Path, split: str, *, path: str, shards: Iterable[Shard]) -> Self:
        """Read the queries and labels of a folder in BEIR layout, and then the shards.

        Raises:
            DataError: a file is missing or broken, queries are images, or there is no shard.
        """
        query_ids, queries, qrels, notes = retrieval.read_queries(folder, split, document_ids=None)
        if queries and not isinstance(queries[0], str):
            raise DataError(f"{path}: the queries of a corpus in shards must be texts; got images")
        if not (shards := tuple(shards)):
            raise DataError(f"{path} holds no document; expected one at least")
        digest = hashlib.blake2b(digest_size=16)
        judged = sorted((query, doc, str(grade)) for query, grades in qrels.items() for doc, grade in grades.items())
        contents = dict.fromkeys((shard.url, shard.digest) for shard in shards)  # one for each file
        for part in (query_ids, queries, [word for line in judged for word in line], [end for _, end in contents]):
            retrieval.feed(digest, part)
        warnings = [
            retrieval.counted("empty queries", retrieval.empty(query_ids, queries)),
            "" if qrels else "no relevance labels: drift is measured, relevance metrics are not",
        ]
        return cls(
            name=path.rsplit("/", 1)[-1],
            path=path,
            split=split,
            query_ids=query_ids,
            queries=queries,
            qrels=qrels,
            shards=shards,
            fingerprint=digest.hexdigest(),
            warnings=(*notes, *filter(None, warnings)),
        )

    @property
    def n_documents(self) -> int:
        """The number of documents."""
        return self.shards[-1].start + self.shards[-1].n

    @property
    def own_ids(self) -> str | None:
        """The treatment of queries' own documents; None unless they are kept, as nobody knows if there are any."""
        return "kept" if self.keep_own_ids else None

    def document_texts(self, wanted: Collection[str]) -> dict[str, str]:
        """Read the texts of some documents by id, going through the whole corpus."""
        return {name: text for shard in self.shards for name, text, _ in shard.read() if name in wanted}

    def workers(self, n: int | None) -> Workers | None:
        """The workers that score the shards, for `--workers`; None for this process alone."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKind:
    """A kind of streamed data.

    Attributes:
        accepts: "module:function" of (folder or URL, whether streaming was asked for) that recognizes this kind.
        read: "module:function" of (folder or URL, split, shard=..., progress=...) that returns a `StreamedDataset`;
            `shard` is the most documents of a shard, or None.
    """

    accepts: str
    read: str

    def dataset(
        self, place: str | Path, split: str, *, shard: int | None = None, progress: Progress
    ) -> StreamedDataset:
        """Read the data at a place."""
        dataset: StreamedDataset = imported(self.read)(place, split, shard=shard, progress=progress)
        return dataset


STREAMED: Registry[DataKind] = Registry("quantdrift.data", kind=DataKind)


def streamed_kind(place: str | Path, *, asked: bool = False) -> DataKind | None:
    """Find the kind of the data at a place; None if they are read into memory.

    A kind that accepts the place in any case comes before one that accepts it because streaming was asked for.
    """
    kinds = (kind for wanted in (False, asked) for kind in STREAMED.values() if imported(kind.accepts)(place, wanted))
    return next(kinds, None)


def is_url(place: str | Path) -> bool:
    """Whether a place is a URL rather than a local folder."""
    return bool(_URL.match(str(place)))


# --- documents from anywhere ----------------------------------------------------------------------


def json_documents(opened: Callable[[], Any], where: str, *, first: int = 1) -> Iterator[Document]:
    """Read documents from JSON lines ({"_id", "title", "text"}) of a stream that starts at line number `first`."""
    lines = retrieval.lines_of(opened, where, first=first)
    for place, name, record in retrieval.read_records(where, '{"_id": "...", "text": "..."}', lines):
        yield name, retrieval.text_of(record, place), record["text"]


def document_of(record: Mapping[str, Any], where: str) -> Document:
    """Read and check the document in a row of a table: "_id", "text" and, if there is one, "title"."""
    retrieval.check_string(record["text"], f'{where}: "text"')
    return retrieval.named(record["_id"], f'{where}: "_id"'), retrieval.text_of(record, where), record["text"]
