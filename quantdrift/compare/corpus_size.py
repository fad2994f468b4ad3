"""What the size of the corpus did: the same queries at the smallest and the largest size.

Two paired exact tests: McNemar's on which queries flip, and the sign test on which way each query's
separation ratio moved. The sign test is McNemar's on "rose" and "fell".

Source: paper, appendix, "Corpus size, case by case".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.compare.buckets import EDGES
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.statistics import Estimate
from quantdrift.statistics.paired import mcnemar_exact, paired_rate_difference

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

LEVEL = 0.05
"""p below which a change counts as seen, as in the paper's table of corpus sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEffect:
    """Change rate and separation of the same queries at two corpus sizes.

    Attributes:
        small: documents of the smaller corpus.
        large: documents of the larger one.
        n: queries.
        flip_small: queries whose top-1 flips in the smaller corpus.
        flip_large: in the larger one.
        only_small: queries that flip in the smaller corpus only.
        only_large: in the larger one only.
        p_flip: two-sided exact McNemar p-value of these two.
        change: rate in the larger corpus minus rate in the smaller, with Tango's 95 % interval.
        expected_large: the rate in the larger corpus if queries flipped there as often as those of
            like separation did in the smaller one; None where the smaller holds none alike.
        separation_small: median separation ratio in the smaller corpus; None if undefined or
            infinite.
        separation_large: in the larger one.
        fell: queries whose separation ratio is lower in the larger corpus.
        rose: queries whose ratio is higher there.
        p_separation: two-sided exact sign test p-value of these two.
    """

    small: int
    large: int
    n: int
    flip_small: int
    flip_large: int
    only_small: int
    only_large: int
    p_flip: float
    change: Estimate
    expected_large: float | None
    separation_small: float | None
    separation_large: float | None
    fell: int
    rose: int
    p_separation: float

    @property
    def flip_moved(self) -> int:
        """1 if the change rate rose with the corpus, -1 if it fell, 0 if neither was seen."""
        return _sign(self.only_large - self.only_small) if self.p_flip < LEVEL else 0

    @property
    def separation_moved(self) -> int:
        """1 if the separation rose with the corpus, -1 if it fell, 0 if neither was seen."""
        return _sign(self.rose - self.fell) if self.p_separation < LEVEL else 0

    @property
    def follows_separation(self) -> bool | None:
        """Whether the change rate moved and the separation the other way; None if it stayed."""
        return self.flip_moved == -self.separation_moved if self.flip_moved else None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, with what it means in words."""
        return {
            **asdict(self),
            "change": self.change.to_json(),
            "flip_moved": self.flip_moved,
            "separation_moved": self.separation_moved,
            "follows_separation": self.follows_separation,
            "says": self.explain(),
        }

    def explain(self) -> list[str]:
        """The finding in plain sentences."""
        rates = [_percent(flips, self.n) for flips in (self.flip_small, self.flip_large)]
        told = {
            1: f"The change rate rises with the corpus, from {rates[0]} to {rates[1]}.",
            -1: f"The change rate falls as the corpus grows, from {rates[0]} to {rates[1]}.",
            0: f"The change rate is not seen to move: {rates[0]} and {rates[1]}, a difference of "
            f"{_points(self.change.value)} points (95 % interval {_points(self.change.low)} to "
            f"{_points(self.change.high)}).",
        }
        medians = [
            "undefined" if value is None else f"{value:.3f}" for value in (self.separation_small, self.separation_large)
        ]
        lines = [
            f"Of the same {self.n:,} queries, {self.only_small:,} flip only at {self.small:,} "
            f"documents, {self.only_large:,} only at {self.large:,}: "
            f"{_p(self.p_flip)} (exact McNemar).",
            f"The separation is lower at {self.large:,} for {self.fell:,} queries, higher for "
            f"{self.rose:,}: {_p(self.p_separation)} (exact sign test); its median goes from "
            f"{medians[0]} to {medians[1]}.",
            f"{told[self.flip_moved]} {self._reason()}",
        ]
        if self.expected_large is not None:
            lines.append(
                f"If queries flipped at {self.large:,} as often as those of like separation did at "
                f"{self.small:,}, {100 * self.expected_large:.1f} % would; {rates[1]} do."
            )
        return lines

    def _reason(self) -> str:
        way = {1: "rose", -1: "fell", 0: "did not move either way"}[self.separation_moved]
        if self.follows_separation:
            return f"That is in line with the separation: it {way}."
        if self.flip_moved:
            return f"That is not in line with the separation: it {way}."
        if self.separation_moved:
            return f"The separation {way}, but the flips of these queries do not show it."
        return "Nor is the separation seen to move."


def compare_sizes(smaller: Evidence, larger: Evidence) -> SizeEffect:
    """Compare the same queries at two corpus sizes.

    Args:
        smaller: evidence over the smaller corpus.
        larger: evidence over the larger one, which holds the smaller.

    Raises:
        RunError: the two are not of the same queries, in the same order.
    """
    if not np.array_equal(smaller.input_ids, larger.input_ids):
        raise RunError(
            "corpus sizes are compared over the same queries; the two runs hold different ones. "
            "Make both in one sweep: quantdrift corpus-size SPEC --data FOLDER"
        )
    pair = (smaller, larger)
    flips = [perturbation.flips(evidence) for evidence in pair]
    ratios = [perturbation.separation_ratio(evidence) for evidence in pair]
    # a corpus of one document has no runner-up, so no ratio: NaN is neither lower nor higher
    fell, rose = ratios[1] < ratios[0], ratios[1] > ratios[0]
    flipped, moved = mcnemar_exact(*flips), mcnemar_exact(fell, rose)
    medians = [_finite(parse_metric("separation")(evidence)) for evidence in pair]
    return SizeEffect(
        small=int(smaller.n_items.max(initial=0)),
        large=int(larger.n_items.max(initial=0)),
        n=smaller.n_inputs,
        flip_small=int(flips[0].sum()),
        flip_large=int(flips[1].sum()),
        only_small=flipped.only_a,
        only_large=flipped.only_b,
        p_flip=flipped.p_value,
        change=paired_rate_difference(*flips),
        expected_large=_expected(flips[0], ratios[0], ratios[1]),
        separation_small=medians[0],
        separation_large=medians[1],
        fell=moved.only_a,
        rose=moved.only_b,
        p_separation=moved.p_value,
    )


def _expected(flips: Bools, ratios: Floats, others: Floats) -> float | None:
    """The mean, over other separation ratios, of the flip rate in the bucket they fall into."""
    if np.isnan(ratios).any() or np.isnan(others).any():
        return None
    starts = EDGES["separation"]
    here, there = (np.searchsorted(starts, values, side="right") - 1 for values in (ratios, others))
    held = np.bincount(here, minlength=len(starts))
    if not held[there].all():
        return None
    rates = np.bincount(here, weights=flips, minlength=len(starts)) / np.maximum(held, 1)
    return float(rates[there].mean())


def _finite(estimate: Estimate) -> float | None:
    value = estimate.value
    return value if value is not None and np.isfinite(value) else None


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _points(rate: float | None) -> str:
    return "?" if rate is None else f"{100 * rate:+.1f}"


def _p(value: float) -> str:
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.2g}"  # noqa: PLR2004 -- as papers print it
