"""What lies between embeddings and what a search returns: stored embeddings, and rescoring."""

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.scoring.indexes import WANTED
from quantdrift.engine.scoring.precision import Stored, Vectors, at_precision
from quantdrift.engine.stages import VectorStage
from quantdrift.scheme import Scheme


class Embeddings(VectorStage):
    """The stored embeddings of a candidate: fewer dimensions, and a precision."""

    takes = ("vectors", "token vectors", "weights of terms")

    def vectors(self, vectors: Vectors) -> Vectors:
        """The leading dimensions."""
        if (dim := self.scheme.option("dim")) is None:
            return vectors
        if int(dim) > (width := int(vectors.shape[1])):
            raise UnsupportedError(f"+dim={dim} keeps more dimensions than there are; expected at most {width}")
        return vectors[:, : int(dim)]

    def stored(self, stored: Stored, calibration: Vectors) -> Stored:
        """At a precision; bytes divide the range that each dimension has in the reference's documents."""
        precision = self.scheme.option("emb")
        return stored if precision is None else at_precision(stored, precision, calibration)


class Rescoring(VectorStage):
    """The first documents of a list, scored again with uncoded queries."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme)
        self.first = WANTED * int(scheme.option("rescore", ""))
