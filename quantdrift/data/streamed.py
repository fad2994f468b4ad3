"""Data that are never in memory as a whole: each kind of them is read and measured in a manner of its own.

A kind is the object `DATA` of a feature, or an entry point of another package.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.base.progress import Progress
from quantdrift.base.registry import Registry, imported

if TYPE_CHECKING:
    from quantdrift.runs.folder import Run

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Start of a URL; one that went through a path has one slash."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamedDataset:
    """Queries with their labels, and documents of which a part is in memory at a time.

    Attributes:
        name: what reports call it.
        path: folder or URL that it was read from.
        split: the split that the labels belong to.
        query_ids: one unique id a query.
        queries: their texts.
        qrels: query id to document id to grade.
        n_documents: how many documents there are.
        fingerprint: digest of queries, labels and documents.
        warnings: what is worth telling, one sentence each.
        keep_own_ids: whether queries that are documents too find themselves.
        kind: that read it.
    """

    name: str
    path: str
    split: str
    query_ids: tuple[str, ...]
    queries: Sequence[str]
    qrels: Mapping[str, Mapping[str, int]]
    n_documents: int
    fingerprint: str
    warnings: tuple[str, ...] = ()
    keep_own_ids: bool = False
    kind: DataKind | None = None

    @property
    def own_ids(self) -> str | None:
        """What is done with documents of a query's own id and text; nobody knows whether there are any."""
        return "kept" if self.keep_own_ids else None

    def document_texts(self, wanted: Collection[str]) -> dict[str, str]:
        """Read the texts of some documents, by id."""
        raise NotImplementedError

    def run(self, pair: Any, **how: Any) -> Run:
        """Measure a pair and write the run; `how` is what `asking.run.run` takes, and `cli.options.Streaming` gives."""
        assert self.kind is not None  # which has read it
        run: Run = imported(self.kind.run)(pair, self, **how)
        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKind:
    """A kind of such data.

    Attributes:
        accepts: "module:function" that says of (folder or URL, whether streaming was asked for) whether it is of it.
        check: "module:function" that refuses a pair which cannot be measured on such data.
        read: "module:function" that reads (folder or URL, split, progress=...) as a `StreamedDataset`.
        run: "module:function" that measures (pair, dataset, out=..., settings=..., ...) and writes the run.
    """

    accepts: str
    check: str
    read: str
    run: str

    def check_pair(self, pair: Any) -> None:
        """Refuse a pair that cannot be measured on such data."""
        imported(self.check)(pair)

    def dataset(self, place: str | Path, split: str, *, progress: Progress, **options: Any) -> StreamedDataset:
        """Read the data at a place."""
        dataset: StreamedDataset = imported(self.read)(place, split, progress=progress, **options)
        return replace(dataset, kind=self)


STREAMED: Registry[DataKind] = Registry(
    "quantdrift.data", package="quantdrift.features", attribute="DATA", kind=DataKind
)


def streamed_kind(place: str | Path, *, asked: bool = False) -> DataKind | None:
    """Find the kind of the data at a place; None where they are read into memory."""
    return next((kind for kind in STREAMED.values() if imported(kind.accepts)(place, asked)), None)


def is_url(place: str | Path) -> bool:
    """Whether data lie elsewhere than in a folder here."""
    return bool(_URL.match(str(place)))
