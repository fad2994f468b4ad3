"""The criteria: each gives the loss of every layer at every width."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.rtn.work import rounding_change
from quantdrift.candidate.calibration.inputs import hooked_inputs, plain_products, was_watched
from quantdrift.measuring.problem import Setting
from quantdrift.sensitivity.gaps import gap_exact_losses, gap_losses

_BLOCK = 1 << 22
"""Elements that are summed in float32; sums of blocks are added in float64."""

Array = NDArray[np.float64]


def losses_of(name: str, setting: Setting) -> Array:
    """Return the loss of each layer at each width by a criterion of `quantdrift.spec.grammar.CRITERIA`.

    float64 [n_layers, n_widths], at least 0, not rising with the width, and 0 at the widest. Losses of layers add up;
    their unit depends on the criterion. With two widths the paper's rule ranks layers by the first column over the
    number of weights. Raises QuantDriftError if the model cannot be measured this way.
    """
    measured = _CRITERIA[name]
    if measured not in _KEPT:
        return measured(setting)
    return setting.once(name, lambda: measured(setting))


# --- criteria of Delta = W - Q(W), the change by rounding -----------------------------------------


def reconstruction_losses(setting: Setting) -> Array:
    """Mean squared change of the weights, s_l = ||Delta_l||^2 / |W_l|: the paper's main baseline; no data."""
    return _rounding_losses(setting, [1 / layer.weight.numel() for layer in setting.layers])


def sqnr_losses(setting: Setting) -> Array:
    """Noise over signal, s_l = ||Delta_l||^2 / ||W_l||^2, free of scale; 0 for a layer of zeros; no data."""
    signal = [float(_column_power(layer.weight).sum()) for layer in setting.layers]
    return _rounding_losses(setting, [1 / power if power > 0 else 0.0 for power in signal])


def activation_error_losses(setting: Setting) -> Array:
    """Error where the activations are, s_l = sum_i E[x_i^2] ||Delta_l[:, i]||^2.

    The diagonal of what GPTQ minimizes layer by layer; exact where input channels do not correlate.
    """
    return _rounding_losses(setting, [square for square, _ in input_moments(setting)])


def activation_salience_losses(setting: Setting) -> Array:
    """Error weighted by the size of inputs, s_l = sum_i E|x_i| ||Delta_l[:, i]||^2, as AWQ does for channels."""
    return _rounding_losses(setting, [absolute for _, absolute in input_moments(setting)])


def _rounding_losses(setting: Setting, factors: Sequence[Array | float]) -> Array:
    """Sum factor times ||Delta[:, i]||^2 over the columns.

    loss[l, b] = min over b' <= b of the sum at b', and 0 at the widest b. So losses never rise: if a finer grid happens
    to fit worse, the codes of the coarser one fit in the wider format, too.
    """
    losses = np.zeros((len(setting.layers), len(setting.widths)))
    with setting.progress.stage("rounding layers one by one", len(setting.layers)) as tell:
        for number, (layer, factor) in enumerate(zip(setting.layers, factors, strict=True)):
            for column, bits in enumerate(setting.widths[:-1]):
                change = rounding_change(layer.weight, bits=bits, group_size=setting.group_size)
                losses[number, column] = (factor * _column_power(change)).sum()
            tell(1)
    return np.minimum.accumulate(losses, axis=1)


