"""The measurement of a pair: widths are chosen where a criterion does that, and then both arms are read."""

from quantdrift.base.progress import Progress
from quantdrift.candidate.pair import Pair
from quantdrift.measuring.flow import Flow, Measured, Reading
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.sensitivity.allocate import choose_widths


def measure(pair: Pair, reading: Reading, *, settings: Settings, store: EmbeddingStore, progress: Progress) -> Measured:
    """Measure what a candidate changes.

    Args:
        pair: its reference is in place, before and after.
        reading: the inputs, and what is made of the outputs.
        settings: how.
        store: where embeddings are kept, and layers that were calibrated.
        progress: where progress is shown.

    Raises:
        DataError: there are no inputs, or layers were measured on all of them.
        ScoreError: an output is not finite.
        RunError: no space to keep embeddings.
    """
    flow = Flow(pair=pair, settings=settings, store=store, progress=progress)
    ready, fingerprint = flow.ready(reading), pair.fingerprint
    reference = flow.reference(ready, fingerprint)
    with flow.timed("allocation", pair.needs_widths):
        choose_widths(flow, ready, reference)
    return flow.measure(ready, reference, fingerprint)
