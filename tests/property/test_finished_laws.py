"""Laws of comparing finished lists: what cutting them short can and cannot change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdrift import perturbation
from quantdrift.engine.measure import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.evidence import Evidence
from quantdrift.finished.contents import FinishedRun, Part
from quantdrift.finished.diff import diff_runs
from quantdrift.metrics import default_metrics, measure, parse_metric

Lists = dict[str, dict[str, float]]
FINITE = st.floats(-4, 4, width=32)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    shape = draw(st.integers(1, 5)), draw(st.integers(2, 7))
    flat = st.lists(FINITE, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1], unique=True)
    one, other = (np.array(draw(flat), dtype=np.float32).reshape(shape) for _ in range(2))
    return one, other


def lists(scores: np.ndarray, k: int) -> Lists:  # type: ignore[type-arg]
    """The first k of every row."""
    return {
        f"q{row}": {f"d{item}": float(own[item]) for item in np.argsort(-own)[:k]} for row, own in enumerate(scores)
    }


def diff(a: Lists, b: Lists, qrels: Mapping[str, Mapping[str, int]], **options: bool) -> Evidence:
    runs = [
        FinishedRun(
            path=Path(name), format="json", name=name, digest=name, parts={"": Part(kind="rankings", content=own)}
        )
        for name, own in (("a", a), ("b", b))
    ]
    (part,) = diff_runs(*runs, qrels=qrels, **options).parts
    assert part.evidence is not None
    return part.evidence


def gold(scores: np.ndarray) -> dict[str, dict[str, int]]:  # type: ignore[type-arg]
    return {f"q{row}": {f"d{own.argmax()}": 1} for row, own in enumerate(scores)}


@settings(max_examples=25, deadline=None)
@given(matrices())
def test_a_diff_of_whole_lists_is_the_evidence_of_the_scores(
    pair: tuple[np.ndarray, np.ndarray],  # type: ignore[type-arg]
) -> None:
    reference, candidate = pair
    n = reference.shape[1]
    qrels = gold(reference)
    found = diff(lists(reference, n), lists(candidate, n), qrels, complete=True)
    exact = assemble(
        score_matrix(reference, candidate, k=n),
        input_ids=[f"q{row}" for row in range(len(reference))],
        item_ids=[f"d{item}" for item in range(n)],
        qrels=qrels,
    )
    assert measure(found) == measure(exact)


@settings(max_examples=80, deadline=None)
@given(matrices(), st.integers(1, 6))
def test_cutting_lists_short_only_loosens_bounds(
    pair: tuple[np.ndarray, np.ndarray],  # type: ignore[type-arg]
    k: int,
) -> None:
    reference, candidate = pair
    n, qrels = reference.shape[1], gold(reference)
    whole = diff(lists(reference, n), lists(candidate, n), qrels, complete=True)
    a, b = lists(reference, k), lists(candidate, k)
    if not any(own.keys() & b[query].keys() for query, own in a.items()):
        return  # refused: no input has an item in both
    cut = diff(a, b, qrels)
    np.testing.assert_array_equal(perturbation.flips(cut), perturbation.flips(whole))
    assert (perturbation.epsilon(cut) <= perturbation.epsilon(whole)).all()
    assert (perturbation.perturbation_s(cut) <= perturbation.perturbation_s(whole)).all()
    known = ~np.isnan(perturbation.gap(cut))
    ratios = perturbation.separation_ratio(cut)[known], perturbation.separation_ratio(whole)[known]
    assert (ratios[0] >= ratios[1]).all()
    rests_on_epsilon = [m for m in default_metrics() if m.family.when_cut != "the same"]
    for metric in rests_on_epsilon:
        if metric.family.cutoff_is == "rank" and metric.cutoff >= cut.depth:
            continue  # the lists are not that deep
        if max(metric.family.ranks, 1) > cut.depth:
            continue
        estimate = metric(cut)
        assert estimate.value is None or estimate.bound is not None, metric


@settings(max_examples=40, deadline=None)
@given(matrices(), st.integers(1, 7))
def test_a_run_against_itself_changes_nothing(
    pair: tuple[np.ndarray, np.ndarray],  # type: ignore[type-arg]
    k: int,
) -> None:
    own = lists(pair[0], k)
    found = diff(own, own, gold(pair[0]))
    assert not perturbation.flips(found).any()
    assert (perturbation.epsilon(found) == 0).all()
    # lists that are not that deep have no nDCG@10
    changes = ["change.accuracy", *(["change.ndcg@2"] if found.depth > 1 else [])]
    assert all(parse_metric(name)(found).value == 0 for name in changes)


@settings(max_examples=40, deadline=None)
@given(matrices(), st.integers(1, 7))
def test_swapping_the_runs_keeps_flips_and_epsilon(
    pair: tuple[np.ndarray, np.ndarray],  # type: ignore[type-arg]
    k: int,
) -> None:
    a, b = (lists(scores, k) for scores in pair)
    if not any(own.keys() & b[query].keys() for query, own in a.items()):
        return
    there, back = diff(a, b, gold(pair[0])), diff(b, a, gold(pair[0]))
    np.testing.assert_array_equal(perturbation.flips(there), perturbation.flips(back))
    np.testing.assert_array_equal(perturbation.epsilon(there), perturbation.epsilon(back))
