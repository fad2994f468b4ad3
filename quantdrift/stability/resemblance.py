"""Do served inputs look like the calibration inputs? A two-sample test of their confidences."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.display import clean
from quantdrift.errors import ScoreError
from quantdrift.stability.errors import ExchangeabilityWarning

__all__ = ["ALIKE_ABOVE", "Resemblance", "compare_with_calibration"]

ALIKE_ABOVE = 0.01
"""Below this p-value the inputs are said to differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """Whether served confidences could be of the distribution of the calibration inputs'.

    Attributes:
        p_value: of the two-sample Kolmogorov-Smirnov test, two-sided; ties make it larger.
        distance: its statistic, the largest difference of the two distribution functions, 0 to 1.
        n: served inputs.
        n_compared: calibration inputs they were compared with.
        n_calibration: calibration inputs there were.
    """

    p_value: float
    distance: float
    n: int
    n_compared: int
    n_calibration: int

    @property
    def alike(self) -> bool:
        """Whether no difference is shown, which is not the same as none."""
        return self.p_value >= ALIKE_ABOVE

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
        p = "< 0.001" if self.p_value < 0.001 else f"= {self.p_value:.3f}"  # noqa: PLR2004 -- three digits are shown
        inputs = f"{self.n:,} input" + ("" if self.n == 1 else "s")
        if self.alike:
            return (
                f"the confidences of these {inputs} show no difference from those of the "
                f"calibration inputs (Kolmogorov-Smirnov, p {p})"
            )
        return (
            f"the confidences of these {inputs} differ from those of the calibration inputs "
            f"(Kolmogorov-Smirnov, p {p}): the guarantee is for inputs like those it was "
            "calibrated on. Calibrate again on inputs such as these"
        )

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        return {
            "p_value": self.p_value,
            "distance": self.distance,
            "n": self.n,
            "n_compared": self.n_compared,
            "alike": self.alike,
            "sentence": self.sentence,
        }


def compare_with_calibration(
    served: NDArray[np.float64], sample: NDArray[np.float64], n_calibration: int
) -> Resemblance:
    """Test served confidences against those of the calibration inputs.

    Args:
        served: float64 [n], at least one, finite.
        sample: float64, of calibration inputs, at least one.
        n_calibration: how many of these there were.

    Raises:
        ScoreError: they are no vector, there is none, or one is NaN or infinite.

    Warns:
        ExchangeabilityWarning: p below 0.01.
    """
    from scipy.stats import ks_2samp  # noqa: PLC0415 -- scipy.stats takes long to import

    if served.ndim != 1:
        raise ScoreError(
            f"expected confidences of shape [n_inputs]; got shape {served.shape}. Scores "
            "[n_inputs, n_items] are what resembles() takes"
        )
    if not len(served) or not np.isfinite(served).all():
        raise ScoreError(
            "expected the confidence of at least one served input, all of them finite; got "
            f"{len(served)} of which {int((~np.isfinite(served)).sum())} are NaN or infinite"
        )
    with warnings.catch_warnings():
        # that an exact p-value is out of reach and the asymptotic one was taken is no news
        warnings.simplefilter("ignore", RuntimeWarning)
        test = ks_2samp(served, sample)
    found = Resemblance(
        p_value=float(test.pvalue),
        distance=float(test.statistic),
        n=len(served),
        n_compared=len(sample),
        n_calibration=n_calibration,
    )
    if not found.alike:
        warnings.warn(clean(found.sentence), ExchangeabilityWarning, stacklevel=3)
    return found
