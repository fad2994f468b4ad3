"""A canary: a few texts with the embeddings that a model gave them, kept beside an index; needs no torch.

Where the same texts get other embeddings later, the model is no longer the one that the index was built with.
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
"""The embeddings of texts in their roles, in batches of a size."""

LEAST, OF_NOISE = 1e-5, 10.0
"""What another model differs by at least, as 1 - cosine, and in units of the model's own noise. Of MiniLM in float32,
other batches change 8e-13 and threads nothing; float16 in place of float32 1.5e-6 (its own noise is 1.4e-6), bfloat16
1.3e-4, 8 bits a weight 8e-4, 6 bits 1e-2, 4 bits 0.2, and a limit of 128 tokens in place of 256 0.07."""
MOST, LARGEST = 256, 16_384
"""Texts, and numbers of an embedding."""
_ALONE, _FEW, _SEED = 1, 5, 0
"""Sizes of the batches that the noise is measured with, and what orders the texts."""
_NONE = 1e-30
"""In place of a length of 0."""


class Text(BaseModel):
    """A text, what it is embedded as, and its embedding: float32, little-endian, in base64."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    role: Role
    text: Annotated[str, Field(max_length=LONGEST)]
    embedding: Annotated[str, Field(max_length=-(-4 * LARGEST // 3) * 4)]

    @property
    def vector(self) -> Vectors:
        """The embedding, float32 [dim]."""
        return np.frombuffer(base64.b64decode(self.embedding, validate=True), dtype="<f4")


class Canary(Record):
    """What a model gave a few texts.

    Attributes:
        model: its name, as `quantdrift canary check` takes it.
        prefixes: role to what stood before every text; a server is sent it along.
        dimension: of the embeddings.
        noise: how far the model itself moves an embedding at most, in other batches and another order.
        saved: when, ISO 8601.
        texts: two or more.
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
    """Embed texts, twice more in other batches and order for the noise, and keep what came.

    Raises:
        QuantDriftError: an embedding is larger than can be kept.
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


# --- then and now ---------------------------------------------------------------------------------


def _units(vectors: Vectors) -> tuple[Floats, Floats]:
    """Embeddings of length 1, and their lengths; one of length 0 stays as it is."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return vectors / np.maximum(lengths, _NONE)[:, None], lengths


def moved(then: Vectors, now: Vectors) -> tuple[Floats, Floats, Floats]:
    """How far embeddings [n, dim] moved: by the larger of 1 - cosine and what their lengths differ by.

    A length that differs by a share d counts as d^2 / 2: as much as a turn by the same distance, of which 1 - cosine is
    d^2 / 2.

    Returns:
        That, 1 - cosine, and by what lengths were multiplied, float64 [n] each.
    """
    (before, length), (after, lengths) = _units(then), _units(now)
    turned = ((before - after) ** 2).sum(axis=1) / 2  # 1 - cosine, without its rounding
    ratios = np.where(length == lengths, 1.0, lengths / np.maximum(length, _NONE))
    return np.maximum(turned, (ratios - 1) ** 2 / 2), turned, ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a model gives now, beside what was kept.

    Attributes:
        dimension: of the embeddings now.
        tolerance: how far those of the same model move, at most.
        refused: positions of texts that the model does not take any more.
        asked: positions of the others; there is a row of each below, and none if the dimension is another.
        moved, turned, ratios: of each, as `moved` has them.
        nearest_changed: texts whose nearest other text is another.
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
        """Positions of the texts that changed: those that are refused, then the others, most changed first."""
        moved = dict(zip(self.asked, self.moved, strict=False))  # nothing, of another dimension
        most_first = sorted(moved, key=lambda row: -moved[row])
        return [*self.refused, *(row for row in most_first if moved[row] > self.tolerance)]

    @property
    def changed(self) -> bool:
        """Whether it is another model."""
        return not len(self.moved) or bool(self.over)


def compare(canary: Canary, now: Vectors, refused: Sequence[int] = (), *, tolerance: float | None = None) -> Check:
    """Hold the embeddings of a canary's texts, but for those that were refused, against those that it keeps."""
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
    """The other text that is nearest to each by cosine, int64 [n]."""
    unit, _ = _units(vectors)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return np.asarray(cosines.argmax(axis=1))