def _column_power(matrix: Tensor) -> Array:
    """The squared norm of every column, float64 [n_columns]."""
    total = np.zeros(matrix.shape[1])
    for rows in torch.split(matrix, max(1, _BLOCK // max(1, matrix.shape[1]))):
        total += rows.float().square().sum(dim=0).cpu().numpy()
    return total


# --- criteria that do not depend on the width: s_l 4^-b, as rounding noise has a quarter of the power per bit


def activation_norm_losses(setting: Setting) -> Array:
    """Input energy, s_l = sum_i E[x_i^2], which does not look at the rounding of weights."""
    return _fading_losses(setting, [float(square.sum()) for square, _ in input_moments(setting)])


def random_losses(setting: Setting) -> Array:
    """Random order of the layers, s_l = |W_l| rank_l / n, where rank is a permutation of 1 to n.

    Layers are ranked by the score per weight, hence the factor |W_l|.
    """
    n = len(setting.layers)
    ranks = 1 + np.random.default_rng(setting.seed).permutation(n)
    return _fading_losses(setting, [x.weight.numel() * rank / n for x, rank in zip(setting.layers, ranks, strict=True)])


def depth_losses(setting: Setting) -> Array:
    """Distance from the middle of the stack, s_l = |d_l - mean d| / ((max d - min d) / 2); looks at no weight."""
    names = [layer.name for layer in setting.layers]
    return _fading_losses(setting, distances_from_the_middle(names, n_modules=len(setting.modules)))


def _fading_losses(setting: Setting, scores: Sequence[float]) -> Array:
    fading = np.array([*(4.0**-bits for bits in setting.widths[:-1]), 0.0])
    return np.asarray(np.asarray(scores, np.float64)[:, None] * fading)


def distances_from_the_middle(names: Sequence[str], *, n_modules: int = 1) -> list[float]:
    """Return the distance of each layer from the middle of its stack of blocks.

    A stack is the outermost list of numbered modules on a layer's path in which most layers have the name of a layer in
    another block. Two towers are two stacks. d is the number of the block, and the middle lies halfway between the
    first and the last. Layers outside the blocks (embedding projections, pooler, head) have the greatest distance, 1. A
    model without blocks is one stack of layers in the order of definition.

    >>> distances_from_the_middle([f"blocks.{block}.fc" for block in range(5)] + ["head"])
    [1.0, 0.5, 0.0, 0.5, 1.0, 1.0]
    """
    first = int(n_modules > 1)
    # the lists around each layer, outermost first: path of the list, path in the block, number of the block
    inside = [
        [(path[:at], path[at + 1 :], int(path[at])) for at in range(first, len(path)) if path[at].isdecimal()]
        for path in (tuple(name.split(".")) for name in names)
    ]
    times = Counter((stack, name) for lists in inside for stack, name, _ in lists)
    size, repeated = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for (stack, name), n in times.items():
        size[stack] += n
        repeated[stack] += n if name and n > 1 else 0
    places = [next(((s, number) for s, _, number in lists if 2 * repeated[s] > size[s]), None) for lists in inside]
    if not any(places):
        places = [((), number) for number in range(len(names))]
    distances = [1.0] * len(names)
    for layer, place in enumerate(places):
        if place is not None:
            depths = [number for stack, number in filter(None, places) if stack == place[0]]
            low, high = min(depths), max(depths)
            distances[layer] = abs(2 * place[1] - low - high) / (high - low) if high > low else 0.0
    return distances


# --- moments of the inputs of every layer, from one run of the reference ----------------


def input_moments(setting: Setting) -> list[list[Array]]:
    """Return E[x_i^2] and E|x_i| of every layer's input, float64 [in_features], over all tokens but padding.

    All calls of a layer count; a layer that is never reached has zeros.
    """
    sizes = [layer.weight.shape[1] for layer in setting.layers]
    sums = setting.kept.get("input_moments", lambda: _summed_inputs(setting, sizes))
    parts = np.split(sums, np.cumsum([1 + 2 * size for size in sizes])[:-1])
    return [np.split(part[1:] / max(1.0, part[0]), 2) for part in parts]


def _summed_inputs(setting: Setting, sizes: Sequence[int]) -> Array:
    """Return number of tokens, sums of x^2 and sums of |x| for one layer after another."""
    parts = [np.zeros(1 + 2 * size) for size in sizes]

    def arrive(number: int, x: Tensor, mask: Tensor | None) -> None:
        rows = (x.detach().reshape(-1, x.shape[-1]) if mask is None else x.detach()[mask]).float()
        parts[number][0] += len(rows)
        parts[number][1:] += torch.cat([rows.square().sum(dim=0), rows.abs().sum(dim=0)]).cpu().numpy()

    with (
        torch.no_grad(),
        plain_products(setting.modules),
        hooked_inputs(setting.modules, setting.layers, arrive),
        setting.progress.stage("recording the inputs of layers", setting.gaps.n_rows) as tell,
    ):
        for batch in setting.gaps.batches:
            setting.gaps.encode(batch)
            tell(len(batch))
    n_tokens = [int(part[0]) for part in parts]
    for layer in setting.layers:
        if not (any(n_tokens) and was_watched(layer, setting.layers, n_tokens)):
            raise UnsupportedError(
                f"the input of {layer.name} is not seen: the model multiplies by it in an unknown way, or in another "
                "thread or process; use a criterion that looks at weights alone (reconstruction, sqnr)"
            )
    return np.concatenate(parts)


_CRITERIA: dict[str, Callable[[Setting], Array]] = {
    "gap": gap_losses,
    "gap_exact": gap_exact_losses,
    "reconstruction": reconstruction_losses,
    "sqnr": sqnr_losses,
    "activation_error": activation_error_losses,
    "activation_salience": activation_salience_losses,
    "activation_norm": activation_norm_losses,
    "depth": depth_losses,
    "random": random_losses,
}
_KEPT = {reconstruction_losses, sqnr_losses, activation_error_losses, activation_salience_losses}
"""Criteria whose losses are cached; the others cache slow intermediate results, if they have any."""
