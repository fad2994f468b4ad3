"""The shift of every gap when a layer is rounded: to first order by gradients, or measured by rounding it."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.rtn.work import in_parts, quantize_rtn, rounding_change
from quantdrift.candidate.calibration.in_order import put_in_place
from quantdrift.candidate.calibration.inputs import computing_by, plain_products
from quantdrift.measuring.problem import GapProblem, Setting
from quantdrift.models.inputs import Vectors
from quantdrift.models.layers import LinearLayer
from quantdrift.models.weights import give_back, large_tensors_apart, saved_weights

_ROOM = 2**30
"""Bytes for weights and their changes; a change that does not fit is computed again each time."""
_TOLERANCE = 1e-2
"""Relative tolerance when an output is identified among those of the model: bfloat16 is off by up to 0.4 %."""
_INSTEAD = "use the criterion gap_exact, which needs no gradients"


@contextmanager
def rounded(layers: Sequence[LinearLayer], widths: Sequence[int], group_size: int | None) -> Iterator[None]:
    """Inside, layers are rounded to these widths (16 leaves one alone); on leaving, they are restored bit for bit."""
    with saved_weights(layers):
        for layer, bits in zip(layers, widths, strict=True):
            if bits <= 8:  # noqa: PLR2004 -- the widest that is rounded to
                put_in_place(layer, quantize_rtn(layer.weight, bits=bits, group_size=group_size))
        yield


# --- to first order -------------------------------------------------------------------------------


def gap_losses(setting: Setting) -> NDArray[np.float64]:
    """The criterion `gap`: mean square of the first-order shift of the gaps by one layer.

    loss[l, b] = mean over inputs of c(b)^2, minus its value at the widest width, with c from `contributions`. Shifts of
    different layers are nearly independent, so their mean squares, unlike medians, add up to the mean square of the
    whole model's shift, which carries gaps across zero.

    Source: the paper's gap sensitivity (section 5.1), with another average and all layers at once.
    """
    return mean_square_losses(contributions(setting))


def mean_square_losses(shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Losses [n_layers, n_widths] of shifts [n_inputs, n_contenders, n_layers, n_widths], nan without a contender."""
    squares = np.nanmean(shifts**2, axis=(0, 1))
    # a wider format that happens to fit worse could hold the narrower one's codes
    falling: NDArray[np.float64] = np.minimum.accumulate(squares, axis=1)
    return falling - falling[:, -1:]


def contributions(setting: Setting) -> NDArray[np.float64]:
    """Return the signed first-order shift of each gap when one layer is rounded to nearest.

    c = sum over the gap's rows of <d gap / d W, Q(W) - W>. Rows run one by one, so a gradient belongs to one row,
    whatever the model does between the rows of a batch. Contributions of layers add up as far as the model is linear in
    the change.
    """
    return setting.once("contributions", lambda: _contributions(setting))


def _contributions(setting: Setting) -> NDArray[np.float64]:
    problem = setting.gaps
    total = np.zeros((*problem.valid.shape, len(setting.layers), len(setting.widths)))
    with plain_products(setting.modules), large_tensors_apart(), _weight_gradients(setting) as backward:
        seeds = seeds_of(problem)
        with setting.progress.stage("gap of every layer, one backward pass", len(seeds)) as tell:
            for row, of_row in seeds.items():
                outputs = with_graph(setting.modules, partial(problem.encode, np.array([row])))
                for vector, gaps in of_row.values():
                    change = backward(outputs, vector)
                    for of_input, contender in gaps:
                        total[of_input, contender] += change
                give_back()  # the graph of a text leaves holes, which those of other lengths do not fill
                tell(1)
    total[~problem.valid] = np.nan
    return total


_Seeds = dict[int, dict[bytes, tuple[Tensor, list[tuple[int, int]]]]]


