"""Named slices of the inputs: by patterns on their ids, for rules that look at a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import DataError, UnknownNameError

__all__ = ["Slices", "check_slice", "in_slice"]

Slices = Mapping[str, Sequence[str]]
"""Name of a slice to patterns on input ids, with `*`, `?` and `[...]`; an input belongs if one
of them matches."""


def check_slice(name: str, slices: Slices) -> None:
    """Refuse the name of a slice that there is not.

    Raises:
        UnknownNameError: carries the nearest names.
    """
    if name not in slices:
        hint = "(expected one under [tool.quantdrift.gate.slices], or --slice NAME=PATTERN)"
        raise UnknownNameError("slice", name, slices, hint=hint)


def in_slice(name: str, slices: Slices, input_ids: Sequence[str]) -> NDArray[np.bool_]:
    """Which inputs belong to a slice, bool [n_inputs].

    Args:
        name: of the slice.
        slices: those there are.
        input_ids: of the inputs.

    Raises:
        UnknownNameError: there is no slice of that name.
        DataError: one of its patterns matches no input.

    >>> in_slice("german", {"german": ["de-*"]}, ["de-1", "en-1"]).tolist()
    [True, False]
    """
    check_slice(name, slices)
    patterns = slices[name]
    found = np.zeros(len(input_ids), dtype=np.bool_)
    for pattern in patterns:
        matching = np.array([fnmatchcase(each, pattern) for each in input_ids], dtype=np.bool_)
        if not matching.any():
            raise DataError(
                f"the slice {name!r}: no input matches {pattern!r}; ids are like "
                f"{', '.join(repr(each) for each in input_ids[:3])}"
            )
        found |= matching
    return found
