"""What decides which inputs of a batch a candidate answers alone: a router, or a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import CONFIDENCES, ConfidenceName
from quantdrift.errors import QuantDriftError

__all__ = ["Accepts", "Gate", "Routes", "Traffic", "routed_by", "score_of"]


@runtime_checkable
class Routes(Protocol):
    """Says which inputs go to full precision, as `GapRouter` does."""

    def routes(self, scores: Any, /) -> Any:
        """Bool [n], true for full precision."""
        ...


@runtime_checkable
class Accepts(Protocol):
    """Says which answers of the candidate can stand, as a stability check does."""

    def accepts(self, scores: Any, /) -> Any:
        """Bool [n], true where the answer stands."""
        ...


Gate = Routes | Accepts


def score_of(gate: Gate) -> ConfidenceName:
    """Which confidence a gate looks at: its `score`, or its `statistic` if that is one; or gap."""
    named = getattr(gate, "score", None) or getattr(gate, "statistic", None)
    return named if named in CONFIDENCES else "gap"


def routed_by(gate: Gate, scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Which inputs go to full precision: those a router routes, or a check does not accept.

    Args:
        gate: a router or a check; one that is both is taken as a router.
        scores: [n, n_items], the candidate's.

    Returns:
        bool [n].

    Raises:
        QuantDriftError: it is neither, or does not answer with one value per input.
    """
    if isinstance(gate, Routes):
        routed = np.asarray(gate.routes(scores), dtype=bool)
    elif isinstance(gate, Accepts):
        routed = ~np.asarray(gate.accepts(scores), dtype=bool)
    else:
        raise QuantDriftError(
            "expected a router (with routes(scores)) or a check (with accepts(scores)); got "
            f"{type(gate).__name__}"
        )
    if routed.shape != (len(scores),):
        raise QuantDriftError(
            f"expected one decision for each of {len(scores)} inputs from "
            f"{type(gate).__name__}; got shape {routed.shape}"
        )
    return routed


@dataclass(slots=True)
class Traffic:
    """Counts inputs and how many of them went to full precision; threads may share it."""

    _seen: int = 0
    _routed: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, routed: NDArray[np.bool_]) -> None:
        """Count one batch, bool [n]."""
        with self._lock:
            self._seen += len(routed)
            self._routed += int(routed.sum())

    def counts(self) -> tuple[int, int]:
        """(inputs seen, of these routed), of the same moment."""
        with self._lock:
            return self._seen, self._routed
