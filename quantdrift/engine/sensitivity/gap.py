"""Gap sensitivity from one pass: how much a layer's rounding moves the gaps, in the mean square."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.allocation.curve import mean_square_losses
from quantdrift.engine.sensitivity.contest import rounded
from quantdrift.engine.sensitivity.criteria import Criterion, Setting
from quantdrift.engine.sensitivity.gradients import contributions
from quantdrift.engine.sensitivity.problem import GapProblem
from quantdrift.errors import DataError

# --- gap ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GapSensitivity:
    """Mean square of the shift that one layer makes in the gap to the runner-up.

    loss[l, b] = mean over inputs of c(b)^2, less the same at the widest width, with c the signed
    first-order shift of a gap (`one_pass.contributions`); over several contenders, where the
    problem has them because inputs are few. Shifts of different layers
    are nearly independent, so their mean squares add up to that of the whole model's shift, which
    is what carries a gap across zero; medians do not add up.

    Source: the paper's gap sensitivity (section 5.1), with another average and all layers at once.
    """

    name: str = "gap"
    needs_inputs: bool = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The loss of every layer at every width, in squared units of the score.

        Args:
            setting: model, widths and calibration inputs.

        Raises:
            UnsupportedError: no gradient can be taken through this model or harness.
        """
        return mean_square_losses(contributions(setting))


CRITERION: Criterion = GapSensitivity()

# --- gap exact ------------------------------------------------------------------------------------


class GapExact:
    """The median distance that the gap moves, s_l(b) = median over x of |gap_l(x) - gap(x)|.

    gap is the one between the reference's top-1 and its runner-up, gap_l the one between the same
    two with layer l alone rounded to b bits. Losses are in units of the score.
    """

    name = "gap_exact"
    needs_inputs = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The sensitivities at each width.

        loss[l, b] = min over b' <= b of s_l(b'), and 0 at the widest b: losses must fall, and
        where a finer grid happens to lie worse, the wider format can hold the coarser one.

        Args:
            setting: with a problem.

        Returns:
            float64 [n_layers, n_widths].

        Raises:
            DataError: there is no problem, no input has a contender, or gaps are not finite.
        """
        medians = median_shifts(exact_shifts(setting), _problem(setting))
        losses = np.zeros((len(setting.layers), len(setting.widths)))
        losses[:, :-1] = np.minimum.accumulate(medians, axis=1)
        return losses


def exact_shifts(setting: Setting) -> NDArray[np.float64]:
    """How each gap moves when one layer is rounded to nearest and all others are left alone.

    shift = gap with the layer rounded - gap of the reference, between the same two items.

    Args:
        setting: with a problem. What `setting.kept` has is not measured again; what is measured is
            kept, layer by layer.

    Returns:
        float64 [n_layers, n_widths - 1, n_inputs, n_contenders], the widest left out; nan where
        there is no contender, and 0 for a layer that no input reaches.

    Raises:
        DataError: there is no problem, or gaps are not finite.
    """
    problem, n_columns = _problem(setting), len(setting.widths) - 1
    shifts = np.zeros((len(setting.layers), n_columns, *problem.valid.shape))
    wanted = []
    for place in np.ndindex(len(setting.layers), n_columns):
        found = None if setting.kept is None else setting.kept.get(_name(setting, place))
        if found is not None and found.shape == problem.valid.shape:
            shifts[place] = found
        else:
            wanted.append(place)
    if not wanted:
        return shifts
    with torch.no_grad(), setting.progress.stage("quantizing layers one at a time", len(wanted)) as tell:
        reference = problem.gaps(problem.outputs())
        for place in wanted:
            layer, width = setting.layers[place[0]], setting.widths[place[1]]
            with rounded([layer], [width], setting.group_size):
                shift = problem.gaps(problem.outputs()) - reference
            if not np.isfinite(shift[problem.valid]).all():
                raise DataError(
                    f"expected finite gaps, got some that are not with {layer.name} at {width} "
                    "bits; check the model's outputs, or load it in float32 or bfloat16"
                )
            shifts[place] = shift
            if setting.kept is not None:
                setting.kept.put(_name(setting, place), shift)
            tell(1)
    return shifts


def median_shifts(shifts: NDArray[np.float64], problem: GapProblem) -> NDArray[np.float64]:
    """The median over inputs of the absolute shift of the gap to the runner-up.

    Args:
        shifts: float64 [n_layers, n_widths - 1, n_inputs, n_contenders].
        problem: says which inputs have a runner-up.

    Returns:
        float64 [n_layers, n_widths - 1].

    Raises:
        DataError: no input has one.
    """
    has_one = problem.valid[:, 0]
    if not has_one.any():
        raise DataError(
            "expected calibration inputs with at least two items to choose from, got none: a gap "
            "needs a runner-up; give more documents"
        )
    medians: NDArray[np.float64] = np.median(np.abs(shifts[:, :, has_one, 0]), axis=2)
    return medians


def _problem(setting: Setting) -> GapProblem:
    if setting.problem is None:
        raise DataError("gap_exact needs calibration inputs, got none; give queries and documents")
    return setting.problem


def _name(setting: Setting, place: tuple[int, ...]) -> str:
    group = "channel" if setting.group_size is None else f"g{setting.group_size}"
    layer = setting.layers[place[0]].name
    return f"gap_exact-{setting.widths[place[1]]}bit-{group}-{layer}"


GAP_EXACT_CRITERION = GapExact()
