"""Random allocation: what is to be had without knowing anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.by_width import fading_losses

__all__ = ["CRITERION", "AtRandom"]


class AtRandom:
    """Every order of the layers is as likely, s_l = |W_l| rank_l / n, rank a permutation of 1 to n.

    Layers are ranked by the score per weight, hence |W_l|: without it small layers would win.
    """

    name = "random"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The drawn score, a fourth of it for each bit; the same for the same `setting.seed`."""
        n = len(setting.layers)
        ranks = 1 + np.random.default_rng(setting.seed).permutation(n)
        sizes = [layer.weight.numel() for layer in setting.layers]
        scores = [size * rank / n for size, rank in zip(sizes, ranks, strict=True)]
        return fading_losses(scores, setting.widths)


CRITERION: Criterion = AtRandom()
