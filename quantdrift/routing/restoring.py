"""The threshold of a search: the least queries whose rescoring gives back a share of the changes.

To catch a changed answer is not to restore it: the reference's first item has to be among the
candidate's first k. So the share is counted in restored answers where so many can be restored at
all; where not, in caught ones, and that is said.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from quantdrift.confidence import confidence_in
from quantdrift.evidence import Evidence
from quantdrift.perturbation import flips
from quantdrift.routing.cost import SPEED_UP, relative_cost
from quantdrift.routing.reordering import stored_depths, within
from quantdrift.routing.router import recovery_threshold

__all__ = ["K", "Restoring", "restoring_point"]

K = 10
"""How many first items are rescored, if as many ranks are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """The least that is rescored to give back a share of the changed answers.

    Attributes:
        k: how many of the candidate's first items are rescored.
        threshold: of the candidate gap; queries below it are rescored.
        counts: what the share is of: "restored" answers, or "caught" ones (changed, and rescored)
            where fewer than that share can be restored.
        routed: share of the queries that are rescored, 0 to 1.
        cost: of encoding queries, relative to full precision alone.
        caught: share of the changed answers whose query is rescored.
        restored: share of the changed answers that are the reference's again.
        ceiling: the same if every query were rescored.
    """

    k: int
    threshold: float
    counts: Literal["restored", "caught"]
    routed: float
    cost: float
    caught: float
    restored: float
    ceiling: float

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"score": "gap", **asdict(self)}


def restoring_point(
    evidence: Evidence, share: float = 0.9, *, speed_up: float = SPEED_UP
) -> Restoring | None:
    """The smallest threshold of the gap whose rescoring restores a share of the changed answers.

    Args:
        evidence: of one run on similarities.
        share: of the inputs whose first answer changed, above 0 and at most 1.
        speed_up: of the candidate, at least 1.

    Returns:
        The point, or None if no answer changed.

    Raises:
        QuantDriftError: no such share or speed-up, or fewer ranks are stored than the least depth.
    """
    k = max(depth for depth in stored_depths(evidence) if depth <= K)
    changed, gaps = flips(evidence), confidence_in(evidence, "gap")
    if not changed.any():
        return None
    back = changed & within(evidence, k)
    n_changed, n_back = int(changed.sum()), int(back.sum())
    # rounded, as 0.9 of 10 is 9 and not the next number above
    reachable = n_back > 0 and round(share * n_changed, 9) <= n_back
    if reachable:
        threshold = recovery_threshold(gaps, back, min(1.0, share * n_changed / n_back))
    else:
        threshold = recovery_threshold(gaps, changed, share)
    rows = gaps < threshold
    return Restoring(
        k=k,
        threshold=threshold,
        counts="restored" if reachable else "caught",
        routed=float(rows.mean()),
        cost=relative_cost(float(rows.mean()), speed_up),
        caught=float(rows[changed].mean()),
        restored=float((rows & back)[changed].mean()),
        ceiling=float(np.mean(back[changed])),
    )
