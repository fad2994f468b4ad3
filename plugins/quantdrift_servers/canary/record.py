"""A canary: a few texts with their embeddings by a model, stored beside an index; needs no torch.

If the texts get other embeddings later, the model is no longer the one that the index was built with.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from quantdrift.parts import QuantDriftError, Record
from quantdrift_servers.texts import LONGEST, Role, Texts, Vectors

Floats = NDArray[np.float64]
Encode = Callable[[Texts, int], Vectors]
"""A function from texts with their roles and a batch size to embeddings."""

LEAST, OF_NOISE = 1e-5, 10.0
"""Smallest tolerance, as 1 - cosine, and the tolerance in units of the model's own noise. With MiniLM in float32, other
batches give 8e-13 and other threads 0; float16 gives 1.5e-6 (its own noise is 1.4e-6), bfloat16 1.3e-4, 8 bits a weight
8e-4, 6 bits 1e-2, 4 bits 0.2, and a limit of 128 tokens instead of 256 gives 0.07."""
MOST, LARGEST = 256, 16_384
"""Texts, and numbers of an embedding, at most."""
_ALONE, _FEW, _SEED = 1, 5, 0
"""Batch sizes that the noise is measured with, and the seed for the order of the texts."""
_NONE = 1e-30
"""Replaces a length of 0."""


class Text(BaseModel):
    """A text with its role and its embedding (float32, little-endian, in base64)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    role: Role
    text: Annotated[str, Field(max_length=LONGEST)]
    embedding: Annotated[str, Field(max_length=-(-4 * LARGEST // 3) * 4)]

    @property
    def vector(self) -> Vectors:
        """The embedding, float32 [dim]."""
        return np.frombuffer(base64.b64decode(self.embedding, validate=True), dtype="<f4")


class Canary(Record):
    """The embeddings of a few texts by a model.

    Attributes:
        model: name of the model, as `quantdrift canary check` takes it.
        prefixes: role to the prompt before each text, which a server gets too.
        dimension: dimension of the embeddings.
        noise: largest distance by which the model itself moves an embedding, in other batches and another order.
        saved: time, ISO 8601.
        texts: two texts or more.
    """

    FORMAT, VERSION = "quantdrift-canary", 1
    WHAT, MAKE = "a canary", "quantdrift canary save MODEL -o FILE.json"
    LIMIT = 64 << 20  # 256 texts of the largest size take 48 MiB

    model: Annotated[str, Field(max_length=1000)]
    prefixes: dict[Role, Annotated[str, Field(max_length=10_000)]]
    dimension: Annotated[int, Field(ge=1, le=LARGEST)]
    noise: Annotated[float, Field(ge=0, le=1e300)]
    saved: Annotated[str, Field(max_length=100)]
    texts: Annotated[list[Text], Field(min_length=2, max_length=MOST)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for number, text in enumerate(self.texts):
            if (size := len(base64.b64decode(text.embedding, validate=True))) != 4 * self.dimension:
                raise ValueError(f"texts.{number}: expected {4 * self.dimension} bytes of embedding; got {size}")
            if not np.isfinite(text.vector).all():
                raise ValueError(f"texts.{number}: its embedding is not finite")
        return self

    @property
    def asked(self) -> Texts:
        """The texts with their roles."""
        return [(text.role, text.text) for text in self.texts]

    @property
    def vectors(self) -> Vectors:
        """The embeddings, float32 [n, dim]."""
        return np.stack([text.vector for text in self.texts])


def make(model: str, texts: Texts, encode: Encode, *, prefixes: dict[Role, str], now: str) -> Canary:
    """Embed texts, and twice more in other batches and another order to measure the noise.

    Raises:
        QuantDriftError: the dimension is above LARGEST.
    """
    vectors = encode(texts, len(texts))
    if vectors.shape[1] > LARGEST:
        raise QuantDriftError(f"{model}: expected at most {LARGEST:,} numbers of each text; got {vectors.shape[1]:,}")
    order = np.random.default_rng(_SEED).permutation(len(texts))
    again = np.empty_like(vectors)
    again[order] = encode([texts[row] for row in order], _FEW)
    noise = max(float(moved(vectors, other)[0].max()) for other in (again, encode(texts, _ALONE)))
    return Canary(
        model=model,
        prefixes=prefixes,
        dimension=vectors.shape[1],
        noise=noise,
        saved=now,
        texts=[
            Text(role=role, text=text, embedding=base64.b64encode(vector.astype("<f4").tobytes()).decode())
            for (role, text), vector in zip(texts, vectors, strict=True)
        ],
    )


# --- comparison -----------------------------------------------------------------------------------


def _units(vectors: Vectors) -> tuple[Floats, Floats]:
    """Embeddings divided by their lengths, and the lengths; an embedding of length 0 is not changed."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return vectors / np.maximum(lengths, _NONE)[:, None], lengths


def moved(then: Vectors, now: Vectors) -> tuple[Floats, Floats, Floats]:
    """The distance by which embeddings [n, dim] moved: the larger of 1 - cosine and d^2 / 2, for lengths that differ by
    a share d. A turn by a distance d changes 1 - cosine by d^2 / 2 too.

    Returns:
        That distance, 1 - cosine, and the ratios of the lengths, float64 [n] each.
    """
    (before, length), (after, lengths) = _units(then), _units(now)
    turned = ((before - after) ** 2).sum(axis=1) / 2  # 1 - cosine, without its rounding
    ratios = np.where(length == lengths, 1.0, lengths / np.maximum(length, _NONE))
    return np.maximum(turned, (ratios - 1) ** 2 / 2), turned, ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The embeddings of a model now, compared with a canary.

    Attributes:
        dimension: dimension of the embeddings now.
        tolerance: largest distance that is no change.
        refused: positions of the texts that the model refuses now.
        asked: positions of the other texts.
        moved, turned, ratios: the results of `moved` for these; empty if the dimension has changed.
        nearest_changed: number of texts with another nearest text.
    """

    dimension: int
    tolerance: float
    refused: Sequence[int]
    asked: Sequence[int]
    moved: Sequence[float]
    turned: Sequence[float]
    ratios: Sequence[float]
    nearest_changed: int

    @property
    def over(self) -> list[int]:
        """Positions of the texts that changed: the refused ones, then the others, most changed first."""
        moved = dict(zip(self.asked, self.moved, strict=False))  # empty if the dimension has changed
        most_first = sorted(moved, key=lambda row: -moved[row])
        return [*self.refused, *(row for row in most_first if moved[row] > self.tolerance)]

    @property
    def changed(self) -> bool:
        """True if it is another model."""
        return not len(self.moved) or bool(self.over)


def compare(canary: Canary, now: Vectors, refused: Sequence[int] = (), *, tolerance: float | None = None) -> Check:
    """Compare new embeddings of a canary's texts, except the refused ones, with its own."""
    asked = [row for row in range(len(canary.texts)) if row not in refused]
    then = canary.vectors[asked]
    same = now.shape == then.shape
    distances, turned, ratios = (part.tolist() for part in moved(then, now)) if same else ([], [], [])
    return Check(
        dimension=now.shape[1],
        tolerance=max(LEAST, OF_NOISE * canary.noise) if tolerance is None else tolerance,
        refused=refused,
        asked=asked,
        moved=distances,
        turned=turned,
        ratios=ratios,
        nearest_changed=int((_nearest(then) != _nearest(now if same else then)).sum()),
    )


def _nearest(vectors: Vectors) -> NDArray[np.int64]:
    """Position of the nearest other text by cosine, int64 [n]."""
    unit, _ = _units(vectors)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return np.asarray(cosines.argmax(axis=1))
