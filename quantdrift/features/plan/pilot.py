"""A run on some of the inputs, made to see how much differs and how long the rest takes."""

from __future__ import annotations

from pathlib import Path

from quantdrift.cli.options import Measuring
from quantdrift.data.labelled import Dataset
from quantdrift.engine.flow import NOISE_DEPTH, Flow
from quantdrift.engine.opening import open_pair
from quantdrift.engine.run import measured_run
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Spec


def run_pilot(spec: Spec, part: Dataset, options: Measuring, *, fingerprint: str, out: Path) -> Run:
    """Measure a part of the inputs, against all documents, and write the run, whose record says what one more takes.

    Per input that is a pass by either arm, and with the noise floor a third one and up to 10 documents.
    """
    means = {name: value for name, value in options.how.items() if name in {"settings", "store", "progress"}}
    settings = options.settings
    opened = open_pair(spec, part, device=options.device, revision=options.revision, dtype=settings.dtype)
    flow = Flow(pair=opened.pair, **means)
    sides = opened.reading.sides
    seconds = [flow.pace(side)[0] * float(side.work().mean()) for side in sides]
    pilot = {
        "seed": options.seed,
        "n": len(sides[0].ids),
        "seconds_per_input": (3 if settings.noise_floor else 2) * seconds[0],
        "seconds_per_item": seconds[-1] if settings.noise_floor and len(sides) > 1 else 0.0,
        "items_per_input": NOISE_DEPTH,
    }
    return measured_run(opened, out=out, cell=fingerprint, pilot=pilot, **means)
