"""The first documents of a list, scored again."""

from quantdrift.scheme import Scheme
from quantdrift.scoring.indexes import DEFAULT_LIMIT
from quantdrift.scoring.stages import VectorStage


class Rescoring(VectorStage):
    """The first documents of a list, scored again with uncoded queries."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme)
        self.first = DEFAULT_LIMIT * int(scheme.option("rescore", ""))
