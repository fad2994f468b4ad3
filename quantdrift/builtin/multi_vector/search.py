"""A search by outputs of several rows an input."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.multi_vector.kept import check_stored, score_kept
from quantdrift.builtin.multi_vector.scoring import Product
from quantdrift.evidence.record import Noise
from quantdrift.measuring.flow import NOISE_DEPTH, Arms, Flow, noise_of_scores
from quantdrift.measuring.readings import Both, Search
from quantdrift.models.inputs import Rows
from quantdrift.scoring.state import ScoreState


def row_search(search: Search, product: Product) -> "RowSearch":
    """Turn a search by one vector an input into one by rows."""
    return RowSearch(**{part.name: getattr(search, part.name) for part in fields(search)}, product=product)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSearch(Search):
    """A search by outputs of several rows an input: token vectors, or weights of terms.

    Attributes:
        product: the product that scores rows.
    """

    product: Product

    @property
    def of(self) -> str:
        """Meaning of the rows, as stages name it."""
        return self.product.of

    def ready(self, flow: Flow) -> Self:
        """Refuse options for one vector an input."""
        for stage in flow.pair.vector_stages:
            check_stored(stage.scheme, self.product)
        if flow.pair.needs_widths:
            raise UnsupportedError(
                "the criterion of this scheme measures how layers move the gap of one vector an input, and this "
                f"model compares by {self.product.name} of several; expected one width for all layers, such as W4"
            )
        # not super(): a dataclass with slots is another class than this one
        ready = Search.ready(self, flow)
        return replace(ready, record={**ready.record, "similarity": self.product.name})

    def scored(self, flow: Flow, queries: Both, documents: Both, excluded: Rows | None) -> ScoreState:
        """Score both arms; stages change how the candidate's documents are stored and multiplied."""
        how: Any = {"k": flow.settings.k, "excluded": excluded}
        device = flow.pair.device if flow.pair.device.type == "cuda" else "cpu"
        with flow.stage("scoring", "scoring both arms", len(documents[0])) as tell:
            return score_kept(
                flow.pair.vector_stages, self.product, queries, documents, **how, device=device, progress=tell
            )

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Compare the first of the contenders in two passes."""
        contenders, wanted = state.reference_top()[0][rows, :depth], self.rerun(state, rows, depth)
        scores = np.zeros((2, *contenders.shape))
        for number, (row, positions) in enumerate(zip(rows.tolist(), contenders, strict=True)):
            there = positions >= 0
            places = np.searchsorted(wanted[-1], positions[there])
            scores[0, number, there] = self.product.exact(once[0][row], once[-1][positions[there]])
            query = again[0][int(np.searchsorted(wanted[0], row))]
            scores[1, number, there] = self.product.exact(query, again[-1][places])
        return noise_of_scores(scores[0], scores[1], contenders)
