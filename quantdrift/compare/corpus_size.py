"""The effect of the size of the corpus: the same queries at the smallest and the largest size.

There are two exact paired tests: McNemar's test on flips, and the sign test on the direction in which each query's
separation ratio moved, which is McNemar's test on "rose" and "fell".

Source: paper, appendix, "Corpus size, case by case".
"""

from dataclasses import dataclass

import numpy as np

from quantdrift.base.errors import RunError
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.statistics.estimates import Estimate, finite
from quantdrift.statistics.paired import mcnemar_exact, paired_rate_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEffect:
    """Top-1 change rate and separation of the same queries at two corpus sizes.

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
        separation_small: median separation ratio in the smaller corpus; None if not finite.
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
    separation_small: float | None
    separation_large: float | None
    fell: int
    rose: int
    p_separation: float


def compare_sizes(smaller: Evidence, larger: Evidence) -> SizeEffect:
    """Compare the same queries at two corpus sizes."""
    if not np.array_equal(smaller.input_ids, larger.input_ids):
        raise RunError(
            "corpus sizes are compared over the same queries; the two runs hold different ones. "
            "Make both in one study, with sizes beside the data"
        )
    pair = (smaller, larger)
    flips = [perturbation.flips(evidence) for evidence in pair]
    ratios = [perturbation.separation_ratio(evidence) for evidence in pair]
    # the ratio is NaN for a corpus of one document, and NaN is neither lower nor higher
    moved = mcnemar_exact(ratios[1] < ratios[0], ratios[1] > ratios[0])
    flipped = mcnemar_exact(*flips)
    medians = [finite(parse_metric("separation")(evidence).value) for evidence in pair]
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
        separation_small=medians[0],
        separation_large=medians[1],
        fell=moved.only_a,
        rose=moved.only_b,
        p_separation=moved.p_value,
    )
