"""What `quantdrift gate` is asked for, and the run that it judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantdrift.errors import QuantDriftError, RunError
from quantdrift.finished.diff import diff_runs
from quantdrift.finished.readers import read_finished, read_qrels
from quantdrift.gate.rules import GateConfig
from quantdrift.gate.target import Target, target_of_diff, target_of_run
from quantdrift.runs import Run, find_runs, read_run

__all__ = ["GateOptions", "Measure", "named_target", "target_of"]

Measure = Callable[[str, Path | None, str | None], Run]
"""Runs a spec on a folder or on a task of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What is asked for; None and empty where it is left to the configuration.

    Attributes:
        target: spec or run folder; of two finished runs the reference.
        candidate: the other one of two finished runs.
        data: folder of the data, for a spec.
        task: name of a task, for a spec.
        qrels: file of relevance labels, for two finished runs.
        common: whether inputs that only one of two finished runs has are left out.
        complete: whether their lists hold every item that was scored.
        parts: names of their parts; all if empty.
        baseline: the committed file.
        rules: what is asked.
        slices: NAME=PATTERN.
        alpha: level of the tests.
        update: whether the baseline is written.
        accept_underpowered: whether too few inputs end in success.
        reports: files to write.
        n_worst: how many changed inputs are listed.
        config: file with the settings; None to look for it.
        measuring: names of the options given that say how a spec is measured.
        json_output: print one JSON object.
        markdown: print Markdown.
    """

    target: str | None
    candidate: Path | None
    data: Path | None
    task: str | None
    qrels: Path | None
    common: bool
    complete: bool
    parts: Sequence[str]
    baseline: Path | None
    rules: Sequence[str]
    slices: Sequence[str]
    alpha: float | None
    update: bool
    accept_underpowered: bool
    reports: Sequence[Path]
    n_worst: int
    config: Path | None
    measuring: Sequence[str]
    json_output: bool
    markdown: bool


def target_of(options: GateOptions, config: GateConfig, measure: Measure) -> Target:
    """The run, measured if it is a spec.

    Args:
        options: what is asked for.
        config: what stands in a file.
        measure: runs a spec.

    Raises:
        QuantDriftError: there is no such run, it cannot be measured, or options do not fit it.
    """
    named = named_target(options, config)
    if options.candidate is not None:
        return _of_two(Path(named), options.candidate, options)
    if Path(named).exists():
        run = _one_run(Path(named))
        _refuse_unused(options, "a finished run", data=True)
        return target_of_run(run)
    if "@" not in named and " vs " not in named:
        raise QuantDriftError(
            f"{named!r} is neither a run folder that exists nor a spec; expected MODEL@SCHEME, "
            "such as minilm@W4-rtn, a folder that quantdrift run wrote, or two finished runs"
        )
    _refuse_unused(options, "a spec", data=False)
    given = options.data is not None or options.task is not None
    data, task = (options.data, options.task) if given else (config.data, config.task)
    return target_of_run(measure(named, data, task))


def named_target(options: GateOptions, config: GateConfig) -> str:
    """What is to be judged, as it was written.

    Args:
        options: what is asked for.
        config: what stands in a file.

    Raises:
        QuantDriftError: neither names it.
    """
    named = options.target or config.target
    if named is None:
        raise QuantDriftError(
            "expected what to judge: a spec such as minilm@W4-rtn with --data FOLDER, a run "
            "folder, or two finished runs; or target = ... in pyproject.toml, under "
            "[tool.quantdrift.gate]"
        )
    return named


def _of_two(a: Path, b: Path, options: GateOptions) -> Target:
    if options.data is not None or options.task is not None:
        raise QuantDriftError("two finished runs take no --data or --task; labels go to --qrels")
    if options.measuring:
        given = ", ".join(options.measuring)
        raise QuantDriftError(f"{given} does not apply to two finished runs; leave it out")
    labels, _ = (None, ()) if options.qrels is None else read_qrels(options.qrels)
    return target_of_diff(
        diff_runs(
            read_finished(a),
            read_finished(b),
            qrels=labels,
            common=options.common,
            complete=options.complete,
            only=options.parts,
        )
    )


def _refuse_unused(options: GateOptions, what: str, *, data: bool) -> None:
    unused = {
        "--data": data and options.data is not None,
        "--task": data and options.task is not None,
        "--qrels": options.qrels is not None,
        "--common": options.common,
        "--complete": options.complete,
        "--part": bool(options.parts),
    }
    given = [name for name, used in unused.items() if used]
    given += options.measuring if data else ()
    if given:
        raise QuantDriftError(f"{', '.join(given)} does not apply to {what}; leave it out")


def _one_run(path: Path) -> Run:
    if (path / "run.json").is_file() or path.is_file():
        return read_run(path)
    if (path / "config.json").is_file():
        raise RunError(
            f"{path} is a model and not a run folder; expected a spec, such as {path}@W4-rtn"
        )
    runs = find_runs([path])
    if len(runs) > 1:
        listed = "".join(f"\n  {run.path}" for run in runs[:10])
        raise RunError(f"expected one run; {path} holds {len(runs):,}, choose one:{listed}")
    return runs[0]
