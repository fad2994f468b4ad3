"""A fixed shortlist: the documents of each query that a reranker scores, from a finished search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from quantdrift.datasets.retrieval import RetrievalDataset, some
from quantdrift.errors import DataError
from quantdrift.finished.readers import read_trec
from quantdrift.runs import RECORD, Run, classifies, read_run

FIRST = 100
"""Documents per query, as in the paper."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist:
    """The first documents of each query, the same for both arms of a reranker.

    Attributes:
        documents: query id to document ids, best first; no query without a document.
        top: documents per query that were asked for; some queries may have fewer.
        path: what it was read from.
        retriever: whose ranking it is, for people.
        record: what run.json says of where it came from, as JSON values.
        notes: what deserves a word, one sentence each.
    """

    documents: Mapping[str, tuple[str, ...]]
    top: int
    path: Path
    retriever: str
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of which documents each query has, in whatever order they were ranked."""
        found = blake2b(digest_size=16)
        for query in sorted(self.documents):
            for text in (query, *sorted(self.documents[query]), ""):
                raw = text.encode()
                found.update(len(raw).to_bytes(8, "little") + raw)
        return found.hexdigest()


def read_shortlist(path: Path, dataset: RetrievalDataset, *, top: int = FIRST) -> Shortlist:
    """The first documents of each query of a finished search.

    Args:
        path: a run folder of the same data, of which the reference's ranking is taken: no
            quantization has touched it. Or a TREC run file (query Q0 document rank score tag),
            plain or gzipped, whose scores decide; ties break by position in the corpus.
        dataset: what was searched.
        top: documents per query.

    Raises:
        RunError: a folder that is no run.
        DataError: it is of other data, says what differs; or it holds fewer ranks; or no query has
            a document.
    """
    if top < 1:
        raise DataError(f"expected a shortlist of at least 1 document, got --top {top}")
    if not path.exists():
        raise DataError(
            f"{path} does not exist; expected the shortlist: a run folder of the retriever, or a "
            "TREC run file (query Q0 document rank score tag)"
        )
    if path.is_dir() or path.name == RECORD:
        return _of_run(read_run(path), dataset, top)
    return _of_trec(path, dataset, top)


def _of_run(run: Run, dataset: RetrievalDataset, top: int) -> Shortlist:
    record = run.record
    if classifies(record):
        raise DataError(
            f"{run.path} is a run on classification data, whose items are classes; expected a "
            "search of the same queries and documents"
        )
    data: Mapping[str, Any] = record.get("data") or {}
    if data.get("fingerprint") != dataset.fingerprint:
        listed = "".join(f"\n  - {line}" for line in _differences(data, dataset))
        raise DataError(
            f"the shortlist {run.path} is of other data than {dataset.name}:{listed}\n"
            "Search these data first (quantdrift run RETRIEVER@SCHEME --data FOLDER), or give a "
            "TREC run file of them"
        )
    evidence = run.evidence()
    depth, n_items = evidence.depth, int(evidence.n_items.max(initial=0))
    if depth < min(top, n_items):
        raise DataError(
            f"{run.path} keeps {depth} ranks, too few for a shortlist of {top}; give "
            f"--top {depth}, or make that run again with -k {top}"
        )
    names = evidence.item_ids
    found = {
        str(query): tuple(str(names[item]) for item in items[:top].tolist() if item >= 0)
        for query, items in zip(evidence.input_ids, evidence.reference_top.items, strict=True)
    }
    model: Mapping[str, Any] = record.get("model") or {}
    return _checked(
        found,
        dataset,
        top,
        run.path,
        retriever=str(model.get("name")),
        record={
            "from": "run",
            "spec": record.get("spec"),
            "retriever": model.get("name"),
            "retriever_fingerprint": model.get("fingerprint"),
        },
    )


def _of_trec(path: Path, dataset: RetrievalDataset, top: int) -> Shortlist:
    read = read_trec(path)
    (part,) = read.parts.values()
    rankings: Mapping[str, Mapping[str, float]] = getattr(part, "rankings", {})
    position = {name: row for row, name in enumerate(dataset.document_ids)}
    strangers = sorted({doc for ranking in rankings.values() for doc in ranking} - position.keys())
    if strangers:
        raise DataError(
            f"{path} ranks {len(strangers):,} documents that are not in {dataset.name} "
            f"({some(strangers)}), so it is of other data; expected a search of these documents"
        )
    known = set(dataset.query_ids)
    others = [query for query in rankings if query not in known]
    notes = [*read.notes]
    if others:
        notes.append(f"{path.name} has {len(others):,} queries that are not in the data ({some(others)})")
    found = {
        query: tuple(sorted(ranking, key=lambda doc: (-ranking[doc], position[doc]))[:top])
        for query, ranking in rankings.items()
        if query in known
    }
    return _checked(
        found,
        dataset,
        top,
        path,
        retriever=read.name,
        record={"from": "trec", "retriever": read.name, "file_digest": read.digest},
        notes=notes,
    )


def _checked(
    found: Mapping[str, tuple[str, ...]],
    dataset: RetrievalDataset,
    top: int,
    path: Path,
    *,
    retriever: str,
    record: Mapping[str, Any],
    notes: Iterable[str] = (),
) -> Shortlist:
    """In the order of the queries, with a word on those that have none."""
    documents = {query: found[query] for query in dataset.query_ids if found.get(query)}
    if not documents:
        raise DataError(
            f"{path} has no document for any of the {len(dataset.query_ids):,} queries of "
            f"{dataset.name} ({some(dataset.query_ids)}); it has {some(found) or 'no query of it'}"
        )
    told = [*notes]
    bare = [query for query in dataset.query_ids if query not in documents]
    if bare:
        told.append(_counted(bare, "no shortlist and", "left out"))
    short = [query for query, names in documents.items() if len(names) < top]
    if short and len(short) < len(documents):
        told.append(_counted(short, f"fewer than {top} documents in the shortlist and", "kept"))
    shortest, longest = (f(map(len, documents.values())) for f in (min, max))
    return Shortlist(
        documents=documents,
        top=top,
        path=path,
        retriever=retriever,
        record={**record, "path": str(path), "shortest": shortest, "longest": longest},
        notes=tuple(told),
    )


def _counted(queries: list[str], what: str, then: str) -> str:
    has, is_ = ("query has", "is") if len(queries) == 1 else ("queries have", "are")
    return f"{len(queries):,} {has} {what} {is_} {then}: {some(queries)}"


def _differences(data: Mapping[str, Any], dataset: RetrievalDataset) -> list[str]:
    """What a run says of its data, where that is something else."""
    here = {
        "name": dataset.name,
        "split": dataset.split,
        "n_queries": len(dataset.query_ids),
        "n_documents": len(dataset.document_ids),
    }
    told = [
        f"{name}: {data[name]} there, {value} here"
        for name, value in here.items()
        if name in data and data[name] != value
    ]
    if data.get("fingerprint") is None:
        return [*told, "the run has no digest of its data, as those that a harness made"]
    digests = f"digests {data['fingerprint']} there, {dataset.fingerprint} here"
    return [*told, digests if told else f"texts or judgements: {digests}"]
