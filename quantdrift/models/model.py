"""The interface of a model that is in memory, whatever kind it is of."""

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
    """A model of torch that is in memory; a subclass has `module`, its `source` and `notes`."""

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
        """Libraries, device and dtype, which decide embeddings beside weights and inputs."""
        linears = find_linears(self.modules)
        # a graph that onnxruntime computes has buffers alone
        first = linears[0].parameter if linears else next(chain(self.module.parameters(), self.module.buffers()))
        return runtime_of(first)

    @property
    def by_batch(self) -> bool:
        """Whether what it makes of an input can depend on what else is in its batch."""
        return any(getattr(part, "by_batch", False) for module in self.modules for part in module.modules())

    def bits(self) -> BitsReport | None:
        """Bits per weight, which are not known of a model that somebody has in memory."""
        return None

    def beside_weights(self) -> dict[str, str]:
        """Return what decides its outputs beside the weights, by name."""
        raise NotImplementedError

    def identify(self) -> dict[str, Any]:
        """Return what a run records of where it came from, as JSON values."""
        return {"name": self.source.name, "canonical": self.source.canonical, "kind": self.source.kind}

    def describe(self) -> dict[str, Any]:
        """Return what a run records of how it is quantized, as JSON values: nothing is known."""
        return {"notes": list(self.notes)}


def check_vectors(model: object, what: str) -> None:
    """Refuse a model whose outputs are several rows an input, where `what` is done by one vector each."""
    if not getattr(model, "one_vector", True):
        raise UnsupportedError(f"{what} by one vector an input, and this model makes several rows of each")


class EmbeddingModel(LoadedModel, Encoder):
    """A model that embeds queries and documents.

    Attributes:
        similarity: how its embeddings are compared.
        notes: what a run says of it, one sentence each.
        layers: names of its quantized layers; None where they are not known.
        one_vector: whether its outputs are a vector an input, and not several rows.
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
        """Return what it puts before every text of a role."""
        del role
        return ""
