"""The top-1 changes that full precision gives back, in classification by its answer and in a search by rescoring.

A search is not made again: the candidate's first k items are put in the order of the reference, so that an answer
comes back only if the reference's first item is among them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.evidence.perturbation import flips
from quantdrift.evidence.record import Evidence

DEPTHS = (5, 10, 50)
"""How many first items are rescored, where nothing else is said."""
K = 10
"""How many are rescored at the operating point, if as many ranks are stored."""


def within(evidence: Evidence, k: int) -> NDArray[np.bool_]:
    """Whether the reference's first item is among the candidate's first k, bool [n_inputs]."""
    first = evidence.reference_top.items[:, :1]
    return np.asarray((evidence.candidate_top.items[:, :k] == first).any(axis=1))


def stored_depths(evidence: Evidence, depths: Sequence[int] = DEPTHS) -> list[int]:
    """Keep those depths that a run stores enough ranks for."""
    stored = [k for k in depths if k <= evidence.depth or not evidence.cut_short]
    if not stored:
        raise QuantDriftError(
            f"expected a depth of at most the {evidence.depth} ranks that the run stores; got "
            f"{', '.join(map(str, depths))}"
        )
    return stored


def given_back(evidence: Evidence) -> tuple[NDArray[np.bool_], int | None]:
    """Tell which top-1 changes come back where full precision is asked, bool [n_inputs].

    The second value is how many first items of a search are rescored: 10, or 5 where fewer are stored; None for
    classes.
    """
    changed = flips(evidence)
    if evidence.confidence is not None:
        return changed, None
    k = max(depth for depth in stored_depths(evidence) if depth <= K)
    return changed & within(evidence, k), k
