"""How much of a flip rate is the runtime's own: the model at full precision, in other configurations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantdrift.base.errors import RunError
from quantdrift.checkpoints.named import resolve
from quantdrift.cli.studying import measured
from quantdrift.runs.folder import Run, read_run
from quantdrift.show.output import Output
from quantdrift.spec.grammar import is_endpoint, parse_scheme
from quantdrift.stages import STAGES
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import StudyKind
from quantdrift.study.plan import CellSettings, DataEntry, ModelEntry, Study
from quantdrift.study.results import Result

METRICS = ("flip@1", "gold_lost@10", "change.ndcg@10", "epsilon", "interchangeable")
_CONFIGURATIONS = {key: option.usual for key, option in STAGES["runtime"].options.items()}
"""Other than the usual: float32, batches of 32, texts filled up on the right, the attention that transformers takes."""


def schemes_of() -> list[str]:
    """Schemes of a model at full precision in other configurations, one setting at a time."""
    return [str(parse_scheme(f"fp+{name}={value}")) for name, values in _CONFIGURATIONS.items() for value in values]


def measured_schemes(
    model: str, schemes: Sequence[str], options: Any, out: Path, *, kind: StudyKind, **settings: Any
) -> Output:
    """Measure schemes of one model as a study, on the data and as the options of a command say."""
    folder = None if options.data is None else str(options.data.absolute())
    study = Study(
        models=[ModelEntry(model=model)],
        schemes=list(schemes),
        seeds=[0],
        data=[DataEntry(folder=folder, task=options.task, split=options.split, keep_own_ids=options.keep_own_ids)],
        settings=CellSettings(k=options.k, batch_size=options.batch_size, **settings),
    )
    return measured(study, out, options, kind=kind)


def run_on(path: Path, fingerprint: str, model: str) -> Run:
    """Read the run that --against names; refuse one of another model or on other data."""
    run = read_run(path)
    if not is_endpoint(model) and run.record["model"].get("canonical") not in {None, resolve(model).canonical}:
        raise RunError(f"expected --against with a run of {model}; that of {path} is of {run.record['model']['name']}")
    if run.record["data"].get("fingerprint") != fingerprint:
        raise RunError(
            f"expected --against with a run on these data; that of {path} is on other data or a part of them"
        )
    return run


def largest(flips: Mapping[str, Estimate]) -> str | None:
    """The configuration that changes most answers."""
    rates = {label: flip.value for label, flip in flips.items() if flip.value is not None}
    return max(rates, key=lambda label: rates[label], default=None)


def of_results(results: Sequence[Result]) -> list[tuple[str, dict[str, Estimate]]]:
    """The configuration and the metrics of every cell that is done."""
    return [
        (result.scheme.removeprefix("fp+").replace("+", ", "), result.metrics)
        for result in results
        if result.run is not None
    ]
