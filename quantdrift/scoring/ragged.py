"""Outputs with several rows per input: the token vectors of a text, or the terms of a sparse embedding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """One matrix per input, all of one width, with any number of rows; a slice shares the block, which may be on disk.

    Attributes:
        block: float32 [n_rows, width], the rows of all matrices.
        places: int64 [n, 2], first row in the block and number of rows of each input.
    """

    block: Matrix
    places: Rows

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> Self:
        """Join matrices, at least one, into a block."""
        lengths = np.array([len(matrix) for matrix in matrices], dtype=np.int64)
        return cls.joined(np.concatenate([np.asarray(matrix, dtype=np.float32) for matrix in matrices]), lengths)

    @classmethod
    def joined(cls, block: Matrix, lengths: Rows) -> Self:
        """Take matrices that lie one after another in a block, given their numbers of rows."""
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else lengths
        return cls(block, np.stack([starts, lengths], axis=1).astype(np.int64))

    @property
    def shape(self) -> tuple[int, int]:
        """The number of inputs and the width of a row."""
        return len(self.places), int(self.block.shape[1])

    @property
    def size(self) -> int:
        """The number of values in all matrices."""
        return int(self.lengths.sum()) * self.shape[1]

    @property
    def lengths(self) -> Rows:
        """The number of rows of each input, int64 [n]."""
        return self.places[:, 1]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, key: Any) -> Any:
        """Return the matrix of one input, or several inputs by a slice or their positions."""
        if isinstance(key, int | np.integer):
            start, length = self.places[key].tolist()
            return self.block[start : start + length]
        return Ragged(self.block, self.places[key])

    def __iter__(self) -> Iterator[Matrix]:
        return (self[number] for number in range(len(self)))

    def flat(self) -> Matrix:
        """Return the rows of one input after another, float32 [n_rows, width]; a copy unless they lie in this order."""
        if not len(self):
            return np.empty((0, self.shape[1]), dtype=np.float32)
        starts, lengths = self.places.T
        if (starts[1:] == starts[:-1] + lengths[:-1]).all():
            return self.block[starts[0] : starts[-1] + lengths[-1]]
        return np.concatenate(list(self))

    def finite(self) -> NDArray[np.bool_]:
        """Say for each input whether all its numbers are finite, bool [n]."""
        return np.array([bool(np.isfinite(matrix).all()) for matrix in self], dtype=np.bool_)


def joined(parts: Sequence[Any]) -> Any:
    """Join outputs of batches, at least one: vectors, or one matrix per input."""
    ragged = isinstance(parts[0], Ragged)
    return Ragged.of([rows for part in parts for rows in part]) if ragged else np.concatenate(parts)
