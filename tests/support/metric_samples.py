"""Small pairs of score matrices with labels; whole numbers, so that no law is lost to rounding."""

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from quantdrift.evidence.record import Evidence
from quantdrift.metrics import parse_metric
from support import small_evidence

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
    return small_evidence.evidence_of(*pair, k=k, qrels=qrels, item_ids=names(pair[0].shape[1]))


def values(metric: str, evidence: Evidence) -> NDArray[np.float64]:
    return parse_metric(metric).per_input(evidence)
