"""A fixed shortlist from a finished search: the documents of each query that a reranker scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdrift.base.errors import DataError
from quantdrift.base.text import some
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.finished.contents import digest
from quantdrift.finished.formats import Source
from quantdrift.finished.formats.trec import read_trec
from quantdrift.runs.folder import RECORD, read_run
from quantdrift.runs.identity import Identity

FIRST = 100
"""Documents per query, as in the paper."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist:
    """The first documents of each query, the same for both arms of a reranker.

    Attributes:
        documents: query id to document ids, best first; queries without a document are not included.
        top: documents per query that were asked for; some queries may have fewer.
        record: its source as JSON values, for run.json.
        notes: remarks, one sentence each.
    """

    documents: Mapping[str, tuple[str, ...]]
    top: int
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of the set of documents of each query, whatever their ranks."""
        lists = sorted(self.documents.items())
        return digest(*(text for query, names in lists for text in (query, *sorted(names), "")), size=16)


def read_shortlist(path: Path, dataset: RetrievalDataset, *, top: int = FIRST) -> Shortlist:
    """Read the first documents of each query from a finished search."""
    if not path.exists():
        raise DataError(
            f"{path} does not exist; expected the shortlist: a run folder of the retriever, or a "
            "TREC run file (query Q0 document rank score tag)"
        )
    lists, record = (_of_run if path.is_dir() or path.name == RECORD else _of_trec)(path, dataset, top)
    own = dataset.own if dataset.own_ids == "left out" and dataset.own else ()
    lists = {q: tuple(n for n in names if n != q or q not in own)[:top] for q, names in lists.items()}
    documents = {query: lists[query] for query in dataset.query_ids if lists.get(query)}
    if not documents:
        raise DataError(
            f"{path} has no document for any of the {len(dataset.query_ids):,} queries of "
            f"{dataset.name} ({some(dataset.query_ids)}); it has {some(lists) or 'no query of it'}"
        )
    bare = [query for query in dataset.query_ids if query not in documents]
    lengths = [len(names) for names in documents.values()]
    return Shortlist(
        documents=documents,
        top=top,
        record={**record, "path": str(path), "shortest": min(lengths), "longest": max(lengths)},
        notes=(f"queries that have no shortlist, {len(bare):,}, are left out: {some(bare)}",) if bare else (),
    )


Found = tuple[dict[str, tuple[str, ...]], dict[str, Any]]
"""All documents by query, and their source for run.json."""


def _of_run(path: Path, dataset: RetrievalDataset, top: int) -> Found:
    run = read_run(path)
    model = run.record.get("model") or {}
    here, there = Identity(data=dataset.name, data_fingerprint=dataset.fingerprint), Identity.of(run.record)
    if there.data_fingerprint is None or (differences := here.differences(there, ("data",), sides=("here", "there"))):
        why = "the run has no digest of its data" if there.data_fingerprint is None else "; ".join(differences)
        raise DataError(
            f"the shortlist {run.path} does not belong to the data {dataset.name}: {why}. Search these data first "
            "(quantdrift run RETRIEVER@SCHEME --data FOLDER), or give a TREC run file of them"
        )
    evidence = run.evidence()
    more = int(
        dataset.own_ids == "left out" != there.settings.get("own_ids")
    )  # room for a query's own document, which is left out
    if evidence.depth < min(top + more, int(evidence.n_items.max(initial=0))):
        raise DataError(
            f"{run.path} keeps {evidence.depth} ranks, too few for a shortlist of {top}; give "
            f"--top {evidence.depth - more}, or make that run again with -k {top + more}"
        )
    rows = zip(evidence.input_ids, evidence.reference_top.items.tolist(), strict=True)
    lists = {str(query): tuple(str(evidence.item_ids[item]) for item in items if item >= 0) for query, items in rows}
    named = {"retriever": model.get("name"), "retriever_fingerprint": model.get("fingerprint")}
    return lists, {"from": "run", "spec": run.record["spec"], **named}


def _of_trec(path: Path, dataset: RetrievalDataset, top: int) -> Found:
    del top
    read = read_trec(Source(path))
    rankings: Mapping[str, Mapping[str, float]] = read.parts[""].content
    position = {name: row for row, name in enumerate(dataset.document_ids)}
    if strangers := sorted({doc for ranking in rankings.values() for doc in ranking} - position.keys()):
        raise DataError(
            f"{path} ranks {len(strangers):,} documents that are not in {dataset.name} "
            f"({some(strangers)}); expected a search of these documents"
        )
    lists = {
        query: tuple(sorted(ranking, key=lambda doc: (-ranking[doc], position[doc])))
        for query, ranking in rankings.items()
    }
    return lists, {"from": "trec", "retriever": read.name, "file_digest": read.digest}
