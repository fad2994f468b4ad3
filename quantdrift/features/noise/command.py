"""`quantdrift noise`: how much of a flip rate is the runtime's own?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.base.display import clean
from quantdrift.base.paths import RUNS
from quantdrift.base.progress import Silent, Terminal
from quantdrift.base.text import percent
from quantdrift.cli.measuring import slug
from quantdrift.cli.options import OnSchemes, argument, of_texts, option, prints
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import is_endpoint, parse

if TYPE_CHECKING:
    from quantdrift.runs.folder import Run
    from quantdrift.statistics.estimates import Estimate

    Ways = Sequence[tuple[str, dict[str, Estimate]]]


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(OnSchemes):
    """The options of `quantdrift noise`."""

    model: str = argument("MODEL: Model at full precision, without a scheme, or openai:URL#MODEL")
    against: Path | None = option(
        "RUN: A run of the model on the same data, whose flip rate is held against the noise."
    )
    out: Path | None = option("FOLDER: Where the runs lie; by default quantdrift-runs/MODEL_on_DATA-DIGEST_noise.")


@prints("json", "markdown")
def command(options: NoiseOptions) -> Output:
    """Run a model at full precision in other configurations, and see how many answers change without quantization.

    Number type, batch size, padding side, attention and threads, one at a time: each is a run of MODEL@fp+dtype=bf16
    and the like against float32. A flip rate below what the runtime does by itself says nothing about bits. The same
    command goes on where it was stopped.

    Of a server, the requests under way at a time and the texts in each are varied, and each text is sent beside itself,
    so that nothing is padded; every answer is asked for anew.

    For example: quantdrift noise minilm --data ./cranfield

    More: docs/guides/servers.md
    """
    dataset = of_texts(options.dataset, "noise")
    from quantdrift.features.noise.study import METRICS, measured_schemes, of_results, run_on, schemes_of
    from quantdrift.metrics import parse_metric
    from quantdrift.statistics.estimates import as_json
    from quantdrift.study.results import metrics_of, results_of

    against = None if options.against is None else run_on(options.against, dataset.fingerprint, options.model)
    metrics, path = list(map(parse_metric, METRICS)), None
    if is_endpoint(options.model):
        from quantdrift.features.noise.rerun import server_noise

        measured = server_noise(options.model, dataset, k=options.k, progress=Silent() if options.quiet else Terminal())
        ways = [(label, metrics_of(evidence, metrics)) for label, evidence in measured]
        settings = "one request at a time"
    else:
        from quantdrift.engine.refusals import check_pair
        from quantdrift.study.folder import open_study

        schemes = schemes_of()
        path = options.out or RUNS / f"{slug(options.model)}_on_{slug(dataset.name)}-{dataset.fingerprint[:8]}_noise"
        check_pair(parse(f"{options.model}@{schemes[0]}"), dataset)
        ended = measured_schemes(options.model, schemes, options, path, kind="noise")
        if options.plan or ended.code:
            return ended
        ways = of_results(results_of(open_study(path), metrics)[0])
        settings = f"float32, batches of {options.batch_size}"
    return Output(
        data={
            "model": options.model,
            "path": path and str(path),
            "ways": [{"way": label, "metrics": as_json(estimates)} for label, estimates in ways],
        },
        title=f"{clean(options.model)} on {dataset.name}: {settings}, against others",
        grids=[_grid(ways)],
        lines=_words(ways, against),
        next=[f"\nas a page for a browser: quantdrift report {shlex.quote(str(path))}"] if path else [],
    )


def _grid(ways: Ways) -> Grid:
    from quantdrift.metrics import parse_metric
    from quantdrift.metrics.numbers import cell, show

    with_ends = {"flip@1", "gold_lost@10", "change.ndcg@10"}
    names = list(ways[0][1]) if ways else []

    def shown(name: str, estimate: Estimate) -> str:
        if name == "epsilon" and estimate.value is not None:
            return f"{estimate.value:.1e}"  # of float32 it is far below what tables show
        return (cell if name in with_ends else show)(parse_metric(name), estimate)

    rows = [[label, *(shown(name, estimate) for name, estimate in metrics.items())] for label, metrics in ways]
    return Grid(head=["run with", *names], rows=rows, words={"run with"})


def _words(ways: Ways, run: Run | None) -> list[str]:
    """What the noise is, and a line on the flip rate of a run."""
    from quantdrift.features.noise.study import largest

    flips = {label: metrics["flip@1"] for label, metrics in ways}
    noise = {label: flip for label, flip in flips.items() if "padding" not in label}
    most = largest(noise)
    if most is None:
        return ["Nothing could be compared."]
    lines = []
    value = noise[most].value or 0.0
    if not value:
        lines.append("No other configuration changes an answer: a flip rate is not the runtime's.")
    else:
        lines.append(
            f"Up to {percent(value)} of the answers change by the runtime alone ({most}): a flip rate that was "
            "measured across such settings, and is no higher, says nothing about quantization."
        )
        if quiet := [label for label, flip in noise.items() if flip.value == 0]:
            lines.append(f"No answer changes with {', '.join(quiet)}.")
    shifted = largest({label: flip for label, flip in flips.items() if label not in noise})
    if shifted is not None and (flips[shifted].value or 0.0) > value:
        lines.append(
            f"Padding on the other side changes {percent(flips[shifted].value)}: this model counts positions from the "
            "left edge, padding included, so that is another model and no noise. Pad on the side that it was trained "
            "with."
        )
    if value:
        lines.append(
            "epsilon: the typical largest score error of an input; interchangeable: flips between answers that the "
            "reference tells apart by no more than its own noise."
        )
    return [*lines, *([] if run is None else [_held_against(run, noise)])]


def _held_against(run: Run, noise: Mapping[str, Estimate]) -> str:
    """One line on a run's flip rate."""
    from quantdrift.metrics import measure

    flip = measure(run.evidence(), ["flip@1"])["flip@1"].value
    if flip is None:
        return f"{run.record['spec']} has no flip rate to hold against it."
    above = [label for label, other in noise.items() if (other.value or 0.0) >= flip]
    than = f"no more than {', '.join(above)} does" if above else "more than any of these"
    return f"{run.record['spec']} changes {percent(flip)}: {than}."
