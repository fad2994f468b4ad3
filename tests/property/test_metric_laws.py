"""Laws of the metrics; scores are whole numbers, so that no law is lost to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.assembly import assemble
from quantdrift.evidence import Evidence
from quantdrift.metrics import default_metrics, measure, parse_metric
from quantdrift.scoring import score_matrix

Scores = NDArray[np.float64]
Pair = tuple[Scores, Scores]
Qrels = Mapping[str, Mapping[str, int]]

SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 15))


@st.composite
def pairs(draw: st.DrawFn, *, largest: int = 8) -> Pair:
    """Two matrices [n_queries, n_docs] of small whole numbers, ties included."""
    matrix = arrays(np.int64, draw(SHAPES), elements=st.integers(-largest, largest))
    reference = draw(matrix)
    change = arrays(np.int64, reference.shape, elements=st.integers(-3, 3))
    return reference.astype(np.float64), (reference + draw(change)).astype(np.float64)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Pair, Qrels]:
    pair = draw(pairs())
    documents = st.sampled_from([*names(pair[0].shape[1]), "elsewhere"])
    grades = st.dictionaries(documents, st.integers(-1, 3), max_size=6)
    return pair, {f"q{row}": draw(grades) for row in range(len(pair[0]))}


def names(n_docs: int) -> list[str]:
    return [f"d{position}" for position in range(n_docs)]


def evidence_of(pair: Pair, qrels: Qrels | None = None, k: int = 20) -> Evidence:
    return assemble(
        score_matrix(*pair, k=k),
        input_ids=[f"q{row}" for row in range(len(pair[0]))],
        item_ids=names(pair[0].shape[1]),
        qrels=qrels,
    )


def values(metric: str, evidence: Evidence) -> NDArray[np.float64]:
    return parse_metric(metric).per_input(evidence)


# --- both arms ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(labelled())
def test_a_model_against_itself_shows_no_damage(case: tuple[Pair, Qrels]) -> None:
    (reference, _), qrels = case
    evidence = evidence_of((reference, reference), qrels)
    for metric in ("flip@1", "epsilon", "S", "at_risk", "gold_lost@1", "gold_lost@5"):
        found = values(metric, evidence)
        assert (found[~np.isnan(found)] == 0).all(), metric
    found = values("separation", evidence)
    assert np.isposinf(found[~np.isnan(found)]).all()
    for metric in ("ndcg@10", "recall@1", "mrr@10"):
        both = values(metric, evidence), values(f"reference.{metric}", evidence)
        np.testing.assert_array_equal(*both)


@settings(deadline=None)
@given(labelled(), st.integers(-50, 50))
def test_a_shift_of_all_candidate_scores_moves_nobody(case: tuple[Pair, Qrels], shift: int) -> None:
    (reference, candidate), qrels = case
    plain = evidence_of((reference, candidate), qrels)
    shifted = evidence_of((reference, candidate + shift), qrels)
    for metric in ("flip@1", "S", "gap", "candidate_gap", "gold_lost@1", "gold_lost@5", "ndcg@10"):
        np.testing.assert_array_equal(values(metric, shifted), values(metric, plain))


@settings(deadline=None)
@given(pairs(), st.integers(-10, 10), st.sampled_from([1, 3, 5]))
def test_scores_in_another_unit_leave_what_has_none(pair: Pair, power: int, factor: int) -> None:
    scale = 2.0**power * factor
    plain, scaled = evidence_of(pair), evidence_of((pair[0] * scale, pair[1] * scale))
    for metric in ("flip@1", "separation", "at_risk", "tied"):
        np.testing.assert_allclose(values(metric, scaled), values(metric, plain), rtol=1e-12)
    for metric in ("epsilon", "S", "gap", "candidate_gap"):
        np.testing.assert_allclose(
            values(metric, scaled), scale * values(metric, plain), rtol=1e-12
        )


@settings(deadline=None)
@given(labelled())
def test_what_looks_at_ranks_only_survives_a_monotone_map(case: tuple[Pair, Qrels]) -> None:
    (reference, candidate), qrels = case
    plain = evidence_of((reference, candidate), qrels)
    mapped = evidence_of((np.exp2(reference), candidate**3), qrels)  # strictly increasing, exact
    for metric in ("flip@1", "tied", "gold_lost@1", "gold_lost@5", "ndcg@10", "recall@1", "mrr@10"):
        np.testing.assert_array_equal(values(metric, mapped), values(metric, plain))


@settings(deadline=None, max_examples=40)
@given(labelled(), st.randoms(use_true_random=False))
def test_the_order_of_inputs_leaves_the_estimates(case: tuple[Pair, Qrels], rng: Any) -> None:
    (reference, candidate), qrels = case
    order = rng.sample(range(len(reference)), len(reference))
    plain = measure(evidence_of((reference, candidate), qrels))
    moved_qrels = {f"q{row}": qrels[f"q{old}"] for row, old in enumerate(order)}
    moved = measure(evidence_of((reference[order], candidate[order]), moved_qrels))
    for metric in default_metrics():
        one, other = plain[str(metric)], moved[str(metric)]
        assert (one.n, one.reason) == (other.n, other.reason)
        assert one.value == (None if other.value is None else pytest.approx(other.value))
        if metric.family.uncertainty != "bootstrap":  # that draws by place
            assert (one.low, one.high) == (other.low, other.high)


# --- the theory --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(pairs())
def test_what_a_flip_implies(pair: Pair) -> None:
    """Equality holds only where the candidate's own ranks 1 and 2 tie, and position decides."""
    evidence = evidence_of(pair)
    flipped = perturbation.flips(evidence)
    separation, s = perturbation.separation_ratio(evidence), perturbation.perturbation_s(evidence)
    candidate_gap, epsilon = perturbation.candidate_gap(evidence), perturbation.epsilon(evidence)
    tied = candidate_gap == 0
    assert (separation[flipped & ~tied] < 1).all()
    assert (separation[flipped] <= 1).all()
    assert (candidate_gap[flipped] <= s[flipped]).all()
    assert ((s >= 0) & (s <= 2 * epsilon)).all()


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.floats(-1, 1, width=32), st.floats(-1, 1, width=32)), min_size=2, max_size=12
    )
)
def test_what_a_flip_implies_for_any_scores(rows: list[tuple[float, float]]) -> None:
    """deltas are rounded to float32: the bounds hold to within that."""
    scores = np.array(rows).T
    evidence = evidence_of((scores[:1], scores[1:]))
    (s,), (epsilon,) = perturbation.perturbation_s(evidence), perturbation.epsilon(evidence)
    assert 0 <= s <= 2 * epsilon
    if perturbation.flips(evidence)[0]:
        assert perturbation.separation_ratio(evidence)[0] <= 1 + 2.0**-23
        assert perturbation.candidate_gap(evidence)[0] <= s + 2.0**-23 * epsilon


