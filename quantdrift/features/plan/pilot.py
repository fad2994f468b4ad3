"""A run on some of the inputs, made to see how much differs and how long the rest takes."""

from __future__ import annotations

from pathlib import Path

from quantdrift.base.progress import Progress
from quantdrift.data.labelled import Dataset, sampled
from quantdrift.engine.flow import NOISE_DEPTH, Flow
from quantdrift.engine.inputs import Settings
from quantdrift.engine.opening import open_pair
from quantdrift.engine.run import measured_run
from quantdrift.engine.store import EmbeddingStore
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Spec


def run_pilot(
    spec: Spec,
    dataset: Dataset,
    *,
    n: int,
    seed: int,
    fingerprint: str | None,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> Run:
    """Measure n inputs, against all documents, and write the run; its record says what one more input takes.

    Per input that is a pass by either arm, and with the noise floor a third one and up to 10 documents.
    """
    opened = open_pair(spec, sampled(dataset, n, seed), device=device, revision=revision, dtype=settings.dtype)
    flow = Flow(pair=opened.pair, settings=settings, store=store, progress=progress)
    sides = opened.reading.sides
    seconds = [flow.pace(side)[0] * float(side.work().mean()) for side in sides]
    pilot = {
        "seed": seed,
        "n": len(sides[0].ids),
        "seconds_per_input": (3 if settings.noise_floor else 2) * seconds[0],
        "seconds_per_item": seconds[-1] if settings.noise_floor and len(sides) > 1 else 0.0,
        "items_per_input": NOISE_DEPTH,
    }
    return measured_run(
        opened, out=out, settings=settings, store=store, progress=progress, cell=fingerprint, pilot=pilot
    )
