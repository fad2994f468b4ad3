"""The first documents of a list, scored again with uncoded queries."""

from __future__ import annotations

from quantdrift.engine.scoring.deployed import WANTED
from quantdrift.engine.stages import VectorStage
from quantdrift.spec.grammar import Scheme


class Rescoring(VectorStage):
    """The second look of a candidate."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme)
        self.first = WANTED * int(scheme.option("rescore", ""))
