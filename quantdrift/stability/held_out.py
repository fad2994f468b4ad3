"""Which inputs of a run calibrate, where one run must serve for both: by a hash of their ids."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST", "calibrates"]

MOST = 1_000
"""No more inputs than these calibrate; the others are what is measured."""


def calibrates(input_ids: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Half of the inputs (rounded down), at most 1,000: those whose ids hash least.

    The choice knows neither scores nor order, and two runs on the same inputs make the same one.

    Args:
        input_ids: str [n_inputs], all different.

    Returns:
        bool [n_inputs].
    """
    digests = np.array(
        [
            int.from_bytes(blake2b(str(name).encode(), digest_size=8).digest(), "big")
            for name in input_ids
        ],
        dtype=np.uint64,
    )
    chosen = np.zeros(len(digests), dtype=bool)
    chosen[np.argsort(digests, kind="stable")[: min(len(digests) // 2, MOST)]] = True
    return chosen
