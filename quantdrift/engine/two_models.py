"""A reference and a stored candidate: two loaded models behind the interface of a pair.

Unlike a candidate that is made in place, this one is a model of its own, so both are resident.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.engine.bits import BitsReport
from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.encoders.checkpoint import StoredCandidate, in_body
from quantdrift.engine.encoders.sentence import SentenceEncoder, differences
from quantdrift.engine.encoders.server import EndpointEncoder
from quantdrift.engine.layers import WeightUse, find_linears
from quantdrift.engine.weights import runtime_of, weights_fingerprint
from quantdrift.errors import UnsupportedError
from quantdrift.progress import Progress

# --- A reference and a stored candidate: two loaded models behind the interface of a pair ---------


class LoadedCandidate:
    """A candidate that the user has in memory; what made it is not known here.

    Attributes:
        notes: in what beside weights it differs from its reference.
        layers: None, as which of its layers are quantized is not known.
    """

    layers: Sequence[str] | None = None

    def __init__(self, encoder: SentenceEncoder, reference: SentenceEncoder) -> None:
        """Nothing is computed yet.

        Args:
            encoder: the model.
            reference: what it is compared with.

        Raises:
            UnsupportedError: the two compare embeddings in different ways.
        """
        if encoder.similarity != reference.similarity:
            raise UnsupportedError(
                f"the candidate {encoder.source.name} compares embeddings by {encoder.similarity}, "
                f"the reference {reference.source.name} by {reference.similarity}; expected two "
                "models with one similarity_fn_name"
            )
        self._encoder = encoder
        self.notes = tuple(differences(reference, encoder))

    def encode(self, texts: Sequence[str], role: str, batch_size: int) -> NDArray[np.float32]:
        """Embed texts, float32 [n, dim]."""
        return self._encoder.encode(texts, role, batch_size)

    @property
    def fingerprint(self) -> str:
        """Digest of its weights."""
        return weights_fingerprint([self._encoder.module])

    def bits(self) -> None:
        """Bits per weight are not known."""

    def identify(self) -> dict[str, Any]:
        """What a run records of where it came from, as JSON values."""
        source = self._encoder.source
        return {"name": source.name, "canonical": source.canonical, "kind": source.kind}

    def describe(self) -> dict[str, Any]:
        """What a run records of how it is quantized, as JSON values."""
        return {"notes": list(self.notes)}


class TwoModels:
    """Two embedding models, of which one answers at a time; used as a `QuantizedPair` is.

    Attributes:
        layers: names of the candidate's packed layers; None where they are not known.
        query_only: False; both sides are embedded by the candidate.
        needs_calibration: False; the candidate is made already.
    """

    query_only = False
    needs_calibration = False

    def __init__(self, reference: SentenceEncoder, candidate: StoredCandidate | LoadedCandidate) -> None:
        """Pair them; both keep their weights.

        Args:
            reference: the model at full precision.
            candidate: what it is compared with.
        """
        self._reference = reference
        self._candidate = candidate
        self._linears = find_linears([reference.module])
        self._reached: set[str] = set()
        self._active = False
        self.layers: Sequence[str] | None = candidate.layers

    def encode(self, texts: Sequence[str], role: str, batch_size: int) -> NDArray[np.float32]:
        """Embed texts by the model that is in place, float32 [n, dim]."""
        model = self._candidate if self._active else self._reference
        return model.encode(texts, role, batch_size)

    @property
    def fingerprint(self) -> str:
        """Digest of the reference's weights."""
        return weights_fingerprint([self._reference.module])

    def candidate_fingerprint(self) -> str:
        """Digest of all that decides the candidate's embeddings."""
        return self._candidate.fingerprint

    @property
    def device(self) -> torch.device:
        """Where the models run."""
        return next(self._reference.module.parameters()).device

    @property
    def runtime(self) -> dict[str, str]:
        """What decides the reference's embeddings beside weights and inputs, as for any pair."""
        first = next(self._reference.module.parameters())
        return runtime_of(self._linears[0].parameter if self._linears else first)

    @property
    def never_reached(self) -> list[str] | None:
        """Names of the reference's layers that the candidate packs and no observed pass used."""
        if self.layers is None:
            return None
        packed = set(self.layers)
        return [
            layer.name for layer in self._linears if in_body(layer.name) in packed and layer.name not in self._reached
        ]

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Note which of the reference's layers the forward passes inside use."""
        with WeightUse(self._linears) as use:
            yield
        self._reached |= use.used

    def prepare(self, sample: Sample, *, root: Path | None, progress: Progress) -> None:
        """Nothing: the candidate was calibrated by whoever made it."""

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
            # kernels that choose or compile themselves at the first call say so on standard output
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            self._active = False

    def bits(self) -> BitsReport | None:
        """Bits per weight of the candidate, counted from what is stored; None where not known."""
        return self._candidate.bits()

    def describe(self) -> dict[str, Any]:
        """What a run records of the candidate, as JSON values."""
        return self._candidate.describe()


# --- Two models of which at least one is on a server, behind the interface of a pair --------------


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
        return self._encoder.runtime

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
