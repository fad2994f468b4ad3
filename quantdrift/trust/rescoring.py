"""The top-1 changes that full precision gives back, in classification by its answer and in a search by rescoring.

A search is not made again: the candidate's first k items are put in the order of the reference, so that an answer
comes back only if the reference's first item is among them.
"""

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.evidence.perturbation import flips
from quantdrift.evidence.record import Evidence

DEPTHS = (10, 5)
"""How many first items are rescored: the first of these that a run stores as many ranks for."""


def given_back(evidence: Evidence) -> tuple[NDArray[np.bool_], int | None]:
    """Tell which top-1 changes come back where full precision is asked, bool [n_inputs].

    The second value is how many first items of a search are rescored; None for classes.
    """
    changed = flips(evidence)
    if evidence.confidence is not None:
        return changed, None
    k = next((k for k in DEPTHS if k <= evidence.depth or not evidence.cut_short), None)
    if k is None:
        raise QuantDriftError(f"expected a run that stores {DEPTHS[-1]} ranks to rescore; it stores {evidence.depth}")
    near = (evidence.candidate_top.items[:, :k] == evidence.reference_top.items[:, :1]).any(axis=1)
    return changed & near, k