def seeds_of(problem: GapProblem) -> _Seeds:
    """Map each row to the gradients of gaps by its output, with the gaps (input, contender) that share a gradient.

    The first document of a query has the same gradient in the gaps to all contenders; it is propagated back once.
    """
    outputs = problem.reference_outputs()
    with torch.inference_mode(False), torch.enable_grad():
        leaves = torch.from_numpy(outputs[np.maximum(problem.rows, 0)]).double().requires_grad_()
        wanted = problem.gap(leaves)[torch.from_numpy(problem.valid)].sum()
    gradients = torch.autograd.grad(wanted, leaves)[0].float()
    seeds: _Seeds = defaultdict(dict)
    for of_input, contender in np.argwhere(problem.valid).tolist():
        for role, row in enumerate(problem.rows[of_input, contender].tolist()):
            vector = gradients[of_input, contender, role]
            _, gaps = seeds[row].setdefault(vector.numpy().tobytes(), (vector, []))
            gaps.append((of_input, contender))
    return seeds


@contextmanager
def _weight_gradients(setting: Setting) -> Iterator[Callable[[Tensor, Tensor], NDArray[np.float64]]]:
    """Inside, only weights require gradients; yield a function that propagates a gradient back.

    It takes outputs [1, dim] and the gradient by them [dim], and returns <gradient by the weight, change> for every
    layer and width, float64 [n_layers, n_widths]. The gradient of a weight is freed at once, so only one is in memory.
    """
    kept: dict[tuple[int, int], Tensor] = {}
    products = np.zeros((len(setting.layers), len(setting.widths)))
    numbers: dict[Tensor, list[int]] = defaultdict(list)
    room = _ROOM - sum(layer.weight.nbytes for layer in setting.layers)
    for number, layer in enumerate(setting.layers):
        for parameter in layer.owners:
            numbers[parameter].append(number)

    def changes(key: tuple[int, int], weight: Tensor) -> Tensor:
        """Return the change of a part of a layer's weight by rounding, float32 [n_widths, n_weights]."""
        nonlocal room
        if key in kept:
            return kept[key]
        size = setting.group_size
        made = torch.stack([rounding_change(weight, bits=bits, group_size=size).flatten() for bits in setting.widths])
        if made.nbytes <= room:
            kept[key], room = made, room - made.nbytes
        return made

    def arrived(parameter: Tensor) -> None:
        for number in numbers[parameter]:
            assert parameter.grad is not None  # it has just arrived
            layer = setting.layers[number]
            parts = zip(in_parts(layer.weight), in_parts(layer.part(parameter.grad)), strict=True)
            for place, (weight, gradient) in enumerate(parts):
                along = changes((number, place), weight) @ gradient.flatten().float()
                products[number] += along.double().cpu().numpy()

    def backward(outputs: Tensor, vector: Tensor) -> NDArray[np.float64]:
        products[:] = 0.0
        torch.autograd.backward(outputs, vector[None].to(outputs), retain_graph=True, inputs=list(numbers))
        return products

    with asking_gradients(setting.modules, numbers, arrived):
        yield backward


@contextmanager
def asking_gradients(
    modules: Sequence[nn.Module], wanted: Collection[Tensor], arrived: Callable[[Tensor], None]
) -> Iterator[None]:
    """Inside, only these parameters of the modules require gradients; on leaving all is restored.

    A parameter is handed to `arrived` as soon as it has its gradient, which is freed then.
    """

    def taken(parameter: Tensor) -> None:
        arrived(parameter)
        parameter.grad = None

    with ExitStack() as stack:
        for parameter in wanted:
            hook = parameter.register_post_accumulate_grad_hook(taken)  # type: ignore[no-untyped-call]  # in torch
            stack.callback(hook.remove)
        for parameter in (parameter for module in modules for parameter in module.parameters()):
            stack.callback(setattr, parameter, "grad", parameter.grad)
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(parameter in wanted)
            parameter.grad = None
        yield


