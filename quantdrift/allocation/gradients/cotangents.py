"""The gradients of gaps by what the model puts out: where backward passes begin."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.allocation.problem import GapProblem

__all__ = ["Cotangents", "Slot"]


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """What one backward pass over a batch begins with: at most one gradient for each row.

    Attributes:
        vectors: float32 [n_batch, dim]; zeros for rows that have none.
        gaps: of every row in the batch the gaps it belongs to, (input, contender).
    """

    vectors: NDArray[np.float32]
    gaps: list[list[tuple[int, int]]] = field(default_factory=list)

    def add(self, total: NDArray[np.float64], parts: NDArray[np.float64]) -> None:
        """Add what came out of the pass to the gaps it belongs to.

        Args:
            total: float64 [n_inputs, n_contenders, ...], changed.
            parts: float64 [n_batch, ...].
        """
        for gaps, part in zip(self.gaps, parts, strict=True):
            for of_input, contender in gaps:
                total[of_input, contender] += part


class Cotangents:
    """Of every row the gradients by its output of all gaps it has to do with, each once.

    The first document of a query is in the gaps with all contenders, and its gradient is the same
    in all of them: what is the same is propagated once.
    """

    def __init__(self, problem: GapProblem, outputs: NDArray[np.float32]) -> None:
        """Take the gradients.

        Args:
            problem: whose gaps.
            outputs: float32 [n_rows, dim], of the reference.
        """
        chosen = torch.from_numpy(outputs[np.maximum(problem.rows, 0)]).double()
        with torch.inference_mode(False), torch.enable_grad():
            leaves = chosen.clone().requires_grad_()
            problem.gap(leaves)[torch.from_numpy(problem.valid)].sum().backward()  # type: ignore[no-untyped-call]  # untyped in torch
        assert leaves.grad is not None  # some gap is valid
        gradients = leaves.grad.float().numpy()
        self._dim = outputs.shape[1]
        self._of_row: list[dict[bytes, tuple[NDArray[np.float32], list[tuple[int, int]]]]]
        self._of_row = [{} for _ in range(len(outputs))]
        for of_input, contender in np.argwhere(problem.valid).tolist():
            for role, row in enumerate(problem.rows[of_input, contender].tolist()):
                vector = gradients[of_input, contender, role]
                _, gaps = self._of_row[row].setdefault(vector.tobytes(), (vector, []))
                gaps.append((of_input, contender))

    def slots(self, rows: NDArray[np.int64]) -> list[Slot]:
        """The backward passes that a batch needs, as few as its busiest row has gradients.

        Args:
            rows: int64 [n_batch], the batch's.
        """
        found = [list(self._of_row[row].values()) for row in rows.tolist()]
        slots = []
        for number in range(max(map(len, found))):
            slot = Slot(vectors=np.zeros((len(rows), self._dim), dtype=np.float32))
            for at, entries in enumerate(found):
                vector, gaps = entries[number] if number < len(entries) else (0.0, [])
                slot.vectors[at] = vector
                slot.gaps.append(gaps)
            slots.append(slot)
        return slots
