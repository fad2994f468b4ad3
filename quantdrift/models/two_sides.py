"""Two models of which at least one is on a server, behind the interface of a pair."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

from quantdrift.bits import BitsReport
from quantdrift.models.endpoint.encoder import EndpointEncoder
from quantdrift.models.fingerprint import weights_fingerprint
from quantdrift.models.sentence_encoder import SentenceEncoder
from quantdrift.models.stored_candidate import runtime_of_encoder

__all__ = ["LocalReference", "ServerSide", "Side", "TwoSides"]


class Side(Protocol):
    """One of two models."""

    @property
    def fingerprint(self) -> str:
        """Digest of it."""
        ...

    @property
    def runtime(self) -> dict[str, str]:
        """What decides its embeddings beside itself and its inputs."""
        ...

    @property
    def layers(self) -> Sequence[str] | None:
        """Names of its quantized layers; None where they cannot be seen."""
        ...

    def bits(self) -> BitsReport | None:
        """Its bits per weight; None where they are not known."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a run records of how it is quantized, as JSON values."""
        ...


class LocalReference:
    """A model at full precision that is loaded here.

    Attributes:
        layers: none is quantized.
    """

    layers: Sequence[str] | None = ()

    def __init__(self, encoder: SentenceEncoder) -> None:
        """Nothing is computed yet.

        Args:
            encoder: the model.
        """
        self._encoder = encoder

    @property
    def fingerprint(self) -> str:
        """Digest of its weights, as in any run of it."""
        return weights_fingerprint([self._encoder.module])

    @property
    def runtime(self) -> dict[str, str]:
        """What decides embeddings beside weights and inputs, as in any run of it."""
        return runtime_of_encoder(self._encoder)

    def bits(self) -> BitsReport | None:
        """Not counted: it is no candidate."""
        return None

    def describe(self) -> dict[str, Any]:
        """Nothing: it is no candidate."""
        return {}


class ServerSide:
    """A model on a server, of which only its answers are known.

    Attributes:
        layers: None.
    """

    layers: Sequence[str] | None = None

    def __init__(self, encoder: EndpointEncoder) -> None:
        """Nothing is asked.

        Args:
            encoder: the model, with its identity.
        """
        self._encoder = encoder

    @property
    def fingerprint(self) -> str:
        """Digest of what it answers to fixed texts; the server's last bits do not change it."""
        return self._encoder.identity.fingerprint

    @property
    def runtime(self) -> dict[str, str]:
        """Empty: nothing that is installed here decides anything."""
        return {}

    def bits(self) -> BitsReport | None:
        """None: a server does not tell."""
        return None

    def describe(self) -> dict[str, Any]:
        """That it is not known how it is quantized."""
        return {"quantizer": None, "nominal_bits": None}


class TwoSides:
    """Two models, of which one answers at a time; used as a `QuantizedPair` is.

    Attributes:
        query_only: False; both sides are embedded by the candidate.
        needs_calibration: False; the candidate is made already.
        never_reached: None; no forward pass can be watched in both models.
        device: where models that are loaded here run, and scores are computed.
    """

    query_only = False
    needs_calibration = False
    never_reached: list[str] | None = None

    def __init__(self, reference: Side, candidate: Side, *, device: torch.device) -> None:
        """Pair them.

        Args:
            reference: the model that counts as right.
            candidate: what it is compared with.
            device: where models run that are loaded here.
        """
        self._reference, self._candidate = reference, candidate
        self._active = False
        self.device = device

    @property
    def layers(self) -> Sequence[str] | None:
        """Names of the candidate's quantized layers; None where they cannot be seen."""
        return self._candidate.layers

    @property
    def fingerprint(self) -> str:
        """Digest of the reference."""
        return self._reference.fingerprint

    def candidate_fingerprint(self) -> str:
        """Digest of the candidate."""
        return self._candidate.fingerprint

    @property
    def runtime(self) -> dict[str, str]:
        """What decides embeddings of the model that is in place beside itself and its inputs."""
        return (self._candidate if self._active else self._reference).runtime

    def observed(self) -> AbstractContextManager[None]:
        """Watches nothing."""
        return nullcontext()

    @contextmanager
    def candidate(self) -> Iterator[None]:
        """Inside, the candidate answers; on leaving, the reference again.

        Raises:
            RuntimeError: the candidate is in place already.
        """
        if self._active:
            raise RuntimeError("the candidate is in place already")
        self._active = True
        try:
            with contextlib.redirect_stdout(sys.stderr):  # kernels talk at the first call
                yield
        finally:
            self._active = False

    def bits(self) -> BitsReport | None:
        """Bits per weight of the candidate; None where they are not known."""
        return self._candidate.bits()

    def describe(self) -> dict[str, Any]:
        """What a run records of the candidate, as JSON values."""
        return self._candidate.describe()
