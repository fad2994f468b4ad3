"""The top-1 changes that full precision gives back, in classification by its answer and in a search by rescoring.

A search is not made again: the candidate's first k items are put in the order of the reference, so that an answer
comes back only if the reference's first item is among them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.evidence.perturbation import flips
from quantdrift.evidence.record import Evidence
from quantdrift.statistics import conformal
from quantdrift.statistics.selective import deferral_threshold

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class System:
    """The inputs of a system that answers by the candidate where it is sure, and by full precision elsewhere.

    Attributes:
        confidence: float64 [n_inputs], of the candidate, larger is surer. All inputs have at least two items.
        back: bool [n_inputs], whether the answer changed, and comes back where the input is deferred.
        lost: bool [n_inputs], whether it changed, and does not.
        k: for a search, how many of the candidate's first items are rescored; None for classes.
    """

    confidence: NDArray[np.float64]
    back: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    k: int | None

    def threshold(self, alpha: float, confidence: float, rows: NDArray[np.int64] | slice = slice(None)) -> float:
        """Set the threshold on some of the inputs; inf if none keeps the level, even where everything is deferred."""
        conformal.least_inputs(alpha)  # refuses what is no level
        conformal.promised("conditional", None, confidence)  # and what is no confidence
        lost = int(self.lost[rows].sum())
        return deferral_threshold(self.confidence[rows], self.back[rows], lost, alpha, confidence)

    def accepts(self, threshold: float) -> NDArray[np.bool_]:
        """Whether each input is answered by the candidate, bool [n_inputs]."""
        return np.asarray(self.confidence >= threshold)

    def differs(self, threshold: float) -> NDArray[np.bool_]:
        """Whether the answer of the system differs from full precision's, bool [n_inputs]."""
        return self.lost | (self.back & self.accepts(threshold))

    def why_none(self, n: int, alpha: float, confidence: float) -> str:
        """Say why n of the inputs give no threshold."""
        return conformal.nothing_accepted(n, alpha, confidence) or (
            f"level {alpha:g} is not shown to be kept even if the first {self.k} of every query are rescored: "
            f"{int(self.lost.sum()):,} of {len(self.lost):,} answers do not come back"
        )


def system_of(source: conformal.Source, score: conformal.Statistic = "gap") -> System:
    """The system of a run, or of the scores of both models on classes; raises as `observe` and `given_back`."""
    seen = conformal.observe(source, score)
    back, k = given_back(source) if isinstance(source, Evidence) else (seen.flipped, None)
    rows = seen.defined
    return System(confidence=seen.confidence[rows], back=back[rows], lost=(seen.flipped & ~back)[rows], k=k)
