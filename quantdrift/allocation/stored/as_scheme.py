"""The scheme that a stored allocation stands for."""

from __future__ import annotations

from pathlib import Path

from quantdrift.allocation.stored.record_file import read_allocation
from quantdrift.errors import SpecError
from quantdrift.grammar import DEFAULT_QUANTIZER, QUANTIZERS

__all__ = ["can_be_named", "scheme_of"]


def can_be_named(file: str) -> bool:
    """Whether a spec can hold this name of a file."""
    plain = file.isprintable() and not any(c.isspace() or c in "+@" for c in file)
    return plain and file.encode("utf-8", "replace").decode() == file


def scheme_of(file: str, rest: str) -> str:
    """A scheme, written in full, whose widths are those of a file.

    >>> scheme_of("allocation.json", "-gptq+query")  # doctest: +SKIP
    'W3.5-g128-gptq+gap+allocation=allocation.json+query'

    Args:
        file: as the user wrote it.
        rest: what stands behind it: a quantizer in place of the file's, options.

    Raises:
        DataError: the file is no allocation.
        SpecError: its name cannot stand in a scheme.
    """
    if not can_be_named(file):
        raise SpecError(
            f"{file}: an allocation in a spec has a name without spaces, '+' and '@'; rename it",
            text=file,
            start=0,
            end=len(file),
        )
    allocation = read_allocation(Path(file).expanduser())
    parts, plus, options = rest.partition("+")
    named = any(part in QUANTIZERS for part in parts.split("-"))
    quantizer = "" if named else f"-{allocation.quantizer or DEFAULT_QUANTIZER}"
    granularity = "channel" if allocation.group_size is None else f"g{allocation.group_size}"
    low = int(allocation.budget)
    by_default = allocation.budget > low and allocation.widths == (low, low + 1)
    widths = "" if by_default else f"+widths={','.join(map(str, allocation.widths))}"
    return (
        f"W{str(allocation.budget).removesuffix('.0')}-{granularity}{parts}{quantizer}+{allocation.criterion}"
        f"+allocation={file}{widths}{plus}{options}"
    )
