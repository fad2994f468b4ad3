"""`quantdrift allocate`: choose which layers get more bits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.text import percent
from quantdrift.builtin.weights import CHOICE
from quantdrift.cli.measuring import planned
from quantdrift.cli.options import PLAN, OnCorpus, OnModel, argument, flag, option, prints
from quantdrift.scheme import FULL_BITS
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, table
from quantdrift.spec.grammar import Spec, calibrates, chooses, parse

if TYPE_CHECKING:
    from quantdrift.allocation.record import Allocation
    from quantdrift.data.retrieval import RetrievalDataset


@dataclass(frozen=True, kw_only=True)
class AllocateOptions(OnCorpus, OnModel):
    """The options of `quantdrift allocate`."""

    spec: str = argument(
        "SPEC: Model, average bits and criterion: minilm@W3.5+gap, or minilm@W3-gptq+gap+widths=2,3,4,8"
    )
    out: Path = option(
        "-o --out FILE: File to write; an earlier allocation there is replaced.", default=Path("allocation.json")
    )
    plan: bool = flag(PLAN)
    keep: list[str] | None = option(
        "PATTERN[=BITS]: Fix the bits of the layers whose names match, as '*.layer.0.*=8'; without =BITS they are not "
        "quantized. May be repeated."
    )


@prints("json")
def command(options: AllocateOptions) -> Output:
    """Measure how much the rounding of each layer moves the answers, and give more bits where it matters.

    The criterion gap takes 128 queries (at most a quarter of them) and the documents that rank first for them, and
    needs one forward and one backward pass; labels are not used. The chosen bits per layer are written to a file, which
    a spec can name, with any quantizer:

    quantdrift run minilm@allocation.json --data FOLDER

    quantdrift run minilm@allocation.json-gptq --data FOLDER

    Such a run leaves out the queries that the layers were measured on.

    More: docs/guides/repair.md
    """
    spec, keep = parse(options.spec), _kept(options.keep or ())
    if not chooses(spec.scheme):
        expected = f"expected a criterion that chooses them, e.g. {spec.model}@W3.5+gap"
        raise UnsupportedError(f"{spec}: the widths of its layers are fixed; {expected}")
    from quantdrift.allocation.record import Allocation, nameable
    from quantdrift.asking.ask import Ask
    from quantdrift.base.records import read_json
    from quantdrift.candidate.refusals import check_spec, refuse_deployment
    from quantdrift.data.retrieval import facts_of

    refuse_deployment(spec.scheme, "an allocation is of weights")

    dataset = options.dataset
    check_spec(spec)
    _ = spec.scheme.widths  # refused before a model is loaded
    if options.out.suffix != ".json" or not nameable(str(options.out)):
        raise QuantDriftError(
            f"--out {options.out}: expected FILE.json without spaces, '+' and '@', so that specs can name it"
        )
    Allocation.check_place(options.out)
    ask = Ask(pair=spec, data=facts_of(dataset), dataset=dataset)
    if options.plan:
        return planned(options.foretold(ask, measures=False))
    options.foretell(ask, measures=False)
    with options.stoppable(f"{options.out} is not finished"):
        allocation = _measured(spec, dataset, keep, options)
    allocation.write(options.out)
    of_choice = {*CHOICE, "act", "seed"} - ({"seed"} if calibrates(spec.scheme) else set())
    others = "".join(f"+{key}={value}" for key, value in spec.scheme.options if key not in of_choice)
    named = f"{spec.model}@{options.out}{'+query' if spec.scheme.query_only else ''}{others}"
    use = f"quantdrift run {shlex.quote(named)} {options.data_words}{options.model_words}"
    measured = f"measured on {len(allocation.input_ids)} queries of {allocation.dataset}"
    return Output(
        data={"path": str(options.out), "allocation": read_json(options.out)},
        title=f"{options.spec}: {allocation.criterion}, {measured if allocation.input_ids else 'without any input'}",
        grids=[_layers(allocation)],
        next=[f"\nallocation: {options.out}", *([f"use it: {use}"] if spec.scheme.activation_bits is None else [])],
    )


def _measured(spec: Spec, dataset: RetrievalDataset, keep: dict[str, int], options: AllocateOptions) -> Allocation:
    """Load the model, and choose the widths of its layers by the criterion of the spec."""
    from quantdrift.asking.opening import open_pair
    from quantdrift.measuring.flow import Flow
    from quantdrift.models.model import check_vectors
    from quantdrift.sensitivity.allocate import allocate_for, left_out

    settings, store, progress = options.settings, options.how["store"], options.progress
    opened = open_pair(spec, dataset, device=options.device, revision=options.revision, **settings.loading)
    check_vectors(opened.pair.encoder, f"{spec}: widths are chosen")
    left_out([layer.name for layer in opened.quantized.layers], spec.scheme, keep)  # refuses a wrong --keep early
    flow = Flow(pair=opened.pair, settings=settings, store=store, progress=progress)
    return allocate_for(flow, opened.quantized, opened.search, flow.reference(opened.search), keep=keep)[0]


def _kept(texts: Sequence[str]) -> dict[str, int]:
    """Pattern to width, from PATTERN=WIDTH; the width is 16 if there is none."""
    keep: dict[str, int] = {}
    for text in texts:
        pattern, _, width = text.rpartition("=") if "=" in text else (text, "", str(FULL_BITS))
        if not width.isdecimal():
            raise QuantDriftError(f"--keep {text}: expected PATTERN or PATTERN=BITS, e.g. '*.0.*=8'")
        keep[pattern] = int(width)
    return keep


def _layers(allocation: Allocation) -> Grid:
    """One row per layer, with its share of the loss over all layers."""
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
