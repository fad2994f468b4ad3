"""An approximate index, built over what is stored."""

from __future__ import annotations

from quantdrift.engine.scoring.indexes import Index, build
from quantdrift.engine.scoring.precision import Stored
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.stages import VectorStage


class ApproximateIndex(VectorStage):
    """The index of a candidate."""

    def index(self, stored: Stored, similarity: Similarity) -> Index:
        """The index that `+index=` names."""
        name, settings, seed = map(self.scheme.option, ("index", "search", "seed"))
        assert name is not None  # else the scheme has no such stage
        return build(name, stored, similarity=similarity, settings=settings, seed=None if seed is None else int(seed))
