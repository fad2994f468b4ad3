"""Evidence of a few queries whose every figure can be computed by hand."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.measuring.flow import assemble
from quantdrift.scoring.streamed import score_matrix

#       documents  a   b   c   d
REFERENCE = [
    [8, 4, 2, 1],  # q0: the same in both arms
    [8, 4, 2, 1],  # q1: all change by at most 1, less than half the gap
    [8, 7, 2, 1],  # q2: b overtakes a
    [5, 5, 2, 1],  # q3: a and b tie, a comes first; then b is alone
]
CANDIDATE = [[8, 4, 2, 1], [7, 5, 2, 1], [6, 7, 4, 1], [4, 5, 3, 2]]
Qrels = Mapping[str, Mapping[str, int]]
QRELS: Qrels = {
    "q0": {"a": 1, "c": 2},
    "q1": {"d": 1, "b": 0},
    "q2": {"a": 1, "d": -1},
    "q3": {"z": 1, "a": 1},  # z is not in the corpus
}
INFINITE = math.inf


def evidence_of(
    reference: Any,
    candidate: Any,
    *,
    k: int = 10,
    qrels: Qrels | None = None,
    noise: Noise | None = None,
    input_ids: Sequence[str] | None = None,
    item_ids: Sequence[str] = "abcdefghij",
) -> Evidence:
    before, after = np.asarray(reference), np.asarray(candidate)
    return assemble(
        score_matrix(before, after, k=k),
        input_ids=list(input_ids or [f"q{row}" for row in range(len(before))]),
        item_ids=list(item_ids[: before.shape[1]]),
        qrels=qrels,
        noise=noise,
    )


def told(evidence: Evidence) -> dict[str, Any]:
    """All that evidence says, with names for items."""
    names = ("input_ids", "n_items", "delta_min", "delta_max", "confidence")
    content: dict[str, Any] = {name: getattr(evidence, name) for name in names}
    for arm in ("reference_top", "candidate_top"):
        top = getattr(evidence, arm)
        content[arm] = np.append(evidence.item_ids, "")[top.items]  # none is at -1
        content |= {f"{arm} {name}": getattr(top, name) for name in ("reference_scores", "candidate_scores")}
    if (labels := evidence.judgements) is not None:
        rows = [labels.of(row) for row in range(evidence.n_inputs)]
        content["labels"] = [{evidence.item_ids[item]: grade for item, grade in row.items()} for row in rows]
    if evidence.noise is not None:
        content |= {"noise": evidence.noise.flips, "noise epsilon": evidence.noise.epsilon}
    return content


def assert_same(first: Evidence, second: Evidence, *, but: Sequence[str] = ()) -> None:
    """Both say the same, to the last bit."""
    left, right = told(first), told(second)
    assert left.keys() == right.keys()
    for name in left.keys() - {*but}:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
        assert getattr(left[name], "dtype", None) == getattr(right[name], "dtype", None)


FOUR = evidence_of(REFERENCE, CANDIDATE, qrels=QRELS)

REFERENCE_OF_THREE = [
    [20, 12, 8, 7, 0],  # q0: c and d exchange places
    [20, 19, 12, 7, 0],  # q1: b overtakes a
    [20, 19, 18, 12, 0],  # q2: c overtakes both
]
CANDIDATE_OF_THREE = [[20, 12, 7, 8, 0], [18, 19, 12, 7, 0], [17, 18, 20, 12, 0]]
QRELS_OF_THREE = {"q0": {"a": 1}, "q1": {"a": 2, "b": 1}, "q2": {"a": 1, "b": 0}}
THREE = evidence_of(REFERENCE_OF_THREE, CANDIDATE_OF_THREE, qrels=QRELS_OF_THREE)