@settings(deadline=None)
@given(pairs())
def test_contenders_are_those_within_reach(pair: Pair) -> None:
    evidence = evidence_of(pair)
    reference, reach = pair[0], 2 * np.abs(pair[1] - pair[0]).max(axis=1)
    for row, count in enumerate(perturbation.contender_count(evidence).tolist()):
        gaps = reference[row].max() - np.sort(reference[row])[::-1][1:]
        assert count == (gaps < reach[row]).sum()
    at_risk = perturbation.at_risk(evidence)
    if reference.shape[1] > 1:
        np.testing.assert_array_equal(at_risk, perturbation.contender_count(evidence) > 0)


# --- against trec_eval -------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 6), st.integers(1, 40), st.randoms(use_true_random=False), st.data())
def test_quality_is_that_of_trec_eval(
    n_queries: int, n_docs: int, rng: Any, data: st.DataObject
) -> None:
    """Without ties, whose order trec_eval decides by name."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    matrix = np.array(
        [rng.sample(range(n_docs), n_docs) for _ in range(2 * n_queries)], dtype=float
    )
    pair = matrix[:n_queries], matrix[n_queries:]
    judged = st.dictionaries(
        st.sampled_from([*names(n_docs), "elsewhere"]), st.integers(0, 4), max_size=8
    )
    qrels = {f"q{row}": data.draw(judged) for row in range(n_queries)}
    evidence = evidence_of(pair, qrels, k=10)
    measures = {"ndcg_cut.10", "ndcg_cut.3", "recall.1,5,10", "recip_rank"}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, measures)
    for prefix, scores in (("reference.", pair[0]), ("", pair[1])):
        top = [np.argsort(-row)[:10] for row in scores]  # recip_rank has no cut-off of its own
        run = {
            f"q{row}": {f"d{item}": float(scores[row, item]) for item in items.tolist()}
            for row, items in enumerate(top)
        }
        oracle = evaluator.evaluate(run)
        for ours, theirs in {
            "ndcg@10": "ndcg_cut_10",
            "ndcg@3": "ndcg_cut_3",
            "recall@1": "recall_1",
            "recall@5": "recall_5",
            "recall@10": "recall_10",
            "mrr@10": "recip_rank",
        }.items():
            found = values(prefix + ours, evidence)
            for row, value in enumerate(found.tolist()):
                if max(qrels[f"q{row}"].values(), default=0) > 0:
                    assert value == pytest.approx(oracle[f"q{row}"][theirs], abs=1e-12), ours
                else:  # trec_eval counts such a query as 0, we leave it out
                    assert np.isnan(value)