def with_graph(
    modules: Sequence[nn.Module], encode: Callable[[], Vectors], *, what: str = "its gap", instead: str = _INSTEAD
) -> Tensor:
    """Return the outputs of `encode`, [n, dim], which calls the model once, with their autograd graph."""
    calls: list[list[Tensor]] = []
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(_traced(module, calls))
        wanted = torch.from_numpy(np.array(encode(), dtype=np.float32))
    if len(calls) != 1:
        raise UnsupportedError(
            f"expected one call of the model per input, got {len(calls)}: {what} has no gradient that could be "
            f"taken; {instead}"
        )
    with torch.inference_mode(False), torch.enable_grad():
        for tensor in reversed(calls[0]):
            if tensor.dim() != 2 or len(tensor) != len(wanted) or not tensor.requires_grad:  # noqa: PLR2004 -- rows
                continue
            as_it_is = tensor[:, : wanted.shape[1]]
            # normalization changes the gradient, which then has no part along the vector
            for outputs in (as_it_is, normalize(as_it_is, dim=1)):
                values = outputs.detach().float().cpu()
                if values.shape != wanted.shape:
                    continue
                # a harness may have changed the order of rows
                order = torch.cdist(wanted, values, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
                if (values[order] - wanted).norm() <= _TOLERANCE * wanted.norm():
                    return outputs[order.to(outputs.device)]
    raise UnsupportedError(
        f"what was returned, of {wanted.shape[1]} numbers, is not among the outputs of {type(modules[0]).__name__}: "
        f"something is computed after the model; {instead}"
    )


@contextmanager
def _traced(module: nn.Module, calls: list[list[Tensor]]) -> Iterator[None]:
    """Inside, calls of the module build a graph, even without hooks, and its output tensors are collected."""
    forward = module.forward

    def traced(*args: Any, **kwargs: Any) -> Any:
        calls.append(put_out := [])

        def detached(tensor: Tensor) -> Tensor:
            put_out.append(tensor)
            return tensor.detach()

        with torch.inference_mode(False), torch.enable_grad():
            # an inference tensor cannot have gradients, but a copy can
            return _mapped(forward(*_mapped(args, torch.clone), **_mapped(kwargs, torch.clone)), detached)

    with computing_by(module, traced):
        yield


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Copy nested containers and apply a function to every tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        parts = {key: _mapped(part, change) for key, part in value.items()}
        kind: Any = type(value)
        # outputs of transformers take keywords; dict and BatchEncoding take a mapping
        return kind(**parts) if hasattr(value, "to_tuple") else kind(parts)
    if type(value) in (tuple, list):
        return type(value)(_mapped(part, change) for part in value)
    return value


# --- by rounding one layer at a time --------------------------------------------------------------


def gap_exact_losses(setting: Setting) -> NDArray[np.float64]:
    """The criterion `gap_exact`: median shift of the gap to the runner-up, s_l(b) = median |gap_l - gap|.

    loss[l, b] = min over b' <= b of s_l(b'), and 0 at the widest b. So losses never rise: if a finer grid happens to
    fit worse, the wider format can hold the codes of the coarser one. The query and both documents are run again; the
    paper runs the queries again, and `+query` does so here.
    """
    medians = np.median(np.abs(exact_shifts(setting)[:, :, setting.gaps.valid[:, 0], 0]), axis=2)
    return np.pad(np.minimum.accumulate(medians, axis=1), ((0, 0), (0, 1)))


def exact_shifts(setting: Setting) -> NDArray[np.float64]:
    """Measure the shift of each gap when one layer is rounded to nearest.

    float64 [n_layers, n_widths - 1, n_inputs, n_contenders]: gap with the layer rounded - gap of the reference, between
    the same two items.
    """
    return setting.once("gap_exact", lambda: _exact_shifts(setting))


def _exact_shifts(setting: Setting) -> NDArray[np.float64]:
    problem, shape = setting.gaps, (len(setting.layers), len(setting.widths) - 1)
    shifts = np.zeros((*shape, *problem.valid.shape))
    with torch.no_grad(), setting.progress.stage("quantizing layers one at a time", math.prod(shape)) as tell:
        reference = problem.gaps(problem.outputs())
        for layer, width in np.ndindex(shape):
            with rounded([setting.layers[layer]], [setting.widths[width]], setting.group_size):
                shifts[layer, width] = problem.gaps(problem.outputs()) - reference
            tell(1)
    return shifts
