"""`quantdrift.drift` of arrays, and what a run tells in Python."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quantdrift import Embeddings, RetrievalDataset, drift, read_run
from quantdrift.base.errors import (
    DataError,
    QuantDriftError,
    RunError,
    ScoreError,
    SpecError,
    UnknownNameError,
    UnsupportedError,
)
from quantdrift.data.labelled import ClassificationDataset, Labelled
from quantdrift.evidence import perturbation
from quantdrift.metrics import MetricError
from quantdrift.show.run import run_output
from support.command_line import cli
from support.small_evidence import assert_same

RNG = np.random.default_rng(0)
QUERIES, DOCUMENTS = RNG.normal(size=(30, 8)), RNG.normal(size=(60, 8))
NOISY = QUERIES + 0.2 * RNG.normal(size=QUERIES.shape)
TWO = np.array([[0.9, 0.1], [0.2, 0.8]])
REFERENCE, CANDIDATE = Embeddings(QUERIES, DOCUMENTS), Embeddings(NOISY, DOCUMENTS)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_embeddings_give_the_evidence_of_their_scores(similarity: str) -> None:
    evidence = drift(REFERENCE, CANDIDATE, similarity=similarity).evidence()
    lengths = [np.linalg.norm(part, axis=1, keepdims=True) for part in (QUERIES, NOISY, DOCUMENTS)]
    scores = [part @ DOCUMENTS.T for part in (QUERIES, NOISY)]
    if similarity == "cosine":
        scores = [dots / length / lengths[2].T for dots, length in zip(scores, lengths[:2], strict=True)]
    elif similarity == "euclidean":
        scores = [-np.linalg.norm(part[:, None] - DOCUMENTS[None], axis=2) for part in (QUERIES, NOISY)]
    flips = scores[0].argmax(axis=1) != scores[1].argmax(axis=1)
    assert np.array_equal(perturbation.flips(evidence), flips)
    assert np.allclose(perturbation.epsilon(evidence), np.abs(scores[1] - scores[0]).max(axis=1), atol=1e-4)


def test_tensors_and_other_types_do() -> None:
    halves = [torch.from_numpy(array).bfloat16().requires_grad_() for array in (QUERIES, DOCUMENTS)]
    arrays = [half.detach().float().numpy() for half in halves]
    assert_same(*(drift(Embeddings(*sides), CANDIDATE).evidence() for sides in (halves, arrays)))
    whole = Embeddings(np.sign(QUERIES).astype(np.int8).tolist(), DOCUMENTS)
    assert drift(REFERENCE, whole).record["data"]["n_queries"] == 30


def test_scores_with_labels_by_number() -> None:
    reference = np.array([[0.9, 0.8, 0.1], [0.9, 0.2, 0.1]])
    candidate = np.array([[0.7, 0.8, 0.1], [0.9, 0.2, 0.1]])
    run = drift(reference, candidate, qrels={0: {0: 1}, 1: {0: 1}})
    assert (run["flip@1"].value, run["gold_lost@1"].value) == (0.5, 0.5)
    (query,) = run.changed()
    assert (query.input_id, query.kind, query.before, query.after) == ("0", "harmful", "0", "1")
    assert query.separation == pytest.approx(0.1 / (2 * 0.2))


def test_logits_are_read_as_classes() -> None:
    reference = np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    candidate = np.array([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    for labels in ([0, 0, 1], ["joy", "joy", "anger"]):
        run = drift(reference, candidate, classes=["joy", "anger"], labels=labels)
        assert (run["reference.accuracy"].value, run["accuracy"].value) == (1, pytest.approx(2 / 3))
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
    with pytest.raises(DataError, match=r"\[3\] inputs"):
        drift(reference[:2], candidate[:2], data, classes=["joy", "anger"])


S = np.zeros((2, 3))
NAN = np.array([[0.0, 1.0, 2.0], [0.0, np.nan, 2.0]])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((S, S[:, :2]), {}, ScoreError, "(2, 3) and (2, 2)"),
        ((S, [[1, 2, 3], [1]]), {}, ScoreError, "candidate scores"),
        ((S, NAN), {}, ScoreError, "finite"),
        ((S[:0], S[:0]), {}, ScoreError, "(0, 3)"),
        ((S, S), {"k": 0}, ScoreError, "k of at least 1"),
        ((REFERENCE, Embeddings(NOISY[:5], DOCUMENTS)), {}, ScoreError, "(30, 8) and (60, 8), and (5, 8)"),
        ((Embeddings(1e38 * QUERIES, DOCUMENTS), CANDIDATE), {"similarity": "dot"}, ScoreError, "not all finite"),
        ((S, S), {"input_ids": ["a"]}, DataError, "of 2 names"),
        ((S, S), {"input_ids": ["a", "a"]}, DataError, "twice"),
        ((S, S), {"qrels": {"x": {"0": 1}}}, DataError, "no judgement"),
        ((S, S), {"labels": ["a", "b"]}, DataError, "labels given, and scores take"),
        ((S, S), {"similarity": "dot"}, DataError, "similarity"),
        ((REFERENCE, CANDIDATE), {"classes": ["a"]}, DataError, "classes given, and embeddings take"),
        ((REFERENCE, S), {}, UnsupportedError, "Embeddings and ndarray"),
        ((S, S), {"data": "PythonDocsRetrieva"}, UnknownNameError, "PythonDocsRetrieval"),
        (("minilm", "int4", RetrievalDataset.of(["q"], ["d"])), {}, SpecError, "did you mean W4"),
        (("minilm", "./none", RetrievalDataset.of(["q"], ["d"])), {}, UnsupportedError, "no folder none"),
        (("minilm", "W4rtn", RetrievalDataset.of(["q"], ["d"])), {}, SpecError, "W4rtn"),
        (("minilm", "W4"), {}, DataError, "data"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        drift(*arguments, **options)
    assert isinstance(caught.value, QuantDriftError)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_folder_and_no_task_is_refused_before_mteb_loads() -> None:
    code = (
        "import sys, quantdrift\n"
        "try: quantdrift.drift('minilm', 'W4', 'nosuch')\n"
        "except quantdrift.QuantDriftError as error: print(error)\n"
        "assert 'mteb' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "'nosuch'" in done.stdout, "folder" in done.stdout) == (0, True, True), done.stderr


@pytest.mark.parametrize("spec", ["minilmm@W4", "all-MiniLM-L6-v2@W4", "minilm vs ./none", "minilm@W4+seed=1"])
def test_a_pair_that_cannot_be_is_refused_before_a_task_is_downloaded(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_task(*_: Any) -> None:
        raise AssertionError("a task is downloaded")

    for module in ("quantdrift.api", "quantdrift.data.labelled"):
        monkeypatch.setattr(f"{module}.load_task", load_task)
    with pytest.raises(QuantDriftError):
        drift(spec, data="SciFact")
    for command in ("run", "gate"):
        code, _, err = cli(command, spec, "--task", "SciFact")
        assert (code, "downloaded" in err) == (2, False), err


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


def test_drift_is_found_without_loading_torch() -> None:
    code = (
        "import sys, quantdrift\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
        "from quantdrift import drift, Embeddings\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_in_which_nothing_changed_has_no_changed_inputs() -> None:
    assert drift(TWO, TWO).changed() == drift(TWO, TWO).changed(k=2) == []
    assert len(drift(TWO, TWO[:, ::-1]).changed()) == 2


def test_a_run_tells_verdict_findings_and_metrics(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(200, 5))
    qrels = {row: {int(scores[row].argmax()): 1} for row in range(200)}
    run = drift(scores, scores + rng.normal(size=scores.shape), qrels=qrels, out=tmp_path / "run")
    lines = run.summary().splitlines()
    assert lines[0].startswith("reference vs candidate on arrays: 200 queries")
    assert lines[1].startswith("Verdict: right answers lost.")
    worst, beside = (lines.index(line) for line in lines if line.startswith(("The worst 3 of", "Figures")))
    assert 1 < worst < beside
    shown = run_output(run)
    assert [*shown.about] == lines[1 : 1 + len(shown.about)]  # as the command line has it
    assert 4 <= len(shown.grids[1].rows) <= 5
    assert run.summary().count(f"{run['ndcg@10'].value:.4f}") == 1
    assert run.metrics["flip@1"].value == run["flip@1"].value
    assert read_run(tmp_path / "run").summary() == run.summary()
    again = run.save(tmp_path / "again").summary()
    assert again.replace(str(tmp_path / "again"), str(tmp_path / "run")) == run.summary()


def test_a_notebook_shows_a_run_as_text_and_not_as_markup() -> None:
    run = drift(TWO, TWO)
    hostile = type(run)(path=run.path, record={**run.record, "spec": "<script>alert(1)</script>"}, keeper=run.keeper)
    html = hostile._repr_html_()
    assert "<script>" not in html
    assert all(part in html for part in ("&lt;script&gt;", "Verdict: "))


def test_a_temporary_run_names_no_folder_that_goes() -> None:
    run = drift(TWO, TWO[:, ::-1])
    assert str(run.path) not in run.summary()


def test_a_run_writes_its_page(tmp_path: Path) -> None:
    data = RetrievalDataset.of({"q": "which cow", "r": "which goat"}, ["a cow", "a goat"])
    run = drift(TWO, TWO[:, ::-1], data)
    place = run.report(tmp_path / "run.html")
    assert "2 changed inputs" in place.read_text(encoding="utf-8")
    with pytest.raises(QuantDriftError):
        run.report(tmp_path / "missing.html", data=tmp_path / "nothing")
