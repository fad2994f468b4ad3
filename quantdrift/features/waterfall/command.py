"""`quantdrift waterfall`: measure which stage of a deployment changes how many answers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.cli.options import DTYPE, OnSchemes, argument, option, prints
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import Spec, dtype_named, parse, stages_of

if TYPE_CHECKING:
    from quantdrift.statistics.estimates import Estimate
    from quantdrift.study.shares import Waterfall


@dataclass(frozen=True, kw_only=True)
class WaterfallOptions(OnSchemes):
    """The options of `quantdrift waterfall`."""

    spec: str = argument("SPEC: The deployment, MODEL@SCHEME of two stages or more: minilm@W4+emb=int8+index=HNSW32")
    out: Path | None = option("FOLDER: Folder for the runs; by default quantdrift-runs/SPEC_on_DATA-DIGEST_waterfall.")
    noise_floor: bool = option("Also run the reference a second time, once for all combinations.", default=True)
    dtype: str = option(DTYPE, default="float32")


@prints("json", "markdown")
def command(options: WaterfallOptions) -> Output:
    """Measure how many answers the weights, activations, runtime, stored embeddings and index change each.

    Every combination of the stages of SPEC is measured. Combinations with the same weights, activations and runtime
    share their embeddings, so four stages take 15 runs and four passes over the data. The share of a stage is its
    Shapley value: the shares add up to the change by the whole deployment. The same command resumes where it was
    stopped.

    For example: quantdrift waterfall minilm@W4+emb=int8+index=IVF64,PQ16 --data ./cranfield

    More: docs/guides/deployment.md
    """
    from quantdrift.study.folder import open_study
    from quantdrift.study.shares import in_words, judged_whole, waterfalls_of

    spec, dataset = parse(options.spec), options.dataset
    out, ended = measured_stages(spec, dataset, options, options.out)
    if options.plan or ended.code:
        return ended
    study = open_study(out)
    waterfalls, whole = waterfalls_of(study), study.run(study.cells[-1])
    assert whole is not None  # all are measured
    outcome = judged_whole(whole.record, waterfalls[0])
    return Output(
        data={"spec": str(spec), "path": str(out), "waterfalls": [waterfall.to_json() for waterfall in waterfalls]},
        title=f"{spec} on {dataset.name}: {len(study.cells)} combinations of {len(stages_of(spec.scheme))} stages",
        grids=list(map(_grid, waterfalls)),
        lines=[
            *in_words(waterfalls, named=str(spec.scheme)),
            f"Verdict: {outcome.told}",
            "In brackets 95 % intervals, by resampling inputs.",
        ],
        next=[
            *([f"\nto try first: {outcome.command}"] if outcome.command else []),
            f"\nruns of all combinations: {out}",
            f"these as a page for a browser: quantdrift report {shlex.quote(str(out))}",
        ],
    )


def measured_stages(spec: Spec, dataset: Any, options: Any, out: Path | None = None) -> tuple[Path, Output]:
    """Measure every combination of the stages of a spec; return their folder, and what there is to print."""
    from quantdrift.candidate.refusals import check_pair
    from quantdrift.cli.measuring import default_place
    from quantdrift.cli.studying import measured_schemes
    from quantdrift.study.shares import combinations_of

    schemes = combinations_of(spec.scheme)
    check_pair(spec, dataset)
    place = out or default_place(spec, dataset, f"-{dataset.fingerprint[:8]}_waterfall")
    settings: dict[str, Any] = {"noise_floor": options.noise_floor, "dtype": dtype_named(options.dtype)}
    return place, measured_schemes(spec.model, [*map(str, schemes)], options, place, kind="waterfall", **settings)


def _grid(waterfall: Waterfall) -> Grid:
    """The shares of one metric as a table."""
    rate = waterfall.metric.unit == "rate"

    def shown(estimate: Estimate) -> str:
        if estimate.value is None:
            return "-"
        factor, digits = (100, 1) if rate else (1, 4)
        value, low, high = (factor * (end or 0.0) for end in (estimate.value, estimate.low, estimate.high))
        return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"

    rows = [[stage.name, *map(shown, (stage.alone, stage.so_far, stage.share))] for stage in waterfall.stages]
    rows.append(["interaction", "", "", shown(waterfall.interaction)])
    title = f"{waterfall.metric}{', in points' if rate else ''}, {waterfall.n:,} inputs"
    return Grid(title=title, head=["stage", "alone", "with all before it", "share"], rows=rows)
