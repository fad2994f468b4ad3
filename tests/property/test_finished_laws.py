"""Laws of comparing finished lists: what cutting them short can and cannot change."""

from pathlib import Path

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.finished.contents import FinishedRun, Part
from quantdrift.finished.diff import diff_runs
from quantdrift.measuring.flow import assemble
from quantdrift.metrics import default_metrics, measure
from quantdrift.scoring.streamed import score_matrix

Scores = NDArray[np.float32]
FINITE = st.floats(-4, 4, width=32)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Scores, Scores]:
    shape = draw(st.integers(1, 5)), draw(st.integers(2, 7))
    flat = st.lists(FINITE, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1], unique=True)
    before, after = (np.array(draw(flat), dtype=np.float32).reshape(shape) for _ in range(2))
    return before, after


def diff(a: Scores, b: Scores, k: int, *, gold: Scores, **options: bool) -> Evidence:
    """Of the first k of every row; the best of `gold` is relevant."""
    lists = [
        {
            f"q{row}": {f"d{item}": float(row_scores[item]) for item in np.argsort(-row_scores)[:k]}
            for row, row_scores in enumerate(scores)
        }
        for scores in (a, b)
    ]
    assume(any(row_scores.keys() & lists[1][query].keys() for query, row_scores in lists[0].items()))
    runs = [
        FinishedRun(
            path=Path(name),
            format="json",
            name=name,
            digest=name,
            parts={"": Part(kind="rankings", content=row_scores)},
        )
        for name, row_scores in zip("ab", lists, strict=True)
    ]
    (part,) = diff_runs(runs[0], runs[1], qrels=qrels_of(gold), **options).parts
    assert part.evidence is not None
    return part.evidence


def qrels_of(scores: Scores) -> dict[str, dict[str, int]]:
    return {f"q{row}": {f"d{row_scores.argmax()}": 1} for row, row_scores in enumerate(scores)}


@given(matrices())
def test_a_diff_of_whole_lists_is_the_evidence_of_the_scores(pair: tuple[Scores, Scores]) -> None:
    reference, candidate = pair
    n = reference.shape[1]
    exact = assemble(
        score_matrix(reference, candidate, k=n),
        input_ids=[f"q{row}" for row in range(len(reference))],
        item_ids=[f"d{item}" for item in range(n)],
        qrels=qrels_of(reference),
    )
    assert measure(diff(*pair, n, gold=reference, complete=True)) == measure(exact)


@given(matrices(), st.integers(1, 6))
def test_cutting_lists_short_only_loosens_bounds(pair: tuple[Scores, Scores], k: int) -> None:
    whole = diff(*pair, pair[0].shape[1], gold=pair[0], complete=True)
    cut = diff(*pair, k, gold=pair[0])
    np.testing.assert_array_equal(perturbation.flips(cut), perturbation.flips(whole))
    assert (perturbation.epsilon(cut) <= perturbation.epsilon(whole)).all()
    assert (perturbation.perturbation_s(cut) <= perturbation.perturbation_s(whole)).all()
    defined = ~np.isnan(perturbation.gap(cut))
    ratios = perturbation.separation_ratio(cut)[defined], perturbation.separation_ratio(whole)[defined]
    assert (ratios[0] >= ratios[1]).all()
    for metric in default_metrics():
        needed = max(metric.cutoff + 1 if metric.family.cutoff_is == "rank" else 1, metric.family.ranks)
        if metric.family.when_cut != "the same" and needed <= cut.depth:
            estimate = metric(cut)
            assert estimate.value is None or estimate.bound is not None, metric
