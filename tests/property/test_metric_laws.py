"""Laws of the metrics: what the theory says of them, how they hang together, and what other implementations give."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from quantdrift.evidence import perturbation
from support.metric_samples import Pair, Qrels, evidence_of, labelled, names, pairs, values

# --- the theory --------------------------------------------------------------------------------


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


@given(pairs(), st.integers(1, 6))
def test_a_cut_that_nothing_can_cross_keeps_the_set(pair: Pair, k: int) -> None:
    """Lemma 1 for every k; at exactly 1 a tie in the candidate may still be broken by position."""
    evidence = evidence_of(pair)
    separation = perturbation.cut_separation(evidence, k)
    kept = perturbation.top_set_kept(evidence, k)
    assert kept[separation > 1].all()
    for row in range(len(pair[0])):
        if k < pair[0].shape[1] and np.isfinite(separation[row]):
            scores = sorted(map(Fraction, pair[0][row].tolist()), reverse=True)
            apart = scores[k - 1] - scores[k]  # exact, as epsilon is
            stable = apart >= 2 * Fraction(float(perturbation.epsilon(evidence)[row]))
            assert stable == (separation[row] >= 1)
    if k == 1:
        np.testing.assert_array_equal(separation, perturbation.separation_ratio(evidence))
        np.testing.assert_array_equal(~kept, perturbation.flips(evidence))


@given(labelled(), st.sampled_from([1, 2, 5]))
def test_what_one_arm_gains_the_other_loses(case: tuple[Pair, Qrels], k: int) -> None:
    (reference, candidate), qrels = case
    there, back = (evidence_of((reference, candidate), qrels), evidence_of((candidate, reference), qrels))
    for gained, lost in (
        (f"gold_gained@{k}", f"gold_lost@{k}"),
        ("harm", "benefit"),
        ("flip_to_relevant", "flip_to_irrelevant"),
        ("flip_among_relevant", "flip_among_relevant"),
        (f"rbo@{k}", f"rbo@{k}"),
    ):
        np.testing.assert_allclose(values(gained, there), values(lost, back), rtol=1e-12, err_msg=gained)


@given(labelled())
def test_every_judged_flip_has_one_outcome(case: tuple[Pair, Qrels]) -> None:
    evidence = evidence_of(*case)
    kinds = ("to_irrelevant", "among_relevant", "to_relevant", "among_unjudged")
    outcomes = np.array([values(f"flip_{kind}", evidence) for kind in kinds])
    judged = np.array([bool(case[1][f"q{row}"]) for row in range(evidence.n_inputs)])
    wanted = np.where(perturbation.flips(evidence) & judged, 1.0, np.nan)
    np.testing.assert_array_equal(outcomes.sum(axis=0), wanted)


# --- ties ----------------------------------------------------------------------------------------


def firsts(scores: list[float]) -> list[int]:
    """The first item in every order of the items, where equal scores keep that order."""
    return [max(order, key=lambda item: scores[item]) for order in permutations(range(len(scores)))]


@given(st.integers(1, 4).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 2), min_size=n, max_size=n)] * 2)))
def test_ties_by_enumeration(scores: tuple[list[float], list[float]]) -> None:
    evidence = evidence_of((np.array([scores[0]], dtype=float), np.array([scores[1]], dtype=float)))
    flipped = [before != after for before, after in product(*map(firsts, scores))]
    assert values("flip_least", evidence) == [min(flipped)]
    assert values("flip_most", evidence) == [max(flipped)]
    np.testing.assert_allclose(values("flip_expected", evidence), [np.mean(flipped)], rtol=1e-12)


# --- whole rankings, from their definitions -------------------------------------------------------


@given(pairs(), st.sampled_from([1, 3, 10]))
def test_rank_biased_overlap(pair: Pair, k: int) -> None:
    evidence = evidence_of(pair)
    tops = zip(evidence.reference_top.items, evidence.candidate_top.items, strict=True)
    lists = [(before[:k].tolist(), after[:k].tolist()) for before, after in tops]
    overlap = values(f"rbo@{k}", evidence)
    ranked_overlap = pytest.importorskip("ranked_overlap")
    np.testing.assert_allclose(overlap, [ranked_overlap.rbo(*both, p=0.9) for both in lists], rtol=1e-12)


@given(pairs(), st.sampled_from([2, 5, 10]), st.integers(0, 15))
def test_tau_b_is_that_of_scipy(pair: Pair, k: int, length: int) -> None:
    """Ties, constant lists, and lists that end before the cut-off."""
    evidence = evidence_of(pair)
    top = evidence.reference_top
    items = np.where(np.arange(top.items.shape[1]) < length, top.items, -1)
    tau = values(f"tau_b@{k}", replace(evidence, reference_top=replace(top, items=items)))
    for row, (before, after) in enumerate(zip(top.reference_scores, top.candidate_scores, strict=True)):
        depth = min(k, length, len(before))
        wanted = kendalltau(before[:depth], after[:depth]).statistic if depth > 1 else np.nan
        assert tau[row] == pytest.approx(wanted, abs=1e-15, nan_ok=True)


def test_a_long_list_counts_every_pair() -> None:
    """More pairs than an 8-bit number holds, all of them in reversed order."""
    scores = np.arange(300.0)[None]
    assert values("tau_b@300", evidence_of((scores, -scores), k=300)).tolist() == [-1.0]


# --- against trec_eval -------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 40), st.randoms(use_true_random=False), st.data())
def test_quality_is_that_of_trec_eval(n_queries: int, n_docs: int, rng: Any, data: st.DataObject) -> None:
    """Without ties, whose order trec_eval decides by name."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    matrix = np.array([rng.sample(range(n_docs), n_docs) for _ in range(2 * n_queries)], dtype=float)
    pair = matrix[:n_queries], matrix[n_queries:]
    judged = st.dictionaries(st.sampled_from([*names(n_docs), "elsewhere"]), st.integers(0, 4), max_size=8)
    qrels = {f"q{row}": data.draw(judged) for row in range(n_queries)}
    evidence = evidence_of(pair, qrels, k=10)
    measures = {"ndcg_cut.10", "ndcg_cut.3", "recall.1,5,10", "recip_rank"}
    named = {f"ndcg@{k}": f"ndcg_cut_{k}" for k in (3, 10)} | {f"recall@{k}": f"recall_{k}" for k in (1, 5, 10)}
    named["mrr@10"] = "recip_rank"
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, measures)
    for prefix, scores in (("reference.", pair[0]), ("", pair[1])):
        top = [np.argsort(-row)[:10] for row in scores]  # recip_rank has no cut-off of its own
        run = {
            f"q{row}": {f"d{item}": float(scores[row, item]) for item in items.tolist()}
            for row, items in enumerate(top)
        }
        oracle = evaluator.evaluate(run)
        for ours, theirs in named.items():
            quality = values(prefix + ours, evidence)
            for row, value in enumerate(quality.tolist()):
                if max(qrels[f"q{row}"].values(), default=0) > 0:
                    assert value == pytest.approx(oracle[f"q{row}"][theirs], abs=1e-12), ours
                else:  # trec_eval counts such a query as 0, we leave it out
                    assert np.isnan(value)
