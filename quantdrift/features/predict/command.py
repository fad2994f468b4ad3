"""`quantdrift allocate --predict`: what every width would change, before anything is quantized."""

import shlex
from dataclasses import dataclass, replace

from quantdrift.allocation.curve import Point
from quantdrift.base.text import with_interval
from quantdrift.checkpoints.checkpoint import full_precision
from quantdrift.cli.options import OnCorpus, OnModel, argument, option, prints
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, records, table
from quantdrift.spec.grammar import Spec, parse_scheme
from quantdrift.statistics.estimates import Estimate

_FEW = 32
"""Calibration queries below which a rate is known to some twenty points only, and its interval alone is shown."""
_NOTES = (
    "top-1 changes: share of queries predicted to change, for rounding to nearest (in brackets 95 % intervals, "
    "over the queries alone: the prediction is of first order, and errs more the fewer the bits); "
    "'by gap': widths chosen on the other half of the queries.",
    "random signs: the same, if layers moved the gaps in random directions; a rough guide for other quantizers.",
    "*: a best choice, as no other line has both fewer bits and fewer flips (random signs). Only the documents ranked "
    "first are watched; flips to others are missed.",
)


@dataclass(frozen=True, kw_only=True)
class PredictOptions(OnCorpus, OnModel):
    """The options of `quantdrift allocate --predict`."""

    model: str = argument(
        "MODEL: Model at full precision, without a scheme: minilm, BAAI/bge-small-en-v1.5, ./my-model"
    )
    widths: str = option("N,N,...: Which numbers of bits per weight a layer may get.", default="2,3,4,5,6,7,8")
    group: str = option("N: How many input weights share a scale, or channel.", default="128")


@prints("json")
def command(options: PredictOptions) -> Output:
    """Estimate which share of first answers each width would change, before quantizing anything.

    One forward and one backward pass over 128 queries (at most a quarter of them) estimates how far each layer at
    each width would move the gap between the first two answers. From that follow the flip rates of all uniform widths
    and of all allocations between them. Labels are not used.

    It is a first-order estimate for rounding to nearest, and gets worse at few bits. MiniLM on Python's docstrings:
    18 % predicted (25 % with random signs) and 27 % measured at W4; 52 % (47 %) and 48 % at W3. So measure what looks
    good: quantdrift run MODEL@W4 --data FOLDER

    For example: quantdrift allocate --predict minilm --task PythonDocsRetrieval

    More: docs/guides/repair.md
    """
    group = options.group if options.group == "channel" else f"g{options.group}"
    scheme = parse_scheme(f"W{options.widths[:1]}-{group}+gap+widths={options.widths}")
    group_size, _ = scheme.group_size, scheme.widths  # two of them at least, or it is refused

    dataset = options.dataset
    full_precision(options.model)
    from quantdrift.engine.sensitivity.jobs import predict_model

    with options.stoppable("nothing was printed yet"):
        predicted = predict_model(Spec(model=options.model, scheme=scheme), dataset, **options.how)
    on_front = [point.budget for point in predicted.points if point.on_front]
    spec = f"{options.model}@{replace(scheme, weight_bits=min(on_front, key=lambda bits: abs(bits - 3.5)))}"
    n, by = len(predicted.input_ids), "per output channel" if group_size is None else f"in groups of {group_size}"
    scales = "" if group_size is None else f" (scales add {16 / group_size:.3f} per weight)"
    columns = _columns(n)
    return Output(
        data={
            "model": options.model,
            "data": dataset.name,
            "group_size": group_size,
            "input_ids": list(predicted.input_ids),
            "contenders": predicted.n_contenders,
            "median_gap": predicted.median_gap,
            "curve": records(columns, predicted.points),
        },
        title=f"{options.model} rounded to nearest {by}: predicted on {n} queries of {dataset.name}, "
        f"{predicted.n_contenders} documents behind each first one; nothing was quantized",
        grids=[table(columns, predicted.points)],
        lines=[
            f"median gap to the runner-up {predicted.median_gap:.4f}; {predicted.n_layers} linear layers, bits of "
            f"codes alone{scales}",
            *_NOTES,
        ],
        next=[f"\nmeasure a point: quantdrift run {shlex.quote(spec)} {options.data_words}"],
    )


def _columns(n: int) -> list[Column]:
    """The columns of a curve that was predicted on so many queries."""

    def rate(estimate: Estimate) -> str:
        if n >= _FEW or estimate.low is None or estimate.high is None:
            return with_interval(estimate)
        return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"

    def widths(point: Point) -> str:
        return f"at most {point.budget:g}, by gap" if point.allocated else f"W{point.budget:g}"

    return [
        Column("widths", widths, key=""),
        *(Column("", name) for name in ("budget", "allocated", "on_front")),
        Column("bits", "bits_per_weight", "{:.2f}".format),
        Column("top-1 changes", "flips", rate, key="flip@1"),
        Column("random signs", "chance", rate, key="random_signs"),
        Column("median shift", "shift", _shift, key="median_shift"),
        Column("best", "on_front", {True: "*", False: ""}.__getitem__, key=""),
    ]


def _shift(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{estimate.value:.3g}"
