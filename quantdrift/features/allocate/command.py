"""`quantdrift allocate`: choose which layers get more bits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.text import percent, with_interval
from quantdrift.builtin.weights import CHOICE
from quantdrift.cli.options import OnCorpus, OnModel, argument, option, prints
from quantdrift.scheme import FULL_BITS
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, records, table
from quantdrift.spec.grammar import calibrates, chooses, parse

if TYPE_CHECKING:
    from quantdrift.allocation.record import Allocation
    from quantdrift.features.allocate.jobs import Rival


@dataclass(frozen=True, kw_only=True)
class AllocateOptions(OnCorpus, OnModel):
    """The options of `quantdrift allocate`."""

    spec: str = argument(
        "SPEC: Model, average bits and criterion: minilm@W3.5+gap, or minilm@W3-gptq+gap+widths=2,3,4,8"
    )
    out: Path = option(
        "-o --out: File to write; an earlier allocation there is replaced.", default=Path("allocation.json")
    )
    keep: list[str] | None = option(
        "PATTERN[=BITS]: Fix the bits of layers whose name matches: '*.layer.0.*=8'; without =BITS they are not "
        "quantized at all. Can be repeated."
    )
    check: bool = option("Compare with other ways to spend the same bits, on other queries.", default=True)


@prints("json")
def command(options: AllocateOptions) -> Output:
    """Measure how much rounding each layer moves the answers, and give more bits where it matters.

    The criterion gap takes 128 queries (at most a quarter of them) and the documents that rank first for them, and
    needs one forward and one backward pass; labels are not used. The chosen bits per layer are written to a file,
    which a spec can name, with any quantizer:

    quantdrift run minilm@allocation.json --data FOLDER

    quantdrift run minilm@allocation.json-gptq --data FOLDER

    Such a run does not count the queries that were used to choose.

    More: docs/guides/repair.md
    """
    spec, keep = parse(options.spec), _kept(options.keep or ())
    if not chooses(spec.scheme):
        expected = f"expected a criterion that chooses them, e.g. {spec.model}@W3.5+gap"
        raise UnsupportedError(f"{spec}: the widths of its layers are given; {expected}")
    from quantdrift.allocation.record import Allocation, nameable
    from quantdrift.base.records import read_json
    from quantdrift.candidate.refusals import check_spec, refuse_deployment

    refuse_deployment(spec.scheme, "an allocation is of weights")

    dataset = options.dataset
    check_spec(spec)
    _ = spec.scheme.widths  # refused before a model is loaded
    if options.out.suffix != ".json" or not nameable(str(options.out)):
        raise QuantDriftError(f"--out {options.out}: specs name it; expected FILE.json without spaces, '+' and '@'")
    Allocation.check_place(options.out)
    from quantdrift.features.allocate.jobs import allocate_spec

    with options.stoppable(f"{options.out} is not finished"):
        allocation, rivals = allocate_spec(
            spec, dataset, out=options.out, **options.how, keep=keep, check=options.check
        )
    left = {*CHOICE, "act", "seed"} - ({"seed"} if calibrates(spec.scheme) else set())
    under = "".join(f"+{key}={value}" for key, value in spec.scheme.options if key not in left)
    beside = ("+query" if spec.scheme.query_only else "") + under
    named = f"{spec.model}@{options.out}{beside}"
    use = f"quantdrift run {shlex.quote(named)} {options.data_words}{options.model_words}"
    measured = f"measured on {len(allocation.input_ids)} queries of {allocation.dataset}"
    held_out = None
    if rivals:
        held_out = {"n_queries": rivals[0].flips.n, "rivals": records(_RIVALS, rivals)}
    return Output(
        data={"path": str(options.out), "allocation": read_json(options.out), "held_out": held_out},
        title=f"{options.spec}: {allocation.criterion}, {measured if allocation.input_ids else 'without any input'}",
        grids=[_layers(allocation), *([_rivals(rivals)] if rivals else [])],
        next=[f"\nallocation: {options.out}", *([f"use it: {use}"] if spec.scheme.activation_bits is None else [])],
    )


def _kept(texts: Sequence[str]) -> dict[str, int]:
    """Pattern to width, of PATTERN=WIDTH; the width is 16 if there is none."""
    keep: dict[str, int] = {}
    for text in texts:
        pattern, _, width = text.rpartition("=") if "=" in text else (text, "", str(FULL_BITS))
        if not width.isdecimal():
            raise QuantDriftError(f"--keep {text}: expected PATTERN or PATTERN=BITS, e.g. '*.0.*=8'")
        keep[pattern] = int(width)
    return keep


def _layers(allocation: Allocation) -> Grid:
    """Every layer with its loss; the shares add up to one over the layers."""
    layers, widths = allocation.layers, allocation.widths
    free = [layer for layer in layers if layer.loss is not None]
    total = sum(layer.loss[0] for layer in free if layer.loss) or 1.0
    columns = [
        Column("layer", "name", kind="words"),
        Column("weights", "n_weights", "{:,}".format),
        Column(
            f"share of loss, W{widths[0]}", "loss", lambda loss: "kept" if loss is None else percent(loss[0] / total)
        ),
        Column("bits", "width"),
    ]
    counts = ", ".join(f"{sum(layer.width == width for layer in free)} at {width} bits" for width in widths)
    lines = [
        f"{len(layers)} linear layers, {counts}: {allocation.bits_per_weight:.3f} bits per weight of at most "
        f"{allocation.budget:g}; {allocation.all_parameters_bits:.2f} bits over all parameters, scales and token "
        "embeddings included"
    ]
    return table(columns, layers, lines=lines)


_RIVALS = (
    Column("bits from", "name", kind="words"),
    Column("bits", "bits_per_weight", "{:.2f}".format),
    Column("flip@1", "flips", with_interval, key="flip@1"),
    Column(
        "more than this allocation", "difference", lambda step: "" if step is None else with_interval(step, sign="+")
    ),
)


def _rivals(rivals: Sequence[Rival]) -> Grid:
    # among those that spend no more
    fair = [rival for rival in rivals if rival.bits_per_weight <= rivals[0].bits_per_weight]
    ours, best = rivals[0], min(fair, key=lambda rival: rival.flips.value or 0.0)
    verdict = f"{ours.name} changes fewest answers for as many bits"
    if (ours.flips.value or 0.0) > (best.flips.value or 0.0):
        verdict = f"{ours.name} did not win against {best.name}; use another criterion, or measure on more queries"
    lines = [f"{verdict}. A difference whose interval reaches 0 could be chance."]
    title = f"On {ours.flips.n} other queries, rounded to nearest (95 % intervals)"
    return table(_RIVALS, rivals, title=title, lines=lines)
