"""What a criterion may look at, and what it gives: a loss for every layer at every width."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quantdrift.engine.calibration.in_order import Arrive, ProductTap, hooked_inputs, plain_products
from quantdrift.engine.layers import LinearLayer, memory_range
from quantdrift.engine.quantizers.rtn import RoundToNearest
from quantdrift.engine.sensitivity.problem import GapProblem
from quantdrift.engine.store import key_of
from quantdrift.errors import DataError, UnknownNameError, UnsupportedError
from quantdrift.progress import Progress

# --- What a criterion may look at, and what it gives: a loss for every layer at every width -------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputMoments:
    """What the input of a layer looks like in the reference, over the calibration tokens.

    Attributes:
        mean_square: float32 [in_features], mean over tokens of x^2.
        mean_abs: float32 [in_features], mean over tokens of |x|.
        n_tokens: how many there were; 0 says that the layer was never reached, and then the rest
            is zeros.
    """

    mean_square: Tensor
    mean_abs: Tensor
    n_tokens: int


class Kept(Protocol):
    """Arrays by name, kept on disk."""

    def get(self, name: str) -> NDArray[np.float64] | None:
        """The array of that name; None where there is none, or a damaged one."""
        ...

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        """Keep an array; whole, or not at all, if the process is killed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """What layers are scored on.

    Attributes:
        modules: the model's outermost modules, in the reference arm.
        layers: what gets a width.
        widths: bits per weight to choose from, ascending, at least two.
        group_size: input weights that share a scale, None for a whole output channel.
        seed: of what is drawn at random.
        progress: where progress is shown.
        problem: calibration inputs; None where the criterion needs none.
        kept: what was measured before, so that a run that was killed goes on where it stopped; None
            keeps nothing. It belongs to this model and these calibration inputs alone.
    """

    modules: Sequence[nn.Module]
    layers: Sequence[LinearLayer]
    widths: tuple[int, ...]
    group_size: int | None
    seed: int
    progress: Progress
    problem: GapProblem | None = None
    kept: Kept | None = None


