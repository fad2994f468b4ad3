"""Exact streaming top-K over tiles of scores, ties broken by position.

A float32 score and a 32-bit position are packed into one int64: the high half is the score's bits, mapped so that
integer order is numeric order; the low half counts positions backwards. All keys of a query differ, larger means
ranked higher, and of two equal scores the lower position wins.
"""

import torch
from torch import Tensor

EMPTY = torch.iinfo(torch.int64).min
"""Key of an empty place, below every real key."""

_LOW = 0xFFFFFFFF
_STRIPES = 16
_BUFFER_PER_K = 2


def pack(scores: Tensor, positions: Tensor) -> Tensor:
    """Pack float32 scores and positions from 0 up to 2**32 into int64 keys, whose order is the ranking."""
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(torch.int64) << 32) + (_LOW - positions)


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack keys into (scores float32, positions int64); those of EMPTY keys mean nothing."""
    ordered = (keys >> 32).to(torch.int32)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return bits.view(torch.float32), _LOW - (keys & _LOW)


def merge_top(keys_a: Tensor, paired_a: Tensor, keys_b: Tensor, paired_b: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two top-k lists into the best k, best first, with the paired scores."""
    keys, where = torch.cat([keys_a, keys_b], 1).topk(keys_a.shape[1], dim=1)
    return keys, torch.cat([paired_a, paired_b], 1).gather(1, where)


class PairedTopK:
    """The top-k per query of both arms, from scores that arrive tile by tile, positions increasing.

    After the first tiles almost no score beats the k-th best so far. So a tile is first reduced to the maxima of
    stripes of columns, and only stripes with a winner are searched. Both arms mostly rank the same items high, so
    winners of either arm go into one buffer with both scores; when it is full, it is merged into both lists.
    """

    def __init__(self, n_queries: int, k: int, device: torch.device) -> None:
        self.k = k
        self.reference = _TopK(n_queries, k, device)
        self.candidate = _TopK(n_queries, k, device)
        self.capacity = max(64, _BUFFER_PER_K * k)
        shape = (n_queries, self.capacity)
        self.scores = torch.full((2, *shape), float("-inf"), device=device)
        self.positions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.fill = torch.zeros(n_queries, dtype=torch.int64, device=device)
        self.seen = 0

    def add(self, reference: Tensor, candidate: Tensor, offset: int) -> None:
        """Add a tile whose positions start at `offset`, after all before. An item at -inf in both arms never enters."""
        n, width = reference.shape
        selective, self.seen = self.seen >= self.k, self.seen + width
        if not selective:  # there are no scores to beat yet
            self._add_all(reference, candidate, offset)
            return
        rows, columns = self._winners(reference, candidate)
        counts = torch.bincount(rows, minlength=n)
        most = int(counts.max())
        if most > self.capacity:
            self._add_all(reference, candidate, offset)
            return
        if most + int(self.fill.max()) > self.capacity:
            self.flush()
        # rows is sorted, so an entry's place in its row is its index minus that of the row's first
        shift = self.fill - (counts.cumsum(0) - counts)
        place = torch.arange(len(rows), device=rows.device) + shift[rows]
        flat = rows * self.capacity + place
        source = rows * reference.stride(0) + columns
        self.scores[0].view(-1)[flat] = storage(reference)[source]
        self.scores[1].view(-1)[flat] = storage(candidate)[source]
        self.positions.view(-1)[flat] = columns + offset
        self.fill += counts

    def finish(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return both lists, best first: reference keys, their paired scores, candidate keys, their paired scores."""
        self.flush()
        return (*self.reference.sorted(), *self.candidate.sorted())

    def _winners(self, reference: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows (sorted) and columns of the items that beat the k-th best of either arm.

        Later positions lose ties, so only strictly greater scores win.
        """
        bar_r, bar_c = self.reference.threshold[:, None], self.candidate.threshold[:, None]
        width = reference.shape[1]
        if width % _STRIPES == 0:
            shape = (len(reference), _STRIPES, width // _STRIPES)
            strides = (reference.stride(0), width // _STRIPES, 1)
            striped_r = reference.as_strided(shape, strides)
            striped_c = candidate.as_strided(shape, strides)
            promising = (striped_r.amax(1) > bar_r) | (striped_c.amax(1) > bar_c)
            rows, columns = promising.nonzero(as_tuple=True)
            if len(rows) * 8 < promising.numel():
                won = striped_r[rows, :, columns] > bar_r[rows]
                won |= striped_c[rows, :, columns] > bar_c[rows]
                hit, stripe = won.nonzero(as_tuple=True)
                return rows[hit], columns[hit] + stripe * (width // _STRIPES)
        rows, columns = ((reference > bar_r) | (candidate > bar_c)).nonzero(as_tuple=True)
        return rows, columns

    def _add_all(self, reference: Tensor, candidate: Tensor, offset: int) -> None:
        self.flush()
        positions = torch.arange(offset, offset + reference.shape[1], device=reference.device)
        self.reference.merge(reference, candidate, positions)
        self.candidate.merge(candidate, reference, positions)

    def flush(self) -> None:
        """Merge the buffer into both lists."""
        used = int(self.fill.max())
        if used:
            reference, candidate = self.scores[:, :, :used]
            self.reference.merge(reference, candidate, self.positions[:, :used])
            self.candidate.merge(candidate, reference, self.positions[:, :used])
            self.scores.fill_(float("-inf"))
            self.fill.zero_()


class _TopK:
    """One arm's unordered list of the best k so far, and the score that a newcomer must beat."""

    def __init__(self, n_queries: int, k: int, device: torch.device) -> None:
        self.keys = torch.full((n_queries, k), EMPTY, dtype=torch.int64, device=device)
        self.paired = torch.full((n_queries, k), float("nan"), device=device)
        self.threshold = torch.full((n_queries,), float("-inf"), device=device)

    def merge(self, scores: Tensor, paired: Tensor, positions: Tensor) -> None:
        keys = pack(scores, positions).masked_fill_(scores == float("-inf"), EMPTY)
        k = self.keys.shape[1]
        self.keys, where = torch.cat([self.keys, keys], 1).topk(k, dim=1, sorted=False)
        self.paired = torch.cat([self.paired, paired], 1).gather(1, where)
        worst = self.keys.amin(1)
        full = unpack(worst)[0].masked_fill(worst == EMPTY, float("-inf"))
        self.threshold = torch.maximum(self.threshold, full)

    def sorted(self) -> tuple[Tensor, Tensor]:
        keys, where = self.keys.sort(dim=1, descending=True)
        return keys, self.paired.gather(1, where)


def storage(tile: Tensor) -> Tensor:
    """Return the storage of a tile, which may be narrowed; row * stride + column indexes it."""
    n, width = tile.shape
    return tile.as_strided(((n - 1) * tile.stride(0) + width,), (1,))
