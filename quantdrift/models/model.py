"""The interface of a model in memory, the same for all kinds."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.models.bits import BitsReport
from quantdrift.models.files.named import ModelSource
from quantdrift.models.inputs import Encoder
from quantdrift.models.layers import find_linears
from quantdrift.models.weights import runtime_of, weights_fingerprint
from quantdrift.scoring.similarity import Similarity


class LoadedModel:
    """A torch model in memory; a subclass has `module`, `source` and `notes`."""

    __slots__ = ()
    module: Any
    source: ModelSource
    notes: Any
    similarity: Any

    @property
    def modules(self) -> list[nn.Module]:
        """The outermost torch modules."""
        return [self.module]

    @property
    def fingerprint(self) -> str:
        """Digest of its weights."""
        return weights_fingerprint(self.modules)

    @property
    def runtime(self) -> dict[str, str]:
        """The libraries, device and dtype, which decide embeddings beside weights and inputs."""
        linears = find_linears(self.modules)
        # a graph that onnxruntime computes has buffers alone
        first = linears[0].parameter if linears else next(chain(self.module.parameters(), self.module.buffers()))
        return runtime_of(first)

    @property
    def by_batch(self) -> bool:
        """Whether the result for an input can depend on the other inputs of its batch."""
        return any(getattr(part, "by_batch", False) for module in self.modules for part in module.modules())

    def bits(self) -> BitsReport | None:
        """Bits per weight; None, as they are unknown for a model that the user has in memory."""
        return None

    def limit(self) -> tuple[Any, int] | None:
        """Return the tokenizer and the most tokens of a text that it reads; None if unknown."""
        return None

    def beside_weights(self) -> dict[str, str]:
        """Return by name all that decides its outputs beside the weights."""
        raise NotImplementedError

    def identify(self) -> dict[str, Any]:
        """Return the origin of the model for the record of a run, as JSON values."""
        return {"name": self.source.name, "canonical": self.source.canonical, "kind": self.source.kind}

    def describe(self) -> dict[str, Any]:
        """Return how it is quantized for the record of a run, as JSON values: only its notes are known."""
        return {"notes": list(self.notes)}


def check_vectors(model: object, what: str) -> None:
    """Refuse a model that makes several rows of each input, where `what` needs one vector per input."""
    if not getattr(model, "one_vector", True):
        raise UnsupportedError(f"{what} by one vector an input, and this model makes several rows of each")


class EmbeddingModel(LoadedModel, Encoder):
    """A model that embeds queries and documents.

    Attributes:
        similarity: the score that compares its embeddings.
        notes: sentences about the model for the output of a run.
        layers: names of its quantized layers; None if unknown.
        one_vector: whether it makes one vector of each input, not several rows.
    """

    one_vector: ClassVar[bool] = True

    __slots__ = ()
    similarity: Similarity
    layers: Sequence[str] | None

    @property
    def takes(self) -> frozenset[str]:
        """The kinds of inputs that it embeds: "text", "image"."""
        return frozenset({"text"})

    def prompt(self, role: str) -> str:
        """Return the text that it puts before every text of a role."""
        return ""
