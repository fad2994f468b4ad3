"""The gaps of calibration inputs, as a function of what the model puts out.

A gap is a difference of two scores: of the first document and of a contender (retrieval), of the
first class and of another (classification). Criteria ask how it moves when a layer is quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch", "GapProblem"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One forward pass over some of a problem's rows.

    Attributes:
        rows: int64 [n_batch], which rows.
        run: puts them through the model as it is now; float32 [n_batch, dim], in the order of
            `rows`. The same model gives the same numbers, bit for bit.
    """

    rows: NDArray[np.int64]
    run: Callable[[], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapProblem:
    """Calibration inputs, their contenders in the reference, and the gaps between them.

    A row is what the model sees at once: a text, a pair of texts, an image. A text that several
    inputs have to do with is one row.

    Attributes:
        batches: every row exactly once.
        rows: int64 [n_inputs, n_contenders, n_roles], the rows that a gap depends on. For retrieval
            the roles are query, first document and contender.
        valid: bool [n_inputs, n_contenders]; False where there are fewer contenders. Contenders are
            in the reference's order, so the first is its runner-up.
        gap: from outputs [n_inputs, n_contenders, n_roles, dim] to gaps [n_inputs, n_contenders];
            differentiable, and no gap depends on another's outputs.
        reference: float32 [n_rows, dim], outputs of the reference where they are known already.
    """

    batches: Sequence[Batch]
    rows: NDArray[np.int64]
    valid: NDArray[np.bool_]
    gap: Callable[[Tensor], Tensor]
    reference: NDArray[np.float32] | None = None

    @property
    def n_rows(self) -> int:
        """How many rows the model sees."""
        return sum(len(batch.rows) for batch in self.batches)

    def outputs(self) -> NDArray[np.float32]:
        """What the model puts out for every row as it is now, float32 [n_rows, dim]."""
        parts = [(batch.rows, batch.run()) for batch in self.batches]
        outputs = np.empty((self.n_rows, parts[0][1].shape[1]), dtype=np.float32)
        for rows, part in parts:
            outputs[rows] = part
        return outputs

    def gaps(self, outputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """The gaps that outputs make.

        Args:
            outputs: float32 [n_rows, dim].

        Returns:
            float64 [n_inputs, n_contenders], nan where there is no contender.
        """
        chosen = torch.from_numpy(outputs[np.maximum(self.rows, 0)]).double()
        gaps = self.gap(chosen).numpy()
        return np.where(self.valid, gaps, np.nan)
