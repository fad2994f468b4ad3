"""Finished runs by their content: every format, shortlists of a search, and texts."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.finished.contents import Part
from quantdrift.finished.formats import read_finished
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.finished.shortlist import read_shortlist
from quantdrift.finished.texts import read_texts
from quantdrift.runs.folder import write_run
from support.finished_samples import A, B, question, write_json, write_mteb, write_samples, write_trec


def test_every_format_is_told_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "lm", "t", [question(0, [-1.0, -2.0])])
    (tmp_path / "predictions").mkdir()
    write_mteb(tmp_path / "predictions" / "T_predictions.json", A)
    made = {
        write_trec(tmp_path / "one.json", A): "trec",
        write_json(tmp_path / "two.trec", A): "json",
        write_mteb(tmp_path / "three.txt", A): "mteb",
        tmp_path / "predictions": "mteb",
        samples: "lm-eval",
        next(samples.glob("*.jsonl")): "lm-eval",
    }
    assert {path: read_finished(path).format for path in made} == made


def test_the_score_decides_and_a_gzipped_copy_is_the_same(tmp_path: Path) -> None:
    plain = write_trec(tmp_path / "a.trec", A, zero_ranks=True)
    packed = tmp_path / "a.run"  # not called .gz
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    run, copy = read_finished(plain), read_finished(packed)
    assert run.parts == copy.parts == {"": Part(kind="rankings", content=A)}
    assert run.digest == copy.digest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1 Q0 d1 1 0.5\n", "line 1: expected a TREC run file"),
        ("q1 Q0 d1 1 0.5 t\nq1 Q0 d2 2 high t\n", "line 2: expected 6 columns"),
        ("q1 Q0 d1 1 0.5 t\nq1 Q0 d1 2 0.4 t\n", "line 2: query 'q1' has document 'd1' twice"),
        ({"ndcg": {"NDCG@1": 0.5}, "map": {}, "recall": {}, "precision": {}}, "save_results"),
        ({"results": {"arc": {}}, "configs": {"arc": {"task": "arc"}}}, "expected document to score"),
        ({"q1": {"d1": 0.5}, "q2": {"d1": "high"}}, r"for query 'q2'; got \('d1', 'high'\)"),
        ({"q1": {"d1": 0.5}, "q2": 3}, "for query 'q2'; got 3"),
    ],
)
def test_what_holds_no_rankings_is_refused_with_its_place(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=message):
        read_finished(path)


def test_predictions_of_mteb_are_read_by_subset_and_split(tmp_path: Path) -> None:
    write_mteb(tmp_path / "One_predictions.json", A)
    write_mteb(tmp_path / "Two_predictions.json", B)
    single = read_finished(tmp_path / "One_predictions.json")
    assert (single.name, single.data, list(single.parts)) == ("some/model", "One", ["default/test"])
    both = read_finished(tmp_path)
    assert list(both.parts) == ["One/default/test", "Two/default/test"]


def test_the_latest_samples_of_a_task_count(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "m", "t", [question(0, [-1.0, -2.0])])
    write_samples(folder, "t", [question(0, [-3.0, -2.0])], date="2026-02-01T00-00-00.000001")
    assert read_finished(folder).parts["t"].content[0][0]["filtered_resps"][0][0] == "-3.0"


@pytest.mark.parametrize("predictions", [[["x", "y"], ["x", "x"]], {"pair": [0.5, 0.2]}, [0.5], {}])
def test_predictions_of_what_is_no_search_are_refused(predictions: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected rankings of documents"):
        read_finished(write_mteb(tmp_path / "a", predictions))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", [f'{{"q": {DEEP}}}', f'{{"q": {{"d": {"7" * 5_000}}}}}'])
@pytest.mark.parametrize("name", ["a.json", "samples_t_2026-01-02T03-04-05.jsonl"])
def test_json_that_no_harness_writes_is_told(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=r"nested|Exceeds"):
        read_finished(tmp_path / name)


# --- shortlists --------------------------------------------------------------------------------------


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


# --- texts -------------------------------------------------------------------------------------------


def test_questions_and_choices_are_taken_from_samples_of_lm_eval(tmp_path: Path) -> None:
    scores = {"0": {"0": -1.0, "1": -2.0}, "1": {"0": -1.0, "1": -2.0}}
    record = {"spec": "m@W4", "data": {"name": "piqa", "harness": "lm-eval"}}
    run = write_run(tmp_path / "run", evidence=evidence_of_rankings(scores, scores, complete=True), record=record)
    samples = [question(number, [-1.0, -2.0]) for number in range(2)]
    folder = write_samples(tmp_path / "log", "piqa", samples)
    for place in (folder, next(folder.glob("samples_*"))):
        texts = read_texts(run, data=place)
        assert texts.inputs == {"0": "question 0", "1": "question 1"}
        assert [texts.item("1", number) for number in "012"] == ["choice 0", "choice 1", None]
    write_samples(folder, "winogrande", samples)
    assert read_texts(run, data=folder).inputs  # that of its task
    write_samples(tmp_path / "others", "a", samples)
    write_samples(tmp_path / "others", "b", samples)
    with pytest.raises(DataError, match="piqa"):
        read_texts(run, data=tmp_path / "others")
