"""`quantdrift predict`: what every width would change, before anything is quantized."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantdrift.cli.options import OnQueries, argument, data_words, option, prints
from quantdrift.cli.output import Grid, Shown, with_interval
from quantdrift.errors import QuantDriftError, SpecError
from quantdrift.spec import parse

if TYPE_CHECKING:
    from quantdrift.engine.sensitivity.jobs import Predicted
    from quantdrift.statistics.estimates import Estimate

_LARGE = 3
"""At this many bits and below, the change of the weights is too large for first order."""
_FEW = 32
"""Calibration queries below which a rate is known to some twenty points only."""
_NOTES = (
    "other first answer: share of queries predicted to change, for rounding to nearest (in brackets 95 % intervals); "
    "'by gap': widths chosen on the other half of the queries.",
    "random signs: the same, if layers moved the gaps in random directions; a rough guide for other quantizers.",
    "*: a best choice, as no other line has both fewer bits and fewer flips (random signs). Only the documents ranked "
    "first are watched; flips to others are missed.",
)


@dataclass(frozen=True, kw_only=True)
class PredictOptions(OnQueries):
    """The options of `quantdrift predict`."""

    model: str = argument(
        "MODEL: Model at full precision, without a scheme: minilm, BAAI/bge-small-en-v1.5, ./my-model"
    )
    widths: str = option("N,N,...: Which numbers of bits per weight a layer may get.", default="2,3,4,5,6,7,8")
    group: str = option("N: How many input weights share a scale, or channel.", default="128")

    @property
    def group_size(self) -> int | None:
        """Input weights that share a scale; None for a whole output channel."""
        if self.group != "channel" and not re.fullmatch("[1-9][0-9]{0,8}", self.group):
            raise QuantDriftError(
                f"--group {self.group}: expected the number of input weights that share a scale, e.g. 128, or channel"
            )
        return None if self.group == "channel" else int(self.group)


@prints("json")
def command(options: PredictOptions) -> Shown:
    """Estimate which share of first answers each width would change, before quantizing anything.

    One forward and one backward pass over 128 queries (at most a quarter of them) estimates how far each layer at
    each width would move the gap between the first two answers. From that follow the flip rates of all uniform widths
    and of all allocations between them. Labels are not used.

    It is a first-order estimate for rounding to nearest, and gets worse at few bits. MiniLM on Python's docstrings:
    18 % predicted (25 % with random signs) and 27 % measured at W4; 52 % (47 %) and 48 % at W3. So measure what looks
    good: quantdrift run MODEL@W4 --data FOLDER
    """
    try:
        model = parse(options.model).model
    except SpecError:
        pass
    else:
        raise QuantDriftError(
            f"expected a model without a scheme, got {options.model}: every width is predicted at once; use "
            f"quantdrift predict {model}"
        )
    if not re.fullmatch("[2-8](,[2-8])+", options.widths) or len(set(options.widths.split(","))) == 1:
        raise QuantDriftError(
            f"--widths {options.widths}: expected at least two whole numbers from 2 to 8 with commas between, e.g. "
            "2,3,4,8"
        )
    group_size = options.group_size
    from quantdrift.models.checkpoint import full_precision

    dataset = options.dataset
    full_precision(options.model)
    from quantdrift.engine.sensitivity.jobs import predict_model

    with options.stoppable("nothing was printed yet"):
        found = predict_model(
            options.model,
            dataset,
            widths=tuple(sorted({int(width) for width in options.widths.split(",")})),
            group_size=group_size,
            **options.how,
        )
    n, by = len(found.input_ids), "per output channel" if group_size is None else f"in groups of {group_size}"
    scales = "" if group_size is None else f" (scales add {16 / group_size:.3f} per weight)"
    return Shown(
        data={
            "model": options.model,
            "data": dataset.name,
            "group_size": group_size,
            "input_ids": list(found.input_ids),
            "contenders": found.n_contenders,
            "median_gap": found.median_gap,
            "curve": [
                {
                    "budget": point.budget,
                    "allocated": point.allocated,
                    "on_front": point.on_front,
                    "bits_per_weight": point.prediction.bits_per_weight,
                    "flip@1": point.prediction.flips.to_json(),
                    "random_signs": point.prediction.chance.to_json(),
                    "median_shift": point.prediction.shift.to_json(),
                }
                for point in found.points
            ],
        },
        title=f"{options.model} rounded to nearest {by}: predicted on {n} queries of {dataset.name}, "
        f"{found.n_contenders} documents behind each first one; nothing was quantized",
        about=[]
        if n >= _FEW
        else [f"note: {n} queries are too few for a rate; a quarter of those given is used, up to 128"],
        grids=[_curve(found)],
        lines=[
            f"median gap to the runner-up {found.median_gap:.4f}; {found.n_layers} linear layers, bits of codes "
            f"alone{scales}",
            *_NOTES,
        ],
        next=list(_next(found, options)),
    )


def _curve(found: Predicted) -> Grid:
    def rate(estimate: Estimate) -> str:
        if len(found.input_ids) >= _FEW or estimate.low is None or estimate.high is None:
            return with_interval(estimate)
        return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"  # too few queries for a rate

    rows = []
    for point in found.points:
        shift = point.prediction.shift.value
        rows.append(
            [
                f"at most {point.budget:g}, by gap" if point.allocated else f"W{point.budget:g}",
                f"{point.prediction.bits_per_weight:.2f}",
                rate(point.prediction.flips),
                rate(point.prediction.chance),
                "-" if shift is None else f"{shift:.3g}",
                "*" if point.on_front else "",
            ]
        )
    return Grid(head=["widths", "bits", "other first answer", "random signs", "median shift", "best"], rows=rows)


def _next(found: Predicted, options: PredictOptions) -> Iterator[str]:
    if found.points[0].budget <= _LARGE:
        yield (
            f"note: at {_LARGE} bits and below the change is too large for a first-order estimate: rates can be off "
            "by ten points, either way"
        )
    fitting = [point for point in found.points if point.on_front and point.allocated]
    if fitting:
        nearest = min(fitting, key=lambda point: abs(point.budget - 3.5))
        group = {"channel": "-channel", "128": ""}.get(options.group, f"-g{options.group}")
        widths = ",".join(sorted(set(options.widths.split(","))))
        spec = shlex.quote(f"{options.model}@W{nearest.budget:g}{group}+gap+widths={widths}")
        yield f"\nmeasure a point: quantdrift run {spec} {data_words(options.data, options.task)}"