class Criterion(Protocol):
    """A rule that says how much is lost where a layer gets a width."""

    @property
    def name(self) -> str:
        """As the spec spells it."""
        ...

    @property
    def needs_inputs(self) -> bool:
        """Whether it looks at calibration inputs, which `Setting.problem` then has to have."""
        ...

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The loss of every layer at every width.

        Args:
            setting: model, widths and calibration inputs.

        Returns:
            float64 [n_layers, n_widths], at least 0, not rising with the width, and 0 at the
            widest. Losses of layers add up; their unit is the criterion's own. Between two widths
            the paper's rule ranks layers by the first column over the number of weights.

        Raises:
            QuantDriftError: the model cannot be measured this way; says which criterion can.
        """
        ...


def rounding_error(layer: LinearLayer, bits: int, group_size: int | None) -> Tensor:
    """The change W - Q(W) that rounding to nearest makes to a layer, whatever the quantizer.

    Args:
        layer: whose weight W is.
        bits: 2 to 8.
        group_size: input weights that share a scale, None for a whole output channel.

    Returns:
        float32 [out_features, in_features], on the weight's device.
    """
    weight = layer.weight
    quantized = RoundToNearest(bits=bits, group_size=group_size).quantize(weight, None)
    return weight.float() - quantized.dequantize(weight.dtype).float()


# --- From a criterion's name to the criterion; its module is loaded when it is asked for ----------


def criterion(name: str) -> Criterion:
    """The criterion of that name.

    Args:
        name: one of `quantdrift.grammar.CRITERIA`.

    Raises:
        UnknownNameError: no such criterion; carries the nearest names.
    """
    from quantdrift.engine.sensitivity import gap  # noqa: PLC0415 -- it is built on this module

    known: dict[str, Criterion] = {
        "gap": gap.CRITERION,
        "gap_exact": gap.GAP_EXACT_CRITERION,
        "reconstruction": RECONSTRUCTION_CRITERION,
        "sqnr": SQNR_CRITERION,
        "activation_error": CRITERION,
        "activation_salience": ACTIVATION_SALIENCE_CRITERION,
        "activation_norm": ACTIVATION_NORM_CRITERION,
        "depth": DEPTH_CRITERION,
        "random": AT_RANDOM_CRITERION,
    }
    if name not in known:
        raise UnknownNameError("criterion", name, known, hint=f"(one of {', '.join(known)})")
    return known[name]


# --- From what a baseline says of a layer to a loss at every width --------------------------------

_BLOCK = 1 << 22
"""Elements that are summed in float32; the sums of blocks add up in float64."""


def rounding_losses(setting: Setting, score: Callable[[int, NDArray[np.float64]], float]) -> NDArray[np.float64]:
    """The losses of a criterion that looks at Delta = W - Q(W), the change that rounding makes.

    loss[l, b] = min over b' <= b of score(l, ||Delta_l(b')[:, i]||^2), and 0 at the widest b.
    The minimum is there because losses must fall: where a finer grid happens to lie worse, the
    codes of the coarser one fit in the wider format too. The narrowest width, by which the paper
    ranks layers, is as it was measured.

    Args:
        setting: layers and widths.
        score: from a layer's number and the squared norms of Delta's columns, float64
            [in_features], to the layer's score, at least 0.

    Returns:
        float64 [n_layers, n_widths].

    Raises:
        DataError: a weight is not finite.
    """
    losses = np.zeros((len(setting.layers), len(setting.widths)))
    with setting.progress.stage("rounding layers one by one", len(setting.layers)) as tell:
        for number, layer in enumerate(setting.layers):
            for column, bits in enumerate(setting.widths[:-1]):
                power = column_power(rounding_error(layer, bits, setting.group_size))
                if not np.isfinite(power).all():
                    raise DataError(
                        f"expected finite weights in {layer.name}, got some that are not (or are "
                        "beyond 1e19), so its rounding error has no size; check the checkpoint, "
                        "or load it in float32 or bfloat16"
                    )
                losses[number, column] = score(number, power)
            tell(1)
    return np.minimum.accumulate(losses, axis=1)


def fading_losses(scores: Sequence[float], widths: Sequence[int]) -> NDArray[np.float64]:
    """The losses of a criterion that does not look at the width.

    loss[l, b] = s_l 4^-b, and 0 at the widest b: the power of rounding noise falls by four a bit.

    Args:
        scores: s_l of every layer, at least 0.
        widths: bits per weight, ascending.

    Returns:
        float64 [n_layers, n_widths].
    """
    fading = np.array([*(4.0**-bits for bits in widths[:-1]), 0.0])
    losses: NDArray[np.float64] = np.asarray(scores, np.float64)[:, None] * fading
    return losses


def column_power(matrix: Tensor) -> NDArray[np.float64]:
    """The squared norm of every column, sum over rows of m^2.

    Args:
        matrix: float [n_rows, n_columns], on any device.

    Returns:
        float64 [n_columns].
    """
    total = np.zeros(matrix.shape[1])
    n_rows = max(1, _BLOCK // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), n_rows):
        rows = matrix[start : start + n_rows]
        total += rows.to(torch.float32).square().sum(dim=0).cpu().numpy()
    return total


# --- Seeing the inputs of weights that are multiplied part by part --------------------------------

_aten = torch.ops.aten
_OPERANDS = {
    _aten.linear.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.mm.default: (0, 1),
    _aten.matmul.default: (0, 1),
}
"""Product to the positions of its input and its weight."""


class PartTap(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Sees products with some rows of a weight that belongs to no linear module.

    Beside a `ProductTap`, which sees products with the whole of it.

    Args:
        layers: the layers; their numbers are positions in this sequence.
        arrive: called with the layer's number, the input and None: all rows count.
    """

    def __init__(self, layers: Sequence[LinearLayer], arrive: Arrive) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._arrive = arrive
        self._weights = [
            (number, place, layer.weight)
            for number, layer in enumerate(layers)
            if not layer.modules and layer.expert is None
            if (place := memory_range(layer.weight)) is not None
        ]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = _OPERANDS.get(func) if self._weights else None
        if operands is not None:
            number = self._part_of(args[operands[1]])
            if number is not None:
                self._arrive(number, args[operands[0]], None)
        return func(*args, **(kwargs or {}))

    def _part_of(self, operand: Tensor) -> int | None:
        """The layer of whose weight an operand is some rows, either way round."""
        place = memory_range(operand)
        if place is None:
            return None
        device, start, end = place
        for number, (where, first, last), weight in self._weights:
            inside = device == where and first <= start and end <= last
            if inside and operand.numel() < weight.numel() and weight.shape[1] in operand.shape:
                return number
        return None


