"""A reference and a stored candidate: two loaded models behind the interface of a pair.

Unlike a candidate that is made in place, this one is a model of its own, so both are resident.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.bits import BitsReport
from quantdrift.calibration.sample import Sample
from quantdrift.errors import UnsupportedError
from quantdrift.models.encoder_parts import differences
from quantdrift.models.fingerprint import weights_fingerprint
from quantdrift.models.layers import find_linears
from quantdrift.models.reach import WeightUse
from quantdrift.models.runtime import runtime_of
from quantdrift.models.sentence_encoder import Role, SentenceEncoder
from quantdrift.models.stored_candidate import StoredCandidate, in_body
from quantdrift.progress import Progress

__all__ = ["LoadedCandidate", "TwoModels"]


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

    def encode(self, texts: Sequence[str], role: Role, batch_size: int) -> NDArray[np.float32]:
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

    def __init__(
        self, reference: SentenceEncoder, candidate: StoredCandidate | LoadedCandidate
    ) -> None:
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

    def encode(self, texts: Sequence[str], role: Role, batch_size: int) -> NDArray[np.float32]:
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
            layer.name
            for layer in self._linears
            if in_body(layer.name) in packed and layer.name not in self._reached
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
