"""What a measurement asks of a pair, however its two arms are had."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from quantdrift.bits import BitsReport

__all__ = ["Pair", "PairName"]


class Pair(Protocol):
    """A reference and a candidate, one of which answers at a time."""

    @property
    def query_only(self) -> bool:
        """Whether the index stays at the reference."""
        ...

    @property
    def needs_calibration(self) -> bool:
        """Whether the candidate has yet to be made, on inputs."""
        ...

    @property
    def layers(self) -> Sequence[object] | None:
        """The layers that are quantized; None where they cannot be seen from here."""
        ...

    @property
    def never_reached(self) -> list[str] | None:
        """Names of those that no observed forward pass used; None where none was observed."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of the reference's weights."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    @property
    def runtime(self) -> dict[str, str]:
        """What decides embeddings beside weights and inputs."""
        ...

    def candidate_fingerprint(self) -> str:
        """Digest of the candidate; only inside `candidate()`."""
        ...

    def observed(self) -> AbstractContextManager[None]:
        """Inside, forward passes are watched for the layers they use."""
        ...

    def candidate(self) -> AbstractContextManager[None]:
        """Inside, the candidate answers; afterwards the reference."""
        ...

    def bits(self) -> BitsReport | None:
        """Bits per weight of the candidate; None where they are not known."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a run records of how the candidate was made, as JSON values."""
        ...


class PairName(Protocol):
    """What names a pair; its string is canonical."""

    @property
    def model(self) -> str:
        """The reference, as the user wrote it."""
        ...
