"""Experts of a mixture that are kept as one three-dimensional parameter, a matrix for each."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

__all__ = ["ExpertStack", "expert_stacks"]

ExpertStack = tuple[str, nn.Parameter, bool]
"""Name within its module, parameter [n_experts, ...], and whether matrices are [in, out] in it."""

_UP, _GATED_UP, _DOWN = "up_proj", "gate_up_proj", "down_proj"


def expert_stacks(module: nn.Module) -> Iterator[ExpertStack]:
    """The parameters of a module, not of its children, that hold one matrix per expert.

    Which they are and which way round they are kept is known of three kinds of module:
    those with the attributes of transformers' experts interface (`has_gate`, `is_transposed`);
    those with a `gate_up_proj` and a `down_proj`, where the shapes tell (the first has twice the
    width of the second); and those that hold `num_experts` times a `weight` [`output_size`,
    `input_size`].
    """
    parameters = {
        name: parameter
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3  # noqa: PLR2004 -- experts, rows and columns
    }
    transposed = _is_transposed(module, parameters)
    if transposed is not None:
        for name in (_GATED_UP, _UP, _DOWN):
            if name in parameters:
                yield name, parameters[name], transposed
    elif "weight" in parameters:
        sizes = tuple(
            getattr(module, name, None) for name in ("num_experts", "output_size", "input_size")
        )
        if tuple(parameters["weight"].shape) == sizes:
            yield "weight", parameters["weight"], False


def _is_transposed(module: nn.Module, parameters: dict[str, nn.Parameter]) -> bool | None:
    """Whether up and down projections are kept as [in, out]; None if that cannot be told."""
    declared = getattr(module, "is_transposed", None)
    if isinstance(declared, bool) and hasattr(module, "has_gate"):
        return declared
    if _GATED_UP not in parameters or _DOWN not in parameters:
        return None
    _, *up = parameters[_GATED_UP].shape
    _, *down = parameters[_DOWN].shape
    # With hidden size h and width w: (2w, h) and (h, w), or (h, 2w) and (w, h). No sizes fit both.
    if up == [2 * down[1], down[0]]:
        return False
    if up == [down[1], 2 * down[0]]:
        return True
    return None
