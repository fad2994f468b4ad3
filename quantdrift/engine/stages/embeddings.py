"""Stored embeddings: fewer dimensions, and a precision."""

from __future__ import annotations

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.scoring.precision import Stored, Vectors, at_precision
from quantdrift.engine.stages import VectorStage


class Embeddings(VectorStage):
    """The stored embeddings of a candidate."""

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
