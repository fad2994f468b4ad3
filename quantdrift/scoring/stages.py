"""What a stage does that lies between embeddings and the documents that a search returns."""

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
        first: documents whose order is made anew with uncoded queries.
        takes: what it can be done to: "vectors", one an input; "token vectors"; "weights of terms".
    """

    first: int = 0
    takes: Collection[str] = ("vectors",)

    def __init__(self, scheme: Scheme) -> None:
        """Read what a scheme says of it."""
        self.scheme = scheme

    def vectors(self, vectors: Vectors) -> Vectors:
        """Embeddings [n, dim] as the model makes them, or fewer numbers of each; they are normalized after this."""
        return vectors

    def stored(self, stored: Stored, calibration: Vectors) -> Stored:
        """Queries and documents as they are kept; `calibration` are the reference's documents, float32 [n, dim]."""
        del calibration
        return stored

    def index(self, stored: Stored, similarity: Similarity) -> SearchIndex | None:
        """Return an index that is searched in place of all documents; None where there is none."""
        del stored, similarity
        return None

    def record(self) -> Mapping[str, Any]:
        """Describe the stage for "deployment" in run.json, beside what is known of every deployment."""
        return {}


def vector_stages(scheme: Scheme) -> tuple[VectorStage, ...]:
    """The stages between its embeddings and what is returned, in order; none for exact search."""
    return tuple(stage.make(scheme) for stage in STAGES.values() if stage.kind == "vectors" and stage.in_(scheme))
