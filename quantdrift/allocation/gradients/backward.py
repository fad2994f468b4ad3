"""Backward passes through a batch, and what each row's gradient says of a change of weights.

For a layer y = x W^T the gradient by W of one row of the batch is the product of the gradient that
arrives at y with the x that went in, both seen by hooks. Where no module is called for a weight, or
its input does not keep the rows apart, the gradient by the weight is taken row by row instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.gradients.changes import WeightChanges
from quantdrift.allocation.gradients.traced import Traced, run_with_gradients
from quantdrift.allocation.gradients.watch import GradientWatch
from quantdrift.allocation.problem import Batch

__all__ = ["BackwardPasses"]

_MEMORY = {"cpu": 8 * 2**20, "other": 256 * 2**20}
"""Bytes of single rows' gradients that are held at once: what a processor's cache holds, or enough
to keep an accelerator busy."""


class BackwardPasses:
    """Takes gradients of one batch after another, and learns which layers hooks can see."""

    def __init__(self, setting: Setting) -> None:
        self._modules, self._layers = setting.modules, setting.layers
        self._changes = WeightChanges(setting.layers, setting.widths, setting.group_size)
        self._n_widths = len(setting.widths)
        self._unseen = {n for n, layer in enumerate(setting.layers) if not layer.modules}
        self._apart: set[int] = set()  # layers whose input is known to keep rows apart

    def of(self, batch: Batch, vectors: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
        """What the layers do to the rows of a batch.

        Args:
            batch: what to run.
            vectors: of every pass the gradients by the outputs, float32 [n_batch, dim].

        Returns:
            Of every pass float64 [n_batch, n_layers, n_widths]: row by row, the first-order change
            of <vector, output> when one layer is rounded to a width.

        Raises:
            UnsupportedError: no gradient can be taken through this model or harness.
        """
        while True:
            with GradientWatch(self._layers, self._unseen) as watch:
                traced = run_with_gradients(self._modules, batch.run)
                unseen = watch.uncalled() | self._mixed(watch, traced)
                if unseen <= self._unseen:
                    return [self._pass(watch, traced, torch.from_numpy(part)) for part in vectors]
            self._unseen |= unseen

    def _mixed(self, watch: GradientWatch, traced: Traced) -> set[int]:
        """Layers through whose input or output one row of the batch has to do with another."""
        n = len(traced.outputs)
        new = watch.called() - self._apart - self._unseen
        if not new:
            return set()
        seed = torch.zeros_like(traced.outputs)
        # of ones nothing would come back through a layer norm, whose outputs add up to a constant
        drawn = torch.randn(seed.shape[1], generator=torch.Generator().manual_seed(0))
        seed[0] = drawn.to(seed)
        mixed: set[int] = set()

        def look(number: int, x: Tensor, gradient: Tensor) -> None:
            if (
                x.shape[:-1] != gradient.shape[:-1]
                or gradient.numel() % n
                or gradient.reshape(n, -1)[1:].any()
            ):
                mixed.add(number)

        watch.backward(traced.outputs, seed, look)
        mixed |= watch.overwritten()
        if n > 1:  # a single row has no other to be mixed with
            self._apart |= new - mixed
        return mixed

    def _pass(self, watch: GradientWatch, traced: Traced, vectors: Tensor) -> NDArray[np.float64]:
        n = len(vectors)
        total = torch.zeros(n, len(self._layers), self._n_widths, dtype=torch.float64)
        seed = torch.zeros_like(traced.outputs)
        seed[traced.order] = vectors.to(seed)

        def arrived(number: int, x: Tensor, gradient: Tensor) -> None:
            if number not in self._unseen:
                total[:, number] += _by_row(x, gradient, n, self._changes[number]).cpu()

        reached = watch.backward(traced.outputs, seed, arrived)
        ordered = total[traced.order.cpu()].numpy()
        if reached:
            for row, place in enumerate(traced.order.tolist()):
                single = torch.zeros_like(seed)
                single[place] = seed[place]
                for number, gradient in watch.by_weights(traced.outputs, single, reached).items():
                    part = gradient.float().reshape(1, -1) @ self._changes[number].T
                    ordered[row, number] = part.double().cpu().numpy()
        return ordered


def _by_row(x: Tensor, gradient: Tensor, n: int, changes: Tensor) -> Tensor:
    """<G, dW> of every row and width, with G = gradient^T x over the row's tokens.

    Args:
        x: input of a layer, [n, ..., in_features].
        gradient: by its output, [n, ..., out_features].
        n: rows.
        changes: float32 [n_widths, out_features * in_features].

    Returns:
        float64 [n, n_widths].
    """
    inputs = x.detach().reshape(n, -1, x.shape[-1]).float()
    gradients = gradient.reshape(n, -1, gradient.shape[-1]).float()
    memory = _MEMORY.get(changes.device.type, _MEMORY["other"])
    size = max(1, memory // (4 * changes.shape[1]))
    parts = [
        torch.bmm(gradients[at : at + size].mT, inputs[at : at + size]).flatten(1) @ changes.T
        for at in range(0, n, size)
    ]
    return torch.cat(parts).double()