# --- What the calibration inputs look like at every layer of the reference, from one run ----------

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
    modules: Sequence[nn.Module], layers: Sequence[LinearLayer], problem: GapProblem, progress: Progress
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
        mean_square=torch.from_numpy(square).float(), mean_abs=torch.from_numpy(absolute).float(), n_tokens=n_tokens
    )


# --- activation error -----------------------------------------------------------------------------


class ActivationError:
    """Error where the activations are, s_l = sum_i E[x_i^2] ||Delta_l[:, i]||^2.

    The diagonal of what GPTQ minimizes layer by layer; exact where input channels do not correlate.
    """

    name = "activation_error"
    needs_inputs = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The squared error of a token's output at each width; 0 where no token arrives.

        Raises:
            DataError: no calibration inputs, or a weight or an input is not finite.
            UnsupportedError: no input is seen at any layer.
        """
        energy = [moments.mean_square.double().numpy() for moments in input_moments(setting)]
        return rounding_losses(setting, lambda number, power: float(energy[number] @ power))


CRITERION: Criterion = ActivationError()

# --- Activation norm: the energy that goes through a layer (paper, "Allocation criteria") ---------


class ActivationNorm:
    """Input energy, s_l = sum_i E[x_i^2], whatever rounding does to the weights.

    A control: it tells whether knowing which layers see large activations is enough.
    """

    name = "activation_norm"
    needs_inputs = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The energy, a fourth of it for each bit; 0 where no token arrives.

        Raises:
            DataError: no calibration inputs, or an input is not finite.
            UnsupportedError: no input is seen at any layer.
        """
        energy = [float(moments.mean_square.double().sum()) for moments in input_moments(setting)]
        return fading_losses(energy, setting.widths)


ACTIVATION_NORM_CRITERION: Criterion = ActivationNorm()

# --- Activation salience: rounding noise of large channels (paper, "Allocation criteria") ---------


class ActivationSalience:
    """Error weighted by the size of inputs, s_l = sum_i E|x_i| ||Delta_l[:, i]||^2.

    AWQ protects channels with large activations; this does the same for layers.
    """

    name = "activation_salience"
    needs_inputs = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The weighted error at each width; 0 where no token arrives.

        Raises:
            DataError: no calibration inputs, or a weight or an input is not finite.
            UnsupportedError: no input is seen at any layer.
        """
        size = [moments.mean_abs.double().numpy() for moments in input_moments(setting)]
        return rounding_losses(setting, lambda number, power: float(size[number] @ power))


ACTIVATION_SALIENCE_CRITERION: Criterion = ActivationSalience()

# --- Random allocation: what is to be had without knowing anything --------------------------------


class AtRandom:
    """Every order of the layers is as likely, s_l = |W_l| rank_l / n, rank a permutation of 1 to n.

    Layers are ranked by the score per weight, hence |W_l|: without it small layers would win.
    """

    name = "random"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The drawn score, a fourth of it for each bit; the same for the same `setting.seed`."""
        n = len(setting.layers)
        ranks = 1 + np.random.default_rng(setting.seed).permutation(n)
        sizes = [layer.weight.numel() for layer in setting.layers]
        scores = [size * rank / n for size, rank in zip(sizes, ranks, strict=True)]
        return fading_losses(scores, setting.widths)


AT_RANDOM_CRITERION: Criterion = AtRandom()

# --- Depth: the first and the last blocks matter most (paper, "Allocation criteria") --------------

_Path = tuple[str, ...]


