"""What a run says of what it measured."""

from typing import Any

import pytest

from quantdrift.finished.texts import Texts
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import show_interval
from quantdrift.runs import words
from quantdrift.runs.changes import Changed
from quantdrift.runs.verdict import verdict
from quantdrift.runs.words import candidate_lines, data_line, weights_line
from quantdrift.show.changes import changed_columns
from quantdrift.show.run import figure_grid
from quantdrift.statistics.estimates import Estimate


@pytest.mark.parametrize(
    ("size", "dim", "beside"),
    [
        (384.0, 384, ", less than 384 numbers of plain float32 take (1,536)"),
        (1807.6, 384, ", more than 384 numbers of plain float32 take (1,536)"),
        (256.0, 64, ", as many as 64 numbers of plain float32 take (256)"),
        (608.0, None, ""),  # of several rows
    ],
)
def test_bytes_and_times_are_told_with_what_they_are_compared_to(size: float, dim: int | None, beside: str) -> None:
    stored = {"precision": "int8", "dim": dim, "bytes_per_document": size}
    (line,) = candidate_lines({"data": {}, "deployment": stored})
    assert line == f"embeddings: int8, {size:,.0f} bytes a document{beside}"
    index = {"name": "HNSW32", "library": "faiss 1", "bytes_per_document": size}
    deployment = {"precision": "int8", "dim": dim, "bytes_per_document": 1.0, "index": index}
    times = {"query": {"index": 2e-5, "ratio": 2.0006}}
    (line,) = candidate_lines({"data": {}, "deployment": deployment, "times": times})
    took = "a query takes 0.02 ms, 2 times as long as exact search in the same process"
    assert line == f"index: HNSW32 by faiss 1, {size:,.0f} bytes a document{beside}, {took}"


HALF = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8}
EVERY = ("accuracy", "reference.accuracy", "ndcg@10", "reference.ndcg@10", "gold_lost@10", "at_risk", "accepted@0.10")
BITS = {"linear": 4.0, "linear_with_scales": 4.125, "all_parameters": 18.789, "n_quantized": 10, "n_parameters": 20}
STORED = {"precision": "int8", "dim": 384, "bytes_per_document": 384.0, "index": None}


def figures(kind: str | None = None, **more: Any) -> list[list[str]]:
    record = {"data": {"kind": kind}, "metrics": dict.fromkeys((*EVERY, "flip@1"), HALF)}
    return [list(row) for row in figure_grid(record | more).rows]


def test_five_figures_at_most_stand_beside_a_verdict_each_with_what_it_is_of() -> None:
    search, classes = figures(), figures("classification")
    assert [row[0] for row in search[:2]] == ["nDCG@10, reference", "nDCG@10, candidate"]
    assert search[2][1:] == ["50.0 % (25.0 to 75.0)", "8 inputs with one there"]
    assert [row[:2] for row in classes[:1]] == [["accuracy, reference", "50.0 % (25.0 to 75.0)"]]
    assert not [row for row in classes if "nDCG" in row[0] or "first 10" in row[0]]  # of classes only the first counts
    assert (len(search), len(classes)) == (3, 2)


def test_a_harness_that_reads_answers_is_told_of_by_accuracy() -> None:
    """Records of lm-eval's choices have numbers of documents and nDCG, too, which say nothing."""
    said = {"data": {"n_queries": 8, "n_documents": 4}, "settings": {"reading": "log-likelihoods of the choices"}}
    assert data_line(said) == "8 inputs"
    assert figures(**said)[0][0] == "accuracy, reference"
    (changed, *_) = verdict({**said, "metrics": {"flip@1": HALF}}).sentences
    assert changed.startswith("50.0 % of the inputs have another answer ")


def test_what_is_stored_is_a_figure_where_something_is_quantized() -> None:
    whole = ["bits per weight", "4.125", "the linear layers, scales included (18.79 with what stays at full precision)"]
    rows = figures(bits_per_weight=BITS, deployment=STORED)
    assert rows[3:] == [whole, ["bytes a document", "384", "1,536 in float32"]]
    none = {**BITS, "linear": 32.0, "linear_with_scales": 32.0, "all_parameters": 32.0, "n_quantized": 0}
    assert figures(bits_per_weight=none) == figures()
    assert weights_line({"bits_per_weight": none}) == "no weight is quantized"


@pytest.mark.parametrize(("classes", "words"), [(True, ("right", "wrong")), (False, ("relevant", "not relevant"))])
def test_classes_are_right_or_wrong_and_documents_relevant_or_not(classes: bool, words: tuple[str, str]) -> None:
    change = Changed(
        input_id="q", before="a", after="b", rank_before=2, rank_after=2, was_right=True, is_right=False, gap=0.1
    )
    columns = changed_columns(Texts(told=""), exact=True, classes=classes)[1:3]
    assert [f"({word}, " in column.show(column.of(change)) for word, column in zip(words, columns, strict=True)] == [
        True
    ] * 2


def test_a_mean_of_equal_values_has_no_interval_to_show() -> None:
    same = Estimate(value=1.0, low=1.0, high=1.0, n=3)
    assert show_interval(parse_metric("ndcg@10"), same) == ""
    assert show_interval(parse_metric("gap"), same) == "1.000 to 1.000"  # two of its inputs bound a median


def test_ties_are_not_told_where_their_shares_are_of_other_inputs() -> None:
    shares = {"flip@1": (0.35, 40), "flip_least": (0.2286, 35), "flip_expected": (0.243, 35), "flip_most": (0.2571, 35)}
    metrics = {name: {"value": value, "n": n} for name, (value, n) in shares.items()}
    assert list(words._on_ties(metrics, 0.35)) == []
    assert "of the inputs flip" in next(words._on_ties({name: {**it, "n": 35} for name, it in metrics.items()}, 0.35))
