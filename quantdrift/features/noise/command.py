"""`quantdrift noise`: measure how many answers change by the runtime alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quantdrift.base.display import clean
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.paths import RUNS
from quantdrift.base.text import percent
from quantdrift.cli.measuring import slug
from quantdrift.cli.options import OnSchemes, argument, option, prints
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, metric_columns, table
from quantdrift.spec.grammar import is_endpoint, parse


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(OnSchemes):
    """The options of `quantdrift noise`."""

    model: str = argument("MODEL: The model, without a scheme")
    out: Path | None = option("FOLDER: Folder for the runs; by default quantdrift-runs/MODEL_on_DATA-DIGEST_noise.")


@prints("json", "markdown")
def command(options: NoiseOptions) -> Output:
    """Run a model at full precision with other runtime settings, and count the answers that change.

    The settings are number type, batch size, padding side, attention and threads, one at a time: each is a run of
    MODEL@fp+dtype=bf16 and the like against float32. A flip rate that is no higher than these says nothing about
    quantization. The same command resumes where it was stopped.

    For example: quantdrift noise minilm --data ./cranfield

    More: docs/guides/deployment.md
    """
    if is_endpoint(options.model):
        raise QuantDriftError(
            f"noise varies how a model runs here, and {options.model} runs elsewhere; see the noise floor of a run, or "
            "quantdrift canary save, for the effect of batches there"
        )
    dataset = options.dataset
    if "image" in dataset.kinds:
        raise UnsupportedError(f"noise takes queries and documents that are texts, and {dataset.name} has images")
    from quantdrift.candidate.refusals import check_pair
    from quantdrift.cli.studying import measured_schemes
    from quantdrift.features.noise.study import METRICS, SCHEMES
    from quantdrift.metrics import parse_metric
    from quantdrift.statistics.estimates import as_json
    from quantdrift.study.folder import open_study
    from quantdrift.study.results import results_of

    metrics = list(map(parse_metric, METRICS))
    path = options.out or RUNS / f"{slug(options.model)}_on_{slug(dataset.name)}-{dataset.fingerprint[:8]}_noise"
    check_pair(parse(f"{options.model}@{SCHEMES[0]}"), dataset)
    ended = measured_schemes(options.model, SCHEMES, options, path, kind="noise")
    if options.plan or ended.code:
        return ended
    done = [result for result in results_of(open_study(path), metrics)[0] if result.run is not None]
    ways = [(result.scheme.removeprefix("fp+").replace("+", ", "), result.metrics) for result in done]
    shown = [metric for metric in metrics if str(metric) != "epsilon"]  # in float32 too small for a table
    columns = [Column("run with", lambda way: way[0], kind="words"), *metric_columns(shown, lambda way: way[1])]
    return Output(
        data={
            "model": options.model,
            "path": str(path),
            "ways": [{"way": label, "metrics": as_json(estimates)} for label, estimates in ways],
        },
        title=f"{clean(options.model)} on {dataset.name}: float32, batches of {options.batch_size}, against others",
        grids=[table(columns, ways)],
        lines=_words({label: estimates["flip@1"].value for label, estimates in ways}),
        next=[f"\nas a page for a browser: quantdrift report {shlex.quote(str(path))}"],
    )


def _words(rates: Mapping[str, float | None]) -> list[str]:
    """Say how much is noise."""
    flips = {label: flip for label, flip in rates.items() if flip is not None}
    noise = {label: flip for label, flip in flips.items() if "padding" not in label}
    if not noise:
        return ["Nothing could be compared."]
    most = max(noise, key=lambda label: noise[label])
    lines = [
        f"Up to {percent(noise[most])} of the answers change by the runtime alone ({most}): a flip rate across such "
        "settings that is no higher says nothing about quantization."
    ]
    if (padded := max(flips.values())) > noise[most]:
        lines.append(
            f"Padding on the other side changes {percent(padded)}: this model counts positions from the left edge, "
            "padding included. That is not noise but another model: pad on the side that it was trained with."
        )
    return lines
