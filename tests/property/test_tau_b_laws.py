"""Kendall's tau-b of every input against scipy's: ties, constant and short lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import kendalltau

from quantdrift.evidence import Evidence, Top
from quantdrift.metrics import parse_metric

Scores = NDArray[np.float32]


@st.composite
def lists(draw: st.DrawFn) -> tuple[Scores, Scores, list[int]]:
    """Scores [n, k] of either arm, few values so that many tie, and how long each list is."""
    shape = draw(st.tuples(st.integers(1, 7), st.integers(1, 14)))
    few = st.sampled_from([-2.5, -1.0, -0.0, 0.0, 1e-30, 0.1, 0.1 + 2**-27, 3.0])
    before, after = (draw(arrays(np.float32, shape, elements=few)) for _ in range(2))
    lengths = draw(st.lists(st.integers(0, shape[1]), min_size=shape[0], max_size=shape[0]))
    return -np.sort(-before, axis=1), after, lengths


def evidence_of(before: Scores, after: Scores, lengths: list[int]) -> Evidence:
    n, k = before.shape
    there = np.arange(k) < np.array(lengths)[:, None]
    top = Top(
        items=np.where(there, np.arange(k), -1),
        reference_scores=np.where(there, before, np.float32(np.nan)),
        candidate_scores=np.where(there, after, np.float32(np.nan)),
    )
    zeros = np.zeros(n, dtype=np.float32)
    return Evidence(
        input_ids=np.array([f"q{row}" for row in range(n)], dtype=object),
        item_ids=np.array([f"d{item}" for item in range(k)], dtype=object),
        reference_top=top,
        candidate_top=top,
        delta_min=zeros,
        delta_max=zeros,
        n_items=np.array(lengths),
    )


def of_scipy(before: Scores, after: Scores) -> float:
    if len(before) < 2:  # scipy warns of these
        return float("nan")
    return float(kendalltau(before, after, variant="b").statistic)


@settings(deadline=None, max_examples=50)
@given(lists(), st.integers(1, 16))
@example((np.ones((1, 4), np.float32), np.arange(4, dtype=np.float32)[None], [4]), 4)
@example((np.arange(4, 0, -1, dtype=np.float32)[None], np.ones((1, 4), np.float32), [4]), 4)
def test_tau_b_is_that_of_scipy(arms: tuple[Scores, Scores, list[int]], cutoff: int) -> None:
    before, after, lengths = arms
    found = parse_metric(f"tau_b@{cutoff}").per_input(evidence_of(before, after, lengths))
    wanted = [
        of_scipy(one[: min(length, cutoff)], other[: min(length, cutoff)])
        for one, other, length in zip(before, after, lengths, strict=True)
    ]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-15)


def test_nothing_is_said_of_lists_without_an_order() -> None:
    """Of no item, of one, and of items that an arm ties all; the last has an order in both."""
    before = np.array([[2, 1, 0], [2, 1, 0], [1, 1, 1], [2, 1, 0], [2, 1, 0]], dtype=np.float32)
    after = np.array([[2, 1, 0], [2, 1, 0], [2, 1, 0], [5, 5, 5], [2, 2, 0]], dtype=np.float32)
    found = parse_metric("tau_b@3").per_input(evidence_of(before, after, [0, 1, 3, 3, 3]))
    assert np.isnan(found[:4]).all()
    assert found[4] == pytest.approx(2 / np.sqrt(3 * 2))  # one pair of three is tied


def test_a_long_list_counts_every_pair() -> None:
    """More pairs than an 8-bit number holds, all of them in reversed order."""
    before = np.arange(300, 0, -1, dtype=np.float32)[None]
    found = parse_metric("tau_b@300").per_input(evidence_of(before, -before, [300]))
    assert found.tolist() == [-1.0]
