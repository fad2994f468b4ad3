"""Where mteb gives no search over embeddings, no criterion can choose widths."""

from __future__ import annotations

from quantdrift import spec as unchosen
from quantdrift.engine.pair import QuantizedPair


def refuse_unchosen(pair: QuantizedPair, why: str) -> None:
    """Refuse a pair whose widths would have to be chosen here.

    Args:
        pair: the model.
        why: that cannot be, a clause.

    Raises:
        UnsupportedError: a criterion has to choose its widths, and has not.
    """
    unchosen.refuse_unchosen(pair, why, named="MODEL@allocation.json")
