"""Whether a stored allocation is one for the model at hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.stored.record import Allocation
from quantdrift.errors import DataError, nearest

__all__ = ["check_fits"]

_SHOWN = 3


def check_fits(
    allocation: Allocation,
    names: Sequence[str],
    n_weights: Sequence[int] | NDArray[np.int64],
    fingerprint: str,
    *,
    allow_other_weights: bool = False,
) -> None:
    """Check that an allocation is one for a model: the same layers, and the same weights.

    Args:
        allocation: which one.
        names: of the model's linear layers, in any order.
        n_weights: int64 [n_layers].
        fingerprint: of the model's weights.
        allow_other_weights: whether an allocation of other weights will do, say of the model
            before it was fine-tuned.

    Raises:
        DataError: they do not fit; names the layers, and what to do.
    """
    given = {layer.name: layer.n_weights for layer in allocation.layers}
    there = {name: int(n) for name, n in zip(names, n_weights, strict=True)}
    of = f"the allocation of {allocation.model}"
    if unknown := [name for name in given if name not in there]:
        meant = nearest(unknown[0], there)
        hint = f"; the nearest there are {', '.join(meant)}" if meant else ""
        raise DataError(
            f"{of} has layers that this model has not: {_some(unknown)}{hint}. Expected an "
            "allocation made for this model."
        )
    if missing := [name for name in there if name not in given]:
        raise DataError(
            f"{of} says nothing of some of this model's layers: {_some(missing)}. Expected a width "
            "for each; one of 16 leaves a layer unquantized."
        )
    for name, n in given.items():
        if n != there[name]:
            raise DataError(
                f"{of} has {n} weights in layer {name}, and this model {there[name]}; expected an "
                "allocation made for this model"
            )
    if fingerprint != allocation.fingerprint and not allow_other_weights:
        raise DataError(
            f"{of} was measured on other weights (fingerprint {allocation.fingerprint}, this "
            f"model's is {fingerprint}): which layers need bits may differ. Measure again, or say "
            "that it is meant so with allow_other_weights."
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
