"""The inputs of models, and the settings that they are run with; needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantdrift.data.images import Images
from quantdrift.kinds.encoder import brought_for
from quantdrift.models.store import digest_of

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
SAMPLED = 64
"""Size of the sample that is always encoded again for the noise floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        k: ranks kept of either arm.
        batch_size: inputs per forward pass.
        noise_floor: whether to run the reference a second time.
        seed: seed of the order in which the noise floor is run, and inputs until they are enough.
        dtype: number type of full-precision weights and of the computation, one of DTYPES.
        trust_remote_code: whether Python code that comes with a model may run.
        query_prompt: name of the prompt to put before queries; None leaves the choice to the model.
        document_prompt: name of the prompt to put before documents, likewise.
    """

    k: int = 200
    batch_size: int = 32
    noise_floor: bool = True
    seed: int = 0
    dtype: str = "float32"
    trust_remote_code: bool = False
    query_prompt: str | None = None
    document_prompt: str | None = None

    @property
    def loading(self) -> Any:
        """The arguments to load a model with."""
        named = {"query": self.query_prompt, "document": self.document_prompt}
        prompts = {role: name for role, name in named.items() if name is not None}
        return {"dtype": self.dtype, "trusted": self.trust_remote_code, "prompts": prompts}


class Chosen(Sequence[Any]):
    """Some rows of a sequence; each is read only when it is needed, as images are large."""

    def __init__(self, items: Sequence[Any], rows: Rows) -> None:
        self.items: Sequence[Any] = items.items if isinstance(items, Chosen) else items
        self.rows: Rows = items.rows[rows] if isinstance(items, Chosen) else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.items[row] for row in self.rows[place].tolist()]
        return self.items[int(self.rows[place])]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
    """Inputs of a model in one role.

    Attributes:
        role: "query", "document", "pair" or "input".
        ids: names.
        items: texts, pairs of texts, images, or whatever the model's encoder takes.
        digest: JSON values that identify the items; None if nothing made of them may be kept.
        lengths: length of each item, to form batches of similar lengths; None keeps their order.
    """

    role: str
    ids: Sequence[str]
    items: Sequence[Any]
    digest: Mapping[str, Any] | None
    lengths: Rows | None = None

    def order(self) -> Rows:
        """Rows with the longest first: similar lengths share a batch, and a batch that is too long fails at once."""
        if self.lengths is None:
            return np.arange(len(self.ids), dtype=np.int64)
        return np.argsort(-self.lengths, kind="stable").astype(np.int64)

    def at(self, rows: Rows) -> Chosen:
        """The items of some rows."""
        return Chosen(self.items, rows)

    def part(self, rows: Rows) -> "Inputs":
        """Some of the inputs as inputs of their own, in the order given."""
        items = self.at(rows)
        return Inputs(
            role=self.role,
            ids=[self.ids[row] for row in rows.tolist()],
            items=items,
            digest=None if self.digest is None else {**self.digest, "rows": digest_of(items.rows)},
            lengths=None if self.lengths is None else self.lengths[rows],
        )


def text_inputs(texts: Sequence[str], *, role: str = "document", ids: Sequence[str] | None = None) -> Inputs:
    """Make inputs of texts; without ids they are named by their numbers."""
    return Inputs(
        role=role,
        ids=tuple(map(str, range(len(texts)))) if ids is None else ids,
        items=texts,
        digest={"texts": digest_of(texts)},
        lengths=np.array([len(text) for text in texts], dtype=np.int64),
    )


def inputs_of(items: Sequence[Any], *, role: str, ids: Sequence[str]) -> Inputs:
    """Make inputs of texts or images."""
    if isinstance(items, Images):
        return Inputs(role=role, ids=ids, items=items, digest={"images": digest_of(items.contents)})
    return text_inputs(items, role=role, ids=ids)


class Encoder(Protocol):
    """A model that can be run; it knows nothing of data."""

    __slots__ = ()

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> Vectors:
        """Embeddings, logits, or one score of each query-document pair: float32 [n, dim]."""

    def key(self, role: str) -> Mapping[str, Any] | None:
        """Return all that decides outputs beside weights, items and libraries, as JSON; None if unknown."""


def described(encoder: Encoder, inputs: Inputs) -> dict[str, Any] | None:
    """Return all that decides the outputs for some inputs beside the weights; None if unknown."""
    key, source = encoder.key(inputs.role), getattr(encoder, "source", None)
    if key is None or inputs.digest is None:
        return None
    parts = {} if source is None else brought_for(source)
    return {**inputs.digest, **key, **({"parts": parts} if parts else {})}
