"""Which documents a part of a corpus holds.

One seeded permutation orders the documents; the part of n documents is its first n, so every part holds the smaller
ones. Source: paper, appendix, "Corpus size, case by case".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError

ALL = "all"


def nested_subset(n_documents: int, size: int, *, seed: int) -> NDArray[np.int64]:
    """Positions of the documents of a size: the first n of one seeded permutation, sorted; int64 [n].

    >>> nested_subset(5, 2, seed=0).tolist()
    [2, 4]
    """
    if not 1 <= size <= n_documents:
        raise DataError(f"expected a size from 1 up to the {n_documents:,} documents of the corpus; got {size:,}")
    order = np.random.default_rng(seed).permutation(n_documents).astype(np.int64)
    return np.sort(order[:size])
