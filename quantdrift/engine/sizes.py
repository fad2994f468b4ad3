"""How large the parts of a corpus are that a sweep searches, and which documents they hold.

One seeded permutation orders the documents; the part of n documents is its first n, so every part holds the smaller
ones. Source: paper, appendix, "Corpus size, case by case".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError

ALL = "all"
LEAST = 50
"""Documents of the smallest default size; below, ranks and intervals say little."""

_EXAMPLE = "e.g. 250,1000,all"


def parse_sizes(text: str, n_documents: int) -> tuple[int, ...]:
    """The sizes a list such as "250,1000,all" names."""
    sizes = []
    for part in (part.strip() for part in text.split(",")):
        if part != ALL and not (part.isascii() and part.isdigit()):
            raise DataError(
                f"expected numbers of documents or {ALL!r}, separated by commas, {_EXAMPLE}; got {part!r} in {text!r}"
            )
        sizes.append(n_documents if part == ALL else int(part))
    check_sizes(sizes, n_documents)
    return tuple(sizes)


def check_sizes(sizes: Sequence[int], n_documents: int) -> None:
    """Refuse sizes that make no sweep."""
    shown = ", ".join(map(str, sizes)) or "none"
    rising = len(sizes) > 1 and all(left < right for left, right in pairwise(sizes))
    if not rising or sizes[0] < 1 or sizes[-1] > n_documents:
        raise DataError(
            f"expected at least two sizes that rise, from 1 up to {n_documents} ({ALL!r}) documents, {_EXAMPLE}; got "
            f"{shown}"
        )


def default_sizes(n_documents: int) -> tuple[int, ...]:
    """An eighth, a quarter and a half of the corpus, to two digits and at least 50, and all of it.

    >>> default_sizes(5183)
    (650, 1300, 2600, 5183)
    """
    parts = (max(LEAST, int(float(f"{n_documents / share:.1e}"))) for share in (8, 4, 2))
    sizes = (*sorted({size for size in parts if size < n_documents}), n_documents)
    if n_documents <= LEAST:
        raise DataError(
            f"a corpus of {n_documents} documents is too small for the default sizes, of which the "
            f"smallest is {LEAST}: give --sizes, e.g. --sizes {max(1, n_documents // 2)},all"
        )
    return sizes


def nested_subsets(n_documents: int, sizes: Sequence[int], *, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Positions of the documents of each size: the first n of one seeded permutation, sorted.

    >>> [subset.tolist() for subset in nested_subsets(5, [2, 5], seed=0)]
    [[2, 4], [0, 1, 2, 3, 4]]
    """
    check_sizes(sizes, n_documents)
    return tuple(nested_subset(n_documents, size, seed=seed) for size in sizes)


def nested_subset(n_documents: int, size: int, *, seed: int) -> NDArray[np.int64]:
    """That of one size, whatever the others are.

    >>> nested_subset(5, 2, seed=0).tolist()
    [2, 4]
    """
    if not 1 <= size <= n_documents:
        raise DataError(f"expected a size from 1 up to the {n_documents:,} documents of the corpus; got {size:,}")
    order = np.random.default_rng(seed).permutation(n_documents).astype(np.int64)
    return np.sort(order[:size])


def parts_added(subsets: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], ...]:
    """What each of nested subsets holds beside the one before it."""
    return subsets[0], *(np.setdiff1d(larger, smaller) for smaller, larger in pairwise(subsets))


def folder_of(size: int, n_documents: int) -> str:
    """The name of a size's run folder; names sort as sizes do.

    >>> folder_of(250, 1400)
    'docs-00250'
    """
    return f"docs-{size:0{max(5, len(str(n_documents)))}}"
