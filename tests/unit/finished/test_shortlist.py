"""Shortlists: the first documents of a finished search, checked against the data."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.finished.shortlist import read_shortlist
from quantdrift.runs.folder import write_run
from support.finished_samples import write_trec

DATA = RetrievalDataset.of(
    {"q0": "wing", "q1": "heat", "q2": "flow"},
    {"a": "a wing", "b": "some heat", "d": "nothing", "c": "a flow"},
    {"q0": {"a": 1}, "q1": {"b": 1}, "q2": {"c": 1}},
    name="small",
)
SCORES = {
    "q0": {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0},
    "q1": {"d": 4.0, "c": 3.0, "b": 2.0, "a": 1.0},
    "q2": {"b": 9.0, "a": 1.0, "d": -1.0, "c": -5.0},
}
CHANGED = {query: {name: -score for name, score in ranking.items()} for query, ranking in SCORES.items()}


def written(folder: Path, *, depth: int = 10, **data: Any) -> Path:
    """A run whose candidate ranks everything the other way round."""
    evidence = evidence_of_rankings(SCORES, CHANGED, complete=True, depth=depth)
    said = {"name": "small", "split": "test", "fingerprint": DATA.fingerprint} | data
    record = {
        "spec": "minilm@W4-g128-rtn",
        "model": {"name": "minilm", "fingerprint": "abc"},
        "data": {key: value for key, value in said.items() if value is not None},
    }
    write_run(folder, evidence=evidence, record=record)
    return folder


def test_the_references_first_documents_are_taken_not_the_candidates(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    shortlist = read_shortlist(folder, DATA, top=2)
    assert shortlist.documents == {"q0": ("a", "b"), "q1": ("d", "c"), "q2": ("b", "a")}
    assert (shortlist.record["retriever"], shortlist.record["retriever_fingerprint"], shortlist.notes) == (
        "minilm",
        "abc",
        (),
    )
    assert read_shortlist(folder / "run.json", DATA, top=2).documents == shortlist.documents
    whole = read_shortlist(folder, DATA)  # no more than there are
    assert ({len(names) for names in whole.documents.values()}, whole.top) == ({4}, 100)
    assert len(read_shortlist(written(tmp_path / "cut", depth=3), DATA, top=3).documents["q0"]) == 3


@pytest.mark.parametrize(
    ("made", "top", "message"),
    [
        ({"depth": 3}, 4, r"keeps 3 ranks.*--top 3, or make that run again with -k"),
        ({"fingerprint": "00", "name": "other"}, 2, "data small: data: small, there other"),
        ({"fingerprint": None}, 2, "no digest of its data"),
    ],
)
def test_a_run_that_gives_no_shortlist_is_refused(made: dict[str, Any], top: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_shortlist(written(tmp_path / "run", **made), DATA, top=top)


def test_a_query_that_is_a_document_too_is_not_in_its_own_shortlist(tmp_path: Path) -> None:
    queries, documents = {"q0": "wing", "a": "a wing"}, dict(zip(DATA.document_ids, DATA.documents, strict=True))
    data = RetrievalDataset.of(queries, documents, name="small")
    both = {"q0": {"a": 3.0, "b": 2.0, "c": 1.0}, "a": {"a": 9.0, "d": 2.0, "c": 1.0}}
    path = write_trec(tmp_path / "run.trec", both)
    assert read_shortlist(path, data, top=2).documents == {"q0": ("a", "b"), "a": ("d", "c")}
    kept = replace(data, keep_own_ids=True)
    assert read_shortlist(path, kept, top=2).documents["a"] == ("a", "d")
    # of a run that kept them one rank more is needed, and of one that did not, none
    evidence = evidence_of_rankings(both, both, depth=2)
    record: dict[str, Any] = {"spec": "minilm@W4", "data": {"name": "small", "fingerprint": data.fingerprint}}
    write_run(tmp_path / "kept", evidence=evidence, record=record)
    with pytest.raises(DataError, match=r"-k 3"):
        read_shortlist(tmp_path / "kept", data, top=2)
    write_run(tmp_path / "left", evidence=evidence, record={**record, "settings": {"own_ids": "left out"}})
    assert read_shortlist(tmp_path / "left", data, top=1).documents == {"q0": ("a",), "a": ("d",)}


def test_of_a_trec_run_the_scores_decide_and_ties_break_by_position(tmp_path: Path) -> None:
    tied = {"q0": {"d": 1.0, "c": 1.0, "a": 0.5}, "q1": {"a": -3.0, "b": -2.0}, "q2": {"c": 1.0}}
    path = write_trec(tmp_path / "bm25.trec", tied, zero_ranks=True)
    shortlist = read_shortlist(path, DATA, top=2)
    assert shortlist.documents == {"q0": ("d", "c"), "q1": ("b", "a"), "q2": ("c",)}
    assert shortlist.record["retriever"] == "bm25.trec"
    (tmp_path / "bm25.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_shortlist(tmp_path / "bm25.gz", DATA, top=2).documents == shortlist.documents
    part = read_shortlist(write_trec(tmp_path / "run.trec", {"q1": {"a": 1.0}, "q9": {"b": 1.0}}), DATA, top=1)
    assert part.documents == {"q1": ("a",)}
    assert "no shortlist, 2, are left out: q0, q2" in part.notes[0]
    with pytest.raises(DataError, match=r"1 documents .*small \(z\)"):
        read_shortlist(write_trec(tmp_path / "other.trec", {"q1": {"z": 1.0}}), DATA)
