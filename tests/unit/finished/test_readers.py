"""Finished runs by their content: every format, shortlists, texts, and two rankings of every input as evidence."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import DataError, RunError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.finished.contents import Part
from quantdrift.finished.formats import read_finished
from quantdrift.finished.rankings import evidence_of_answers, evidence_of_rankings
from quantdrift.finished.shortlist import read_shortlist
from quantdrift.finished.texts import read_texts
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.metrics.keys import drift_keys
from quantdrift.runs.folder import write_run
from quantdrift.statistics.conformal import StabilityError, observe
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
    retriever = (shortlist.record["retriever"], shortlist.record["retriever_fingerprint"])
    assert (retriever, shortlist.notes) == (("minilm", "abc"), ())
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
    assert read_texts(run).told.endswith("lm_eval --log_samples wrote")
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


# --- two rankings as evidence ------------------------------------------------------------------------


REFERENCE = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"a": 1.0, "b": 0.5, "c": 0.0}}
CANDIDATE = {"q1": {"a": 2.0, "b": 2.5, "c": 1.0}, "q2": {"a": 1.25, "b": 0.5, "c": 0.25}}


def value(evidence: Evidence, name: str) -> float | None:
    return parse_metric(name)(evidence).value


def test_lists_that_were_cut_short_give_bounds_and_say_so() -> None:
    reference = {name: dict(list(scores.items())[:2]) for name, scores in REFERENCE.items()}
    evidence = evidence_of_rankings(reference, {"q1": {"b": 2.5, "a": 2.0}, "q2": {"a": 1.25, "b": 0.5}})
    assert (evidence.exact, evidence.depth, value(evidence, "flip@1")) == (False, 2, 0.5)
    bounds = dict.fromkeys(("epsilon", "S", "at_risk"), "lower") | {"separation": "upper", "stable": "upper"}
    for name in (*bounds, "gap", "candidate_gap", "flip@1"):
        assert parse_metric(name)(evidence).bound == bounds.get(name), name
    assert "truncated" in str(parse_metric("coverage@0.10")(evidence).reason)
    for name in ("violation@0.10", "set_kept@3"):
        with pytest.raises(MetricError, match=r"truncated|2 ranks|keep 2|2 deep"):
            parse_metric(name).per_input(evidence)
    with pytest.raises(StabilityError, match="some scores"):
        observe(evidence, "S")
    keys = drift_keys(evidence, [parse_metric(name) for name in ("epsilon", "separation", "flip@1")], warn=pytest.fail)
    assert {"drift_epsilon_median_at_least", "drift_separation_median_at_most", "drift_flip_at_1"} <= keys.keys()


def test_lists_are_compared_as_deep_as_both_go_and_ties_break_alike() -> None:
    deep = {"q": {str(rank): 10.0 - rank for rank in range(9)}}
    shallow = {"q": {str(rank): 10.5 - rank for rank in range(3)}}
    made = ((deep, shallow, 200), (deep, deep, 200), (deep, deep, 4))
    assert [evidence_of_rankings(a, b, depth=depth).depth for a, b, depth in made] == [3, 9, 4]
    tied = {"q": {"10": 1.0, "2": 1.0}}
    for position, first in ((None, "10"), (int, "2")):
        evidence = evidence_of_rankings(tied, tied, complete=True, position=position)
        tops = (evidence.reference_top, evidence.candidate_top)
        assert [evidence.item_ids[top.items[0, 0]] for top in tops] == [first, first]


def test_answers_flip_and_are_right_or_wrong() -> None:
    reference = {"q1": "4", "q2": "7", "q3": "9", "q4": "1"}
    candidate = {"q1": "4", "q2": "8", "q3": "10", "q4": "2"}
    right = ({"q1": True, "q2": True, "q3": False, "q4": False}, {"q1": True, "q2": False, "q3": True, "q4": False})
    evidence = evidence_of_answers(reference, candidate, right=right)
    assert [value(evidence, name) for name in ("flip@1", "harm", "benefit", "accuracy")] == [0.75, 0.25, 0.25, 0.5]
    for name in ("epsilon", "separation", "S", "coverage@0.10"):
        assert parse_metric(name)(evidence).reason == "the answers have no scores"
    # two answers can both be right, which would halve the recall of either
    assert parse_metric("recall@1")(evidence).reason == "the answers are no rankings"
    with pytest.raises(RunError, match="right in one only"):
        evidence_of_answers({"q": "a"}, {"q": "a"}, right=({"q": True}, {"q": False}))


BIG = [float("nan"), float("inf"), 1e39, -1e39, 10**400]
"""What no 32-bit float holds."""


@pytest.mark.parametrize(
    ("reference", "candidate", "complete", "message"),
    [
        ({"q": {"a": 1.0}}, {"p": {"a": 1.0}}, False, r"1 of 1 only in the reference \(q\); 1 of 1 only in"),
        ({"q": {"a": 1.0}}, {"q": {"b": 1.0}}, True, "score the same items"),
        ({"q": {}}, {"q": {}}, False, "none of the inputs has an item"),
        ({}, {}, False, "there are no inputs"),
        *[({"q": {"a": 1.0}}, {"q": {"a": score}}, False, "the candidate's score of 'a' for 'q'") for score in BIG],
    ],
)
def test_what_cannot_be_compared_is_refused(reference: Any, candidate: Any, complete: bool, message: str) -> None:
    with pytest.raises(RunError, match=message):
        evidence_of_rankings(reference, candidate, complete=complete)


def test_an_input_whose_list_ends_at_rank_1_does_not_spoil_a_bound() -> None:
    names = ("q1", "q2", "q3")
    # q1 alone is at risk: the second document comes near in one arm
    before = {name: {"a": 1.0, "b": 0.5} for name in names}
    after = {name: {"a": 1.0, "b": 0.9 if name == "q1" else 0.6} for name in names}
    exact = evidence_of_rankings(before, after, complete=True)
    cut = evidence_of_rankings(*({**arm, "q2": {"a": 1.0}, "q3": {"a": 1.0}} for arm in (before, after)))
    assert perturbation.at_risk(cut).tolist() == [1.0, 0.0, 0.0]
    assert perturbation.cut_separation(cut, 1)[1:].tolist() == [np.inf, np.inf]
    at_risk, separation = (parse_metric(name)(cut) for name in ("at_risk", "separation"))
    assert (at_risk.value, at_risk.n, at_risk.bound) == (value(exact, "at_risk"), 3, "lower")
    assert (separation.value, separation.bound) == (np.inf, "upper")
    assert "ends too early" in str(separation.reason)
