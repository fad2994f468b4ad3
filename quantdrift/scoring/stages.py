"""The interface of stages between embeddings and the documents that a search returns."""

from collections.abc import Collection, Mapping
from typing import Any

from quantdrift.kinds.stage import STAGES
from quantdrift.scheme import Scheme
from quantdrift.scoring.indexes import SearchIndex
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stored import Stored, Vectors


class VectorStage:
    """A stage between embeddings and the documents that a search returns, for one candidate.

    Attributes:
        first: number of documents to rescore with uncoded queries.
        takes: outputs that it can be applied to: "vectors" (one per input), "token vectors" or "weights of terms".
    """

    first: int = 0
    takes: Collection[str] = ("vectors",)

    def __init__(self, scheme: Scheme) -> None:
        """Read the options of the stage from a scheme."""
        self.scheme = scheme

    def vectors(self, vectors: Vectors) -> Vectors:
        """Return embeddings [n, dim] of the model, or fewer dimensions of them; they are normalized afterwards."""
        return vectors

    def stored(self, stored: Stored, calibration: Vectors) -> Stored:
        """Return queries and documents as stored; `calibration` are the reference's documents, float32 [n, dim]."""
        return stored

    def index(self, stored: Stored, similarity: Similarity) -> SearchIndex | None:
        """Return an index to search in place of all documents; None without one."""
        return None

    def record(self) -> Mapping[str, Any]:
        """Return entries of the stage for "deployment" in run.json."""
        return {}


def vector_stages(scheme: Scheme) -> tuple[VectorStage, ...]:
    """Make the stages of a scheme between embeddings and results, in order; none for exact search in float32."""
    return tuple(stage.make(scheme) for stage in STAGES.values() if stage.kind == "vectors" and stage.in_(scheme))
