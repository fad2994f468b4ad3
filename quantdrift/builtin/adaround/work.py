"""AdaRound: learns for every weight whether to round up or down, so that the layer's output changes least."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from quantdrift.builtin.rtn.work import absmax_scale
from quantdrift.candidate.libraries import calibrated
from quantdrift.candidate.quantized import LayerQuantizer, Moments, QuantizedWeight, spread
from quantdrift.scheme import Scheme

# --- the steps: Adam by hand, on the weights of a layer that are not decided yet ------------------

_LEARNING_RATE, _REGULARIZER, _WARM_UP, _BETAS = 0.03, 10.0, 0.2, (20.0, 2.0)  # the paper's
_LOW, _HIGH = -0.1, 1.1  # the sigmoid is stretched to these and cut off at 0 and 1 (rectified)
_DECIDED = 10.0  # a logit whose rectified sigmoid is flat: the weight never moves
_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8  # Adam's
_SEGMENT = 20  # steps between two looks at which weights are decided
_NARROW = 0.3  # share of undecided columns below which a second moment for every row is faster
_FLOATS = 2**21  # of such second moments that are worked on together: they stay in a cache
_BLOCK, _LEAST_ROWS = 2**16, 64  # weights that a thread takes at a time, but at least so many rows
_UP = 3  # where h is in the state


def decide(fraction: Tensor, settled: Tensor, unit: Tensor, second: Tensor, *, steps: int) -> Tensor:
    """Learn the rounding h of every weight from its position between two points of the grid.

    Rows are independent. On a CPU they are learned in blocks, each by one thread: threads that share an operation wait
    for each other, here 20 times a step, which takes longer than the work on a busy machine. Blocks are the same for
    any number of threads, and so is the result.
    """
    logits = torch.logit((fraction - _LOW) / (_HIGH - _LOW))
    logits = torch.where(settled, _DECIDED * (2 * fraction - 1), logits)
    start = _rectified(torch.sigmoid(logits))
    none = torch.zeros_like(logits)
    state = torch.stack([logits, none, none, start, start, unit])

    def learn(block: Tensor) -> None:
        with torch.inference_mode():  # a mode of one thread, and the caller may be in it
            # where v starts the error is 0, and so is its gradient: the warm-up changes nothing,
            # and left to itself Adam would blow rounding noise up to whole steps
            _take_the_rest(_Weights(state=block, second=second, rest=None), round(_WARM_UP * steps), steps)

    if state.device.type != "cpu":
        learn(state)
        return state[_UP]
    n_rows, n_threads = max(_LEAST_ROWS, _BLOCK // state.shape[2]), torch.get_num_threads()
    blocks = [state[:, at : at + n_rows] for at in range(0, len(unit), n_rows)]
    # as many threads as torch has, of which each computes alone
    with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            list(pool.map(learn, blocks))
        finally:
            torch.set_num_threads(n_threads)  # for threads to come; this one's has not changed
    return state[_UP]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weights:
    """The state of learning of all weights, or of some columns of each of some rows.

    Attributes:
        state: float32 [6, rows, columns]: v, Adam's moments of it, h, r and the unit of errors.
        second: [columns, columns] for all weights; [rows, columns, columns] for some.
        rest: contribution of a row's other weights to its errors times `second`; None for all weights.
    """

    state: Tensor
    second: Tensor
    rest: Tensor | None

    def correlate(self, error: Tensor, out: Tensor) -> None:
        """Compute errors of whole rows times the second moment."""
        if self.rest is None:
            torch.mm(error, self.second, out=out)
        else:
            torch.bmm(error.unsqueeze(1), self.second, out=out.unsqueeze(1))
            out.add_(self.rest)

    def some(self, rows: slice, columns: Tensor) -> _Weights:
        """Copy some rows with some columns of each, int64 [rows, k]; the other columns stay fixed."""
        state = self.state[:, rows]
        _, _, _, up, fraction, unit = state
        others = ((up - fraction) * unit).scatter_(1, columns, 0)
        if self.rest is None:
            rest = others @ self.second
            second = [self.second[c].index_select(1, c) for c in columns]
        else:
            of_row = self.second[rows]
            rest = self.rest[rows] + torch.bmm(others.unsqueeze(1), of_row).squeeze(1)
            second = [s[c].index_select(1, c) for s, c in zip(of_row, columns, strict=True)]
        return _Weights(
            state=state.gather(2, columns.expand(len(state), *columns.shape)),
            second=torch.stack(second),
            rest=rest.gather(1, columns),
        )


def _take_the_rest(weights: _Weights, done: int, steps: int) -> None:
    """Take the steps after the first `done`, in place.

    Where h has reached 0 or 1 its gradient is 0 and momentum keeps its sign, so h does not change any more. So once
    few weights of a row are undecided, steps are taken with those alone, with the same result at a fraction of the
    cost.
    """
    up = weights.state[_UP]
    while done < steps:
        upto = min(done + _SEGMENT, steps)
        _take_steps(weights, done, upto, steps)
        done = upto
        undecided = (up > 0) & (up < 1)
        left = undecided.sum(dim=1)
        most = int(left.max())
        if most == 0:
            return
        narrow = _NARROW if weights.rest is None else 2 * _NARROW
        # elsewhere one product with the whole second moment is as fast
        if up.device.type != "cpu" or most > narrow * up.shape[1]:
            continue
        n_rows = max(1, _FLOATS // most**2)
        for first in range(0, len(up), n_rows):
            rows = slice(first, first + n_rows)
            wanted = max(1, int(left[rows].max()))
            columns = torch.topk(undecided[rows].to(torch.int8), wanted, dim=1).indices
            part = weights.some(rows, columns)
            _take_the_rest(part, done, steps)
            up[rows] = up[rows].scatter(1, columns, part.state[_UP])
        return


def _take_steps(weights: _Weights, done: int, upto: int, steps: int) -> None:
    """Take the steps done + 1 to upto of Adam, in place."""
    logits, momentum, square, up, fraction, unit = weights.state
    sigmoid, error, gradient, power = (torch.empty_like(logits) for _ in range(4))
    for step in range(done + 1, upto + 1):
        torch.sigmoid(logits, out=sigmoid)
        _rectified(sigmoid, out=up)
        torch.sub(up, fraction, out=error).mul_(unit)
        weights.correlate(error, gradient)
        gradient.mul_(unit)
        beta = _beta(step, steps)
        side = torch.mul(up, 2, out=error).sub_(1)
        torch.abs(side, out=power).pow_(beta - 1).copysign_(side)
        gradient.add_(power, alpha=-_REGULARIZER * beta).mul_(2 * (_HIGH - _LOW))
        torch.ops.aten.sigmoid_backward.grad_input(gradient, sigmoid, grad_input=gradient)
        torch.ops.aten.hardtanh_backward.grad_input(gradient, up, 0.0, 1.0, grad_input=gradient)
        momentum.lerp_(gradient, 1 - _FIRST)
        square.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
        unbiased = math.sqrt(1 - _SECOND**step)
        torch.sqrt(square, out=power).add_(unbiased * _EPSILON)
        rate = _LEARNING_RATE * unbiased / (1 - _FIRST**step)
        logits.addcdiv_(momentum, power, value=-rate)
    _rectified(torch.sigmoid(logits), out=up)


def _rectified(sigmoid: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.mul(sigmoid, _HIGH - _LOW, out=out).add_(_LOW).clamp_(0, 1)


def _beta(step: int, steps: int) -> float:
    """Return the exponent of the regularizer at a step after the warm-up."""
    warm_up = round(_WARM_UP * steps)
    done = (step - warm_up) / (steps - warm_up)
    return _BETAS[1] + (_BETAS[0] - _BETAS[1]) * (1 + math.cos(math.pi * done)) / 2


# --- the method -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaRound:
    """AdaRound as a method (Nagel et al. 2020; settings of the paper's appendix "Quantizers").

    The scale is that of RTN. A weight (f + r) scale, with f whole and 0 <= r < 1, becomes (f + h) scale with h =
    clip(1.2 sigmoid(v) - 0.1, 0, 1), where v starts at h = r. Adam minimizes over v, for every output channel, with e
    = (h - r) scale the error of its weights and H the second moment of the layer's input, so that e H e^T is the
    error of its output,

        e H e^T / sum_j scale_j^2 H_jj + 10 sum_j (1 - |2 h_j - 1|^beta).

    The second term joins in after a fifth of the steps; from then on beta goes from 20 to 2 along half a cosine. In
    the end h is rounded.

    The papers do not say how the error is weighed against the regularizer, nor how beta goes down. Here the error is
    relative to that of a whole step in every weight were inputs uncorrelated, so that neither units nor bits matter,
    and the regularizer is a sum, as in the original. Measured on MiniLM at 2 to 4 bits, an error that weighs a
    hundred times less or more ends up to 5 % larger; at a thousand times more 1 of 10,000 h stays undecided, and 1 of
    40,000 does when beta goes down in a straight line.
    """

    bits: int
    group_size: int | None
    steps: int = 400

    needs_moments = True

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix.

        The note `soft` is the share of weights that end with 0 < h < 1. A weight on the grid stays; one whose input
        is always 0 goes to the nearest point.
        """
        second = calibrated(moments, method="adaround").second
        exact = weight.detach().to(torch.float32)
        levels = 2 ** (self.bits - 1) - 1
        scale = absmax_scale(exact, bits=self.bits, group_size=self.group_size)
        step = spread(scale, exact.shape[1], self.group_size)
        position = exact / step
        nearest = torch.round(position).clamp_(-levels, levels)
        # a point of the grid, divided by its scale, can come out a few last digits off
        on_grid = (position - nearest).abs() <= levels * 2.0**-20
        floor = torch.where(on_grid, nearest, torch.floor(position))
        power = second.diagonal()
        # without any input there is no error to learn from
        settled = on_grid | (power == 0)
        fraction = torch.where(settled, nearest, position) - floor
        unit = _unit(torch.where(settled, 0, step), power)
        up = decide(fraction, settled, unit, second.float(), steps=self.steps)
        return QuantizedWeight(
            codes=(floor + (2 * up >= 1)).to(torch.int8),
            scale=scale,
            bits=self.bits,
            group_size=self.group_size,
            notes={"soft": ((up > 0) & (up < 1)).float().mean().item()},
        )

    def describe(self) -> dict[str, str]:
        """Return backend and grid."""
        return {"backend": "quantdrift", "grid": "symmetric absmax"}


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """Return the method of a scheme."""
    return AdaRound(bits=int(scheme.weight_bits), group_size=scheme.group_size)


def _unit(step: Tensor, power: Tensor) -> Tensor:
    """Return steps, 0 where settled, scaled so that a row's uncorrelated error of one step each is 1."""
    largest = step.amax(dim=1, keepdim=True)
    step = step / torch.where(largest == 0, 1, largest)  # squares neither underflow nor overflow
    error = (step.square() * power).sum(dim=1, keepdim=True)
    return step / torch.where(error == 0, 1, error).sqrt()
