"""The approximate index of a candidate, built by the engine that its scheme names."""

from quantdrift.base.extras import extras_named
from quantdrift.builtin.index.engine import Order, engine_of
from quantdrift.scoring.indexes import SearchIndex
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import VectorStage
from quantdrift.scoring.stored import Stored


class ApproximateIndex(VectorStage):
    """The index over stored vectors, built in one thread if the engine allows that."""

    def index(self, stored: Stored, similarity: Similarity) -> SearchIndex:
        """Build the index that `+index=` names."""
        name, search, seed = (self.scheme.option(key) for key in ("index", "search", "seed"))
        assert name is not None  # the stage is there because of it
        engine = engine_of(name)
        with extras_named(needed_for=f"+index={name}", packages=engine.packages):
            return engine.build(
                Order(
                    name=name,
                    search=search,
                    seed=None if seed is None else int(seed),
                    documents=stored.documents.numpy(),
                    similarity=str(similarity),
                    precision=stored.precision,
                    **engine.parts(name, search),
                )
            )
