"""What the calibration inputs look like at every layer of the reference, from one run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.allocation.criteria.base import InputMoments, Setting
from quantdrift.allocation.criteria.part_products import PartTap
from quantdrift.allocation.problem import GapProblem
from quantdrift.calibration.taps import ProductTap, hooked_inputs, plain_products
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.measurement.embeddings import key_of
from quantdrift.models.layers import LinearLayer
from quantdrift.progress import Progress

__all__ = ["input_moments"]

_VERSION = 1
"""Of the measurement; a change in what it gives makes kept moments void."""
_INSTEAD = "use a criterion that looks at weights alone (reconstruction, sqnr)"


def input_moments(setting: Setting) -> list[InputMoments]:
    """E[x_i^2] and E|x_i| of every layer's input, over the tokens of all calibration inputs.

    The batches run once, one after another, and are kept by `setting.kept` as one array. Padding
    does not count, except where a weight is used without a call of its module (the input
    projections of torch's attention) and rows cannot be told apart. A layer that is called several
    times, or part by part on several inputs, counts all its tokens.

    Args:
        setting: model, layers and calibration inputs.

    Returns:
        Of every layer, on the CPU.

    Raises:
        DataError: there are no calibration inputs, or a layer's input is not finite.
        UnsupportedError: no input was seen at any layer.
    """
    if setting.problem is None:
        raise DataError(
            "criteria that look at activations need calibration inputs, and there are none; give "
            f"some (Setting.problem), or {_INSTEAD}"
        )
    sizes = [(layer.name, layer.weight.shape[1]) for layer in setting.layers]
    name = f"input_moments.{key_of(version=_VERSION, layers=sizes)}"
    sums = None if setting.kept is None else setting.kept.get(name)
    if sums is None:
        sums = _measured(setting.modules, setting.layers, setting.problem, setting.progress)
        if setting.kept is not None:
            setting.kept.put(name, sums)
    ends = np.cumsum([1 + 2 * in_features for _, in_features in sizes])[:-1]
    return [_means(part) for part in np.split(sums, ends)] if sizes else []


def _measured(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    problem: GapProblem,
    progress: Progress,
) -> NDArray[np.float64]:
    """Of one layer after another: number of tokens, sums of x^2, sums of |x|."""
    sums = [np.zeros(1 + 2 * layer.weight.shape[1]) for layer in layers]

    def arrive(number: int, x: Tensor, mask: Tensor | None) -> None:
        x = x.detach()
        rows = (x.reshape(-1, x.shape[-1]) if mask is None else x[mask]).to(torch.float32)
        added = torch.cat([rows.square().sum(dim=0), rows.abs().sum(dim=0)])
        sums[number][0] += len(rows)
        sums[number][1:] += added.cpu().numpy()

    with (
        torch.no_grad(),
        plain_products(modules),
        hooked_inputs(modules, layers, arrive) as local,
        ProductTap(layers, arrive, local),
        PartTap(layers, arrive),
        progress.stage("recording the inputs of layers", problem.n_rows) as tell,
    ):
        for batch in problem.batches:
            batch.run()
            tell(len(batch.rows))
    if layers and not any(of_layer[0] for of_layer in sums):
        raise UnsupportedError(
            "no calibration input was seen at any layer: the model runs in another thread or "
            f"process, or in one compiled piece; {_INSTEAD}"
        )
    for layer, of_layer in zip(layers, sums, strict=True):
        if not np.isfinite(of_layer).all():
            raise DataError(
                f"the input of {layer.name} is not finite on the calibration inputs, so it has no "
                f"moments; run the model in float32 or bfloat16, or {_INSTEAD}"
            )
    return np.concatenate([*sums, np.zeros(0)])


def _means(sums: NDArray[np.float64]) -> InputMoments:
    n_tokens = int(sums[0])
    square, absolute = np.split(sums[1:] / max(1, n_tokens), 2)
    return InputMoments(
        mean_square=torch.from_numpy(square).float(),
        mean_abs=torch.from_numpy(absolute).float(),
        n_tokens=n_tokens,
    )
