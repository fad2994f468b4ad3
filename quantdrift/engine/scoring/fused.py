"""What a tile of scores leaves behind, in one pass over it: by numba, where it is installed.

torch's way (`Block`, `PairedTopK`) reads a tile about eight times. It is the reference; this gives the same state, bit
for bit.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quantdrift.engine.scoring.topk import PairedTopK, storage

WORTH = 1 << 27
"""Query-document pairs of a pass from which it saves about as much time as loading numba takes, a third of a second."""
_STRIPE = 64
_ROWS = 256
"""Rows that are worth a thread's while."""
_SIGNATURE = "(f4[::1], f4[::1], i8, i8, i8[::1], f4[:,::1], f4[:,::1], f4[:,:,::1], i8[:,::1], i8[::1], i8, i8, i8)"


@cache
def kernel() -> Callable[..., None] | None:
    """The compiled `_one_pass`; None where numba is missing, or does not work here.

    What was compiled is kept where Python keeps its own compiled files: beside this one, or else in the user's cache.
    """
    if find_spec("numba") is None:
        return None
    for kept in (True, False):  # there may be no place, or a damaged file
        with suppress(Exception):  # numba that does not fit numpy or Python has many ways to say so
            import numba  # noqa: PLC0415 -- optional, and not for small work

            compiled: Callable[..., None] = numba.njit(_SIGNATURE, nogil=True, cache=kept)(_one_pass)
            return None if compiled is _one_pass else compiled  # as NUMBA_DISABLE_JIT has it
    return None


def _one_pass(  # noqa: PLR0917 -- numba has no keywords
    reference: Any,
    candidate: Any,
    stride: int,
    width: int,
    skip: Any,
    bars: Any,
    extremes: Any,
    scores: Any,
    positions: Any,
    fill: Any,
    offset: int,
    start: int,
    stop: int,
) -> None:
    """Rows start..stop of a tile: extremes of delta are widened, and what beats a bar of either arm goes to the buffer.

    Where `fill` ends above the buffer's capacity, items are missing from it. The inner loop has no branch and no order
    to keep, so that it becomes wide instructions: extremes are kept for each column of a stripe, and NaN apart.
    """
    capacity = positions.shape[1]
    least, most = np.empty(_STRIPE, np.float32), np.empty(_STRIPE, np.float32)
    for row in range(start, stop):
        bar_r, bar_c = bars[0, row], bars[1, row]
        least[:] = np.inf
        most[:] = -np.inf
        odd = np.int32(0)
        n = fill[row]
        for side in range(2):  # what stands before the item that does not count, and behind it
            first, last = (0, min(skip[row], width)) if side == 0 else (max(skip[row], -1) + 1, width)
            for at in range(first, last, _STRIPE):
                here = slice(row * stride + at, row * stride + min(at + _STRIPE, last))
                rs, cs = reference[here], candidate[here]
                won = np.int32(0)
                for i in range(len(rs)):
                    r, c = rs[i], cs[i]
                    delta = c - r
                    least[i] = delta if delta < least[i] else least[i]
                    most[i] = delta if delta > most[i] else most[i]
                    odd |= np.int32(delta != delta)  # noqa: PLR0124 -- NaN
                    won |= np.int32((r > bar_r) | (c > bar_c))
                if won:
                    for i in range(len(rs)):
                        r, c = rs[i], cs[i]
                        if r > bar_r or c > bar_c:
                            if n < capacity:
                                scores[0, row, n], scores[1, row, n] = r, c
                                positions[row, n] = offset + at + i
                            n += 1
        fill[row] = n
        for i in range(_STRIPE):
            extremes[0, row] = min(extremes[0, row], least[i])
            extremes[1, row] = max(extremes[1, row], most[i])
        if odd:
            extremes[:, row] = np.nan


def take(
    top: PairedTopK,
    extremes: Tensor,
    reference: Tensor,
    candidate: Tensor,
    *,
    skip: Tensor,
    offset: int,
    pool: Executor,
) -> bool:
    """Take one tile of scores in; False where more items win than a buffer holds, then the lists are as before.

    Args:
        top: of both arms, with scores to beat.
        extremes: float32 [2, n_queries], least and greatest delta so far; widened in place.
        reference: float32 [n_queries, width].
        candidate: likewise, and laid out likewise.
        skip: int64 [n_queries], a column that does not count; another number where all do.
        offset: position of the first column.
        pool: its threads share the rows.
    """
    compiled = kernel()
    assert compiled is not None  # whoever asks for it looked
    n, width = reference.shape
    parts = list(pairwise([*range(0, n, max(_ROWS, -(-n // torch.get_num_threads()))), n]))
    for _ in range(2):
        before = top.fill.clone()
        bars = torch.stack([top.reference.threshold, top.candidate.threshold])
        tile = (storage(reference).numpy(), storage(candidate).numpy(), reference.stride(0), width)
        kept = [tensor.numpy() for tensor in (skip, bars, extremes, top.scores, top.positions, top.fill)]
        of_rows = partial(compiled, *tile, *kept, offset)
        list((pool.map if len(parts) > 1 else map)(of_rows, *zip(*parts, strict=True)))
        if int(top.fill.max()) <= top.capacity:
            return True
        top.scores.masked_fill_(torch.arange(top.capacity) >= before[:, None], float("-inf"))
        top.fill.copy_(before)
        top.flush()  # and once more, with what it made of the bars
    return False
