"""Where there is nothing to choose widths on, a scheme that chooses them is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantdrift.errors import UnsupportedError

if TYPE_CHECKING:  # they would load torch
    from quantdrift.pair import QuantizedPair
    from quantdrift.spec import Scheme

__all__ = ["chooses", "refuse_unchosen"]


def chooses(scheme: Scheme) -> bool:
    """Whether widths are to be chosen anew, rather than one for all or those of a file.

    >>> from quantdrift.spec import parse_scheme
    >>> chooses(parse_scheme("W3.5+gap")), chooses(parse_scheme("W4"))
    (True, False)

    Args:
        scheme: how the candidate is made.
    """
    return scheme.criterion is not None and scheme.option("allocation") is None


def refuse_unchosen(pair: QuantizedPair, why: str, *, named: str) -> None:
    """Refuse a pair whose widths would have to be chosen where they cannot be.

    Args:
        pair: the weights.
        why: that cannot be, a clause.
        named: how a pair of a stored allocation is written here.

    Raises:
        UnsupportedError: a criterion has to choose its widths, and has not.
    """
    if pair.needs_widths:
        raise UnsupportedError(
            f"the criterion {pair.scheme.criterion} chooses the layers' widths on a search over "
            f"embeddings, and {why}. Choose widths with quantdrift allocate and name the file: "
            f"{named}"
        )
