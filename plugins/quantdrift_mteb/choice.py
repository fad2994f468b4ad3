"""Where mteb gives no search over embeddings, no criterion can choose widths."""

from __future__ import annotations

from quantdrift.errors import UnsupportedError
from quantdrift.pair import QuantizedPair
from quantdrift.spec import Scheme

__all__ = ["chooses", "refuse_unchosen"]


def chooses(scheme: Scheme) -> bool:
    """Whether widths are to be chosen anew, rather than taken from a file."""
    return scheme.criterion is not None and scheme.option("allocation") is None


def refuse_unchosen(pair: QuantizedPair, why: str) -> None:
    """Refuse a pair whose widths would have to be chosen here.

    Args:
        pair: the model.
        why: that cannot be, a clause.

    Raises:
        UnsupportedError: its scheme has a criterion, and no allocation.
    """
    if chooses(pair.scheme) and pair.needs_widths:
        raise UnsupportedError(
            f"the criterion {pair.scheme.criterion} chooses the layers' widths on a search over "
            f"embeddings, and {why}. Choose widths with quantdrift allocate and name the file, "
            "MODEL@allocation.json"
        )
