"""Metrics against other implementations and against their definitions written out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from support.metric_samples import Pair, evidence_of, names, pairs, values

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
            quality = values(prefix + ours, evidence)
            for row, value in enumerate(quality.tolist()):
                if max(qrels[f"q{row}"].values(), default=0) > 0:
                    assert value == pytest.approx(oracle[f"q{row}"][theirs], abs=1e-12), ours
                else:  # trec_eval counts such a query as 0, we leave it out
                    assert np.isnan(value)
