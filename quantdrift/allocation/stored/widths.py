"""Widths of an allocation for the layers of a model, and what a run says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantdrift.allocation.stored.fit import check_fits
from quantdrift.allocation.stored.record import Allocation, digest
from quantdrift.allocation.stored.record_file import read_allocation
from quantdrift.errors import DataError
from quantdrift.models.layers import LinearLayer
from quantdrift.spec import Scheme

__all__ = ["stored_allocation", "summary", "widths_for"]


def stored_allocation(scheme: Scheme) -> Allocation | None:
    """The allocation of the file that `+allocation=` names; None where it names none.

    Raises:
        DataError: the file is no allocation.
    """
    given = scheme.option("allocation")
    return None if given is None else read_allocation(Path(given).expanduser())


def widths_for(
    allocation: Allocation,
    layers: Sequence[LinearLayer],
    scheme: Scheme,
    fingerprint: str,
    *,
    left_out: Mapping[str, str] | None = None,
) -> list[int]:
    """The width of every layer.

    Args:
        allocation: as stored or as just made.
        layers: of the model.
        scheme: that it is used for; the quantizer may be another than it was made for.
        fingerprint: of the model's weights.
        left_out: name to reason of layers that this scheme does not quantize.

    Raises:
        DataError: it was made for another model, or for a scheme with other widths.
    """
    names = [layer.name for layer in layers]
    for name in allocation.width_of:
        if left_out and name in left_out:
            raise DataError(
                f"the allocation of {allocation.model} has a width for the layer {name}, which "
                f"{scheme} leaves at full precision ({left_out[name]}); write +head= as it was "
                "when the allocation was made: +head=none quantizes a classification head"
            )
    check_fits(allocation, names, [layer.weight.numel() for layer in layers], fingerprint)
    for what, there, here in (
        ("criterion", allocation.criterion, scheme.criterion),
        ("widths", allocation.widths, scheme.widths),
        ("bits per weight", allocation.budget, scheme.weight_bits),
        ("group size", allocation.group_size, scheme.group_size),
    ):
        if there != here:
            raise DataError(
                f"the allocation of {allocation.model} was made with {what} {there}, and {scheme} "
                f"says {here}; write MODEL@FILE.json, which takes all of it from the file"
            )
    widths = allocation.width_of
    return [widths[name] for name in names]


def summary(allocation: Allocation) -> dict[str, Any]:
    """What a run records of an allocation, as JSON values."""
    return {
        "criterion": allocation.criterion,
        "widths_offered": list(allocation.widths),
        "budget": allocation.budget,
        "bits_per_weight": allocation.bits_per_weight,
        "loss": allocation.loss,
        "bound": allocation.bound,
        "solver": allocation.method,
        "edited": allocation.edited,
        "dataset": allocation.dataset,
        "data_digest": allocation.data_digest,
        "calibration_inputs": len(allocation.input_ids),
        "digest": digest(allocation),
        "widths": allocation.width_of,
    }