class Depth:
    """Distance from the middle of the stack, s_l = |d_l - mean d| / ((max d - min d) / 2).

    The common practice of keeping the first and last layers wide; looks at no weight.
    """

    name = "depth"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The distance, a fourth of it for each bit."""
        names = [layer.name for layer in setting.layers]
        scores = distances_from_the_middle(names, n_modules=len(setting.modules))
        return fading_losses(scores, setting.widths)


def distances_from_the_middle(names: Sequence[str], *, n_modules: int = 1) -> list[float]:
    """How far each layer is from the middle of its stack of blocks.

    A stack is the outermost list of numbered modules on a layer's path that repeats itself: most of
    its layers are in blocks that have a layer's name in common with another. Two towers are two
    stacks. d is the number of the block, and the middle lies halfway between the first and the last
    block, which is the mean of a stack without holes. What stands before or behind the blocks
    (embedding projections, pooler, head) is as far as the end it stands at. A model without blocks
    is one stack of layers in the order of definition.

    Args:
        names: of the layers, as `find_linears` gives them, in order of definition.
        n_modules: of the model; with more than one, names start with a module's number.

    Returns:
        Of each layer, from 0 in the middle to 1 at both ends.

    >>> distances_from_the_middle([f"blocks.{block}.fc" for block in range(5)] + ["head"])
    [1.0, 0.5, 0.0, 0.5, 1.0, 1.0]
    """
    paths = [tuple(name.split(".")) for name in names]
    places = _block_numbers(paths, n_leading=int(n_modules > 1))
    if not any(places):
        return _distances(range(len(names)))
    found = [1.0] * len(names)
    for stack in {place[0] for place in places if place}:
        inside = [(layer, place[1]) for layer, place in enumerate(places) if place and place[0] == stack]
        distances = _distances([block for _, block in inside])
        for (layer, _), distance in zip(inside, distances, strict=True):
            found[layer] = distance
    return found


def _block_numbers(paths: Sequence[_Path], n_leading: int) -> list[tuple[_Path, int] | None]:
    """Stack and block of each layer; None outside."""
    lists: dict[_Path, dict[str, set[_Path]]] = defaultdict(lambda: defaultdict(set))
    for path in paths:
        for at in _numbers(path, n_leading):
            lists[path[:at]][path[at]].add(path[at + 1 :])
    stacks = {path for path, blocks in lists.items() if _repeats(blocks)}
    outermost = [next((at for at in _numbers(path, n_leading) if path[:at] in stacks), None) for path in paths]
    return [None if at is None else (path[:at], int(path[at])) for path, at in zip(paths, outermost, strict=True)]


def _numbers(path: _Path, n_leading: int) -> Iterable[int]:
    return (at for at in range(n_leading, len(path)) if path[at].isdecimal())


def _repeats(blocks: Mapping[str, set[_Path]]) -> bool:
    """Whether the modules of a list are blocks, rather than the parts of a sequence."""
    having = Counter(inner for block in blocks.values() for inner in block if inner)
    alike = [block for block in blocks.values() if any(having[inner] > 1 for inner in block)]
    return 2 * sum(map(len, alike)) > sum(map(len, blocks.values()))


def _distances(depths: Iterable[int]) -> list[float]:
    all_depths = list(depths)
    if not all_depths:
        return []
    first, last = min(all_depths), max(all_depths)
    if first == last:
        return [0.0] * len(all_depths)
    return [abs(2 * depth - first - last) / (last - first) for depth in all_depths]


DEPTH_CRITERION: Criterion = Depth()

# --- Reconstruction error: how much rounding changes a weight (paper, "Allocation criteria") ------


class Reconstruction:
    """Mean squared change of the weights, s_l = ||Delta_l||^2 / |W_l|; needs no data.

    It is the objective of allocators that look at weights alone, and the paper's main baseline.
    """

    name = "reconstruction"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The mean squared change at each width, in squared units of the weights.

        Raises:
            DataError: a weight is not finite.
        """

        def score(number: int, power: NDArray[np.float64]) -> float:
            return float(power.sum()) / setting.layers[number].weight.numel()

        return rounding_losses(setting, score)


RECONSTRUCTION_CRITERION: Criterion = Reconstruction()

# --- sqnr -----------------------------------------------------------------------------------------


class RelativeError:
    """Noise over signal, s_l = ||Delta_l||^2 / ||W_l||^2; needs no data.

    Free of scale: a layer does not rank highly for large weights. The inverse of the signal to
    quantization noise ratio, so that more is worse.
    """

    name = "sqnr"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The relative error at each width, without a unit; 0 for a layer of zeros.

        Raises:
            DataError: a weight is not finite.
        """
        signal = [float(column_power(layer.weight).sum()) for layer in setting.layers]

        def score(number: int, power: NDArray[np.float64]) -> float:
            return float(power.sum()) / signal[number] if signal[number] > 0 else 0.0

        return rounding_losses(setting, score)


SQNR_CRITERION: Criterion = RelativeError()
