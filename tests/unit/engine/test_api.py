"""`quantdrift.drift` of arrays, and what a run tells in Python."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quantdrift import (
    Embeddings,
    QuantizedPair,
    RetrievalDataset,
    Run,
    compare_runs,
    drift,
    measure,
    perturbation,
    read_run,
    score_embeddings,
)
from quantdrift.datasets.labelled import ClassificationDataset, Labelled
from quantdrift.engine.measure import assemble
from quantdrift.errors import (
    DataError,
    MissingExtraError,
    QuantDriftError,
    RunError,
    ScoreError,
    SpecError,
    UnknownNameError,
    UnsupportedError,
)
from quantdrift.metrics import MetricError, parse_metric

RNG = np.random.default_rng(0)
QUERIES, DOCUMENTS = RNG.normal(size=(30, 8)), RNG.normal(size=(60, 8))
NOISY = QUERIES + 0.2 * RNG.normal(size=QUERIES.shape)
REFERENCE, CANDIDATE = Embeddings(QUERIES, DOCUMENTS), Embeddings(NOISY, DOCUMENTS)


def same(one: Run, other: Run) -> bool:
    a, b = one.evidence(), other.evidence()
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("delta_min", "delta_max")
    ) and np.array_equal(a.candidate_top.items, b.candidate_top.items)


# --- embeddings -------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_embeddings_give_the_evidence_of_their_scores(similarity: str) -> None:
    found = drift(REFERENCE, CANDIDATE, similarity=similarity).evidence()
    state = score_embeddings(QUERIES, NOISY, DOCUMENTS, DOCUMENTS, similarity=similarity)
    there = assemble(state, input_ids=[str(n) for n in range(30)], item_ids=[str(n) for n in range(60)])
    assert np.array_equal(perturbation.epsilon(found), perturbation.epsilon(there))
    assert np.array_equal(perturbation.flips(found), perturbation.flips(there))
    by_hand = [QUERIES, NOISY]
    if similarity == "cosine":
        unit = DOCUMENTS / np.linalg.norm(DOCUMENTS, axis=1, keepdims=True)
        scores = [(q / np.linalg.norm(q, axis=1, keepdims=True)) @ unit.T for q in by_hand]
    elif similarity == "dot":
        scores = [q @ DOCUMENTS.T for q in by_hand]
    else:
        scores = [-np.linalg.norm(q[:, None] - DOCUMENTS[None], axis=2) for q in by_hand]
    flips = scores[0].argmax(axis=1) != scores[1].argmax(axis=1)
    assert np.array_equal(perturbation.flips(found), flips)
    assert np.allclose(perturbation.epsilon(found), np.abs(scores[1] - scores[0]).max(axis=1), atol=1e-4)


def test_a_similarity_by_name_is_the_similarity() -> None:
    # a plain string once compared unlike the member, and nothing was normalized
    one, other = (
        score_embeddings(10 * QUERIES, NOISY, DOCUMENTS, DOCUMENTS, similarity=name) for name in ("cosine", "dot")
    )
    assert not torch.equal(one.delta_max, other.delta_max)
    assert float(one.delta_max.abs().max()) <= 2
    with pytest.raises(UnknownNameError, match="cosine"):
        score_embeddings(QUERIES, NOISY, DOCUMENTS, DOCUMENTS, similarity="cosin")
    with pytest.raises(UnknownNameError):
        drift(REFERENCE, CANDIDATE, similarity="cosin")


def test_tensors_and_other_types_do() -> None:
    halves = [torch.from_numpy(array).bfloat16().requires_grad_() for array in (QUERIES, DOCUMENTS)]
    arrays = [half.detach().float().numpy() for half in halves]
    assert same(drift(Embeddings(*halves), CANDIDATE), drift(Embeddings(*arrays), CANDIDATE))
    whole = Embeddings(np.sign(QUERIES).astype(np.int8).tolist(), DOCUMENTS)
    assert drift(REFERENCE, whole).record["data"]["n_queries"] == 30


def test_labels_names_and_other_widths() -> None:
    qrels = {"a0": {"b1": 1}}
    run = drift(
        REFERENCE,
        Embeddings(NOISY[:, :4], DOCUMENTS[:, :4]),
        qrels=qrels,
        input_ids=[f"a{n}" for n in range(30)],
        item_ids=[f"b{n}" for n in range(60)],
        k=5,
    )
    assert run["ndcg@5"].n == 1
    assert run.evidence().depth == 5
    assert str(run.evidence().input_ids[3]) == "a3"


# --- scores -----------------------------------------------------------------------------------


def test_scores_with_labels_by_number() -> None:
    reference = np.array([[0.9, 0.8, 0.1], [0.9, 0.2, 0.1]])
    candidate = np.array([[0.7, 0.8, 0.1], [0.9, 0.2, 0.1]])
    run = drift(reference, candidate, qrels={0: {0: 1}, 1: {0: 1}})
    assert run["flip@1"].value == 0.5
    assert run["gold_lost@1"].value == 0.5
    (one,) = run.changed()
    assert (one.input_id, one.kind, one.before, one.after) == ("0", "harmful", "0", "1")
    assert one.separation == pytest.approx(0.1 / (2 * 0.2))


def test_data_give_names_labels_and_texts(tmp_path: Path) -> None:
    data = RetrievalDataset.of({"q": "a query"}, {"x": "one", "y": "two"}, {"q": {"y": 1}})
    scores = np.array([[0.2, 0.1]]), np.array([[0.1, 0.2]])
    run = drift(*scores, data)
    (one,) = run.changed()
    assert (one.input_id, one.before, one.after, one.kind) == ("q", "x", "y", "beneficial")
    with pytest.raises(DataError, match="2 documents"):
        drift(scores[0][:, :1], scores[1][:, :1], data)
    with pytest.raises(DataError, match="qrels"):
        drift(*scores, data, qrels={"q": {"x": 1}})


# --- logits -----------------------------------------------------------------------------------


def test_logits_are_read_as_classes() -> None:
    reference = np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    candidate = np.array([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    for labels in ([0, 0, 1], ["joy", "joy", "anger"]):
        run = drift(reference, candidate, classes=["joy", "anger"], labels=labels)
        assert run["reference.accuracy"].value == 1
        assert run["accuracy"].value == pytest.approx(2 / 3)
        assert run.evidence().confidence is not None
    bare = drift(reference, candidate, classes=["joy", "anger"])
    assert bare["flip@1"].value == pytest.approx(1 / 3)
    assert bare["accuracy"].value is None
    part = Labelled(ids=("a", "b", "c"), inputs=("1", "2", "3"), labels=("joy", "joy", "anger"))
    data = ClassificationDataset(name="d", kind="text", split="test", test=part)
    of_data = drift(reference, candidate, data, classes=["joy", "anger"])
    assert of_data["accuracy"].value == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="classes"):
        drift(reference, candidate, data)
    with pytest.raises(DataError, match="3 inputs"):
        drift(reference[:2], candidate[:2], data, classes=["joy", "anger"])


# --- refusals ---------------------------------------------------------------------------------

S = np.zeros((2, 3))
NAN = np.array([[0.0, 1.0, 2.0], [0.0, np.nan, 2.0]])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "told"),
    [
        ((S, S[:, :2]), {}, ScoreError, "(2, 3) and (2, 2)"),
        ((S, S[0]), {}, ScoreError, "(3,)"),
        ((S, [[1, 2, 3], [1]]), {}, ScoreError, "candidate scores"),
        ((S, NAN), {}, ScoreError, "row 1"),
        ((S, S.astype(object)), {}, ScoreError, "object"),
        ((S[:0], S[:0]), {}, ScoreError, "(0, 3)"),
        ((S, S), {"k": 0}, ScoreError, "k of at least 1"),
        ((REFERENCE, Embeddings(NOISY[:5], DOCUMENTS)), {}, ScoreError, "30 and 5"),
        ((Embeddings(QUERIES[:, :3], DOCUMENTS), CANDIDATE), {}, ScoreError, "one dim"),
        ((Embeddings(QUERIES * np.inf, DOCUMENTS), CANDIDATE), {}, ScoreError, "row 0"),
        ((Embeddings(1e38 * QUERIES, DOCUMENTS), CANDIDATE), {"similarity": "dot"}, ScoreError, "not all finite"),
        ((S, S), {"input_ids": ["a"]}, DataError, "each of 2"),
        ((S, S), {"input_ids": ["a", "a"]}, DataError, "twice"),
        ((S, S), {"item_ids": ["a"]}, DataError, "each of 3"),
        ((S, S), {"qrels": {"x": {"0": 1}}}, DataError, "no judgement"),
        ((S, S), {"qrels": {"0": {"0": 0.5}}}, DataError, "integer"),
        ((S, S), {"labels": ["a", "b"]}, DataError, "classes"),
        ((S, S), {"similarity": "dot"}, DataError, "similarity"),
        ((S, S), {"classes": ["a"]}, DataError, "classes"),
        ((S, S), {"classes": ["a", "b", "c"], "labels": ["a"]}, DataError, "of one number"),
        ((S, S), {"classes": ["a", "b", "c"], "qrels": {"0": {"a": 1}}}, DataError, "qrels"),
        ((REFERENCE, CANDIDATE), {"classes": ["a"]}, DataError, "logits"),
        ((REFERENCE, S), {}, UnsupportedError, "Embeddings and ndarray"),
        ((S, None), {}, UnsupportedError, "NoneType"),
        ((S, "W4"), {}, UnsupportedError, "ndarray and str"),
        ((S, S), {"data": 7}, DataError, "int"),
        ((S, S), {"data": "PythonDocsRetrieva"}, UnknownNameError, "PythonDocsRetrieval"),
        (("minilm", "W4rtn", RetrievalDataset.of(["q"], ["d"])), {}, SpecError, "W4rtn"),
        (("minilm@W9", None, RetrievalDataset.of(["q"], ["d"])), {}, SpecError, "9"),
        (("minilm", "W4"), {}, DataError, "data"),
        (("minilm", S, RetrievalDataset.of(["q"], ["d"])), {}, UnsupportedError, "ndarray"),
        (("minilm", "W4"), {"labels": ["a"]}, DataError, "labels"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error) as caught:
        drift(*arguments, **options)
    assert isinstance(caught.value, QuantDriftError)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


# --- the run ----------------------------------------------------------------------------------


def test_a_run_without_a_place_goes_when_nobody_holds_it(tmp_path: Path) -> None:
    run = drift(REFERENCE, CANDIDATE)
    place = run.path
    assert read_run(place).record == run.record
    kept = run.save(tmp_path / "kept")
    del run
    gc.collect()
    assert not place.exists()
    assert read_run(tmp_path / "kept")["flip@1"] == kept["flip@1"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match=r"mine\.txt"):
        kept.save(tmp_path / "other")


def test_nothing_is_left_of_a_call_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ScoreError):
        drift(S, NAN)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_place_is_looked_at_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match=r"mine\.txt"):
        drift(S, NAN, out=tmp_path)
    run = drift(REFERENCE, CANDIDATE, out=str(tmp_path / "run"))
    assert run.path == tmp_path / "run"
    assert read_run(run.path).record == run.record


def test_runs_of_one_reference_are_compared_by_folder_and_name(tmp_path: Path) -> None:
    a = drift(REFERENCE, CANDIDATE, out=tmp_path / "a")
    b = drift(REFERENCE, Embeddings(QUERIES + 1, DOCUMENTS), out=tmp_path / "b")
    by_name = compare_runs(str(a.path), b.path, ["flip@1"])
    by_metric = compare_runs(a, b, [parse_metric("flip@1")])
    assert by_name.metrics == by_metric.metrics
    other = drift(Embeddings(QUERIES + 1, DOCUMENTS), CANDIDATE)
    with pytest.raises(RunError, match="reference"):
        compare_runs(a, other, "flip@1")


def test_metrics_by_name() -> None:
    evidence = drift(REFERENCE, CANDIDATE).evidence()
    found = measure(evidence, ["flip@1", parse_metric("separation")])
    assert list(found) == ["flip@1", "separation"]
    assert measure(evidence, "flip@1") == {"flip@1": found["flip@1"]}
    with pytest.raises(UnknownNameError, match="flip"):
        measure(evidence, ["flop@1"])


def test_a_data_frame_has_a_row_an_input() -> None:
    pytest.importorskip("pandas")
    run = drift(REFERENCE, CANDIDATE, qrels={"0": {"0": 1}})
    frame = run.to_pandas(["recall@1", "change.ndcg@10"])
    evidence = run.evidence()
    assert frame.index.tolist() == evidence.input_ids.tolist()
    assert frame.flip.tolist() == perturbation.flips(evidence).tolist()
    assert frame.separation.to_numpy() == pytest.approx(perturbation.separation_ratio(evidence))
    assert (frame.reference != frame.candidate).tolist() == frame.flip.tolist()
    assert frame.reference_relevant.notna().tolist() == [True] + [False] * 29
    assert frame["recall@1"].notna().sum() == 1
    with pytest.raises(MetricError):
        run.to_pandas(["relative.ndcg@10"])


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = drift(REFERENCE, CANDIDATE)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError) as caught:
        run.to_pandas()
    assert caught.value.extra == "pandas"


def test_drift_is_found_without_loading_torch() -> None:
    code = (
        "import sys, quantdrift\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
        "from quantdrift import drift, Embeddings\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- pairs and datasets -----------------------------------------------------------------------


def test_a_pair_takes_a_module_or_several_and_a_string() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    weights = [layer.weight.detach().clone() for layer in model]
    found = []
    for modules in (model, [model], list(model)):
        pair = QuantizedPair(modules, "W2-rtn")
        with pair.candidate():
            found.append([layer.weight.detach().clone() for layer in model])
        assert all(torch.equal(a.weight, b) for a, b in zip(model, weights, strict=True))
    assert all(torch.equal(a, b) for made in found for a, b in zip(found[0], made, strict=True))
    assert not torch.equal(found[0][0], weights[0])
    with pytest.raises(SpecError):
        QuantizedPair(model, "W4rtn")
    with pytest.raises(UnsupportedError, match="str"):
        QuantizedPair(["minilm"], "W4")  # type: ignore[list-item]


def test_texts_in_memory() -> None:
    data = RetrievalDataset.of(
        ["which?"], {"d": {"title": "A title", "text": "and a text"}, "e": "alone"}, {"0": {"e": 1}}
    )
    assert (data.query_ids, data.document_ids) == (("0",), ("d", "e"))
    assert data.documents == ("A title and a text", "alone")
    for queries, told in (("which?", "one string"), ([], "no queries"), ([7], "string")):
        with pytest.raises(DataError, match=told):
            RetrievalDataset.of(queries, ["d"])  # type: ignore[arg-type]
