"""Finished runs logged to where a team keeps its results: Weights & Biases, MLflow or Trackio.

A run is logged once: what it is known by there is the fingerprint of its cell, or the digest of its record. So a second
call adds what is new and nothing else. Where the results go, and with which account, is for the client's own settings
(WANDB_MODE, MLFLOW_TRACKING_URI, ...). No folder of the user is told but what run.json says.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from quantdrift.display import clean
from quantdrift.errors import QuantDriftError, UnknownNameError
from quantdrift.extras import extras_named
from quantdrift.metrics import parse_metric
from quantdrift.metrics.keys import BOUNDS, key_of
from quantdrift.records import bytes_digest
from quantdrift.report.card import model_of, scheme_of
from quantdrift.report.words import headlines
from quantdrift.runs import EVIDENCE, PROBE, RECORD, Run, read_run
from quantdrift.study.folder import STUDY, open_study

Client = Literal["wandb", "mlflow", "trackio"]
CLIENTS: tuple[Client, ...] = get_args(Client)
PROJECT = "quantdrift"
"""Where neither the command nor the client's settings name one."""
_TAG = "quantdrift.fingerprint"
_DONE = "logged-by-quantdrift"
"""What the name of a file in a local folder of W&B begins with: all of the run is there."""
_PARAMS: Mapping[str, Sequence[str]] = {
    "data": ("split", "subset", "kind", "n_queries", "n_documents", "n_inputs", "n_classes", "fingerprint"),
    "settings": ("k", "batch_size", "seed", "similarity", "reading", "dtype", "device"),
    "versions": ("quantdrift", "torch", "transformers", "sentence-transformers"),
}
"""What of run.json is logged beside model, scheme and bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is logged as one run.

    Attributes:
        name: what people call it.
        key: what it is known by; the same for the same measurement.
        params: what was measured, how.
        metrics: values, and the ends of their intervals as NAME_low and NAME_high.
        files: the run folder's files, and reports.
        kind: what it is; files of a "report" are logged again, as a study grows.
    """

    name: str
    key: str
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    files: Sequence[Path]
    kind: Literal["run", "report"] = "run"


def entry_of(run: Run, *, name: str | None = None, files: Sequence[Path] = ()) -> Entry:
    """A run as it is logged.

    Args:
        run: a finished run.
        name: its name; by default model, scheme and data.
        files: to go with those of the run folder, such as its report.
    """
    record = run.record
    bits = record.get("bits_per_weight") or {}
    model, scheme, data = model_of(record), scheme_of(record), clean(str(record["data"]["name"]))
    params: dict[str, Any] = {"model": model, "scheme": scheme, "data": data}
    params |= {"bits_per_weight": bits.get("linear"), "bits_with_scales": bits.get("linear_with_scales")}
    params |= {f"{part}.{key}": (record.get(part) or {}).get(key) for part, keys in _PARAMS.items() for key in keys}
    metrics: dict[str, float] = {}
    for metric, estimate in headlines(record).items():
        key = key_of(parse_metric(metric)) + BOUNDS[estimate.bound]
        ends = {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
        metrics |= {end: value for end, value in ends.items() if value is not None}
    return Entry(
        name=name or f"{model}@{scheme} on {data}",
        key=_key(record),
        params={key: value for key, value in params.items() if value is not None},
        metrics=metrics,
        # not what else a record names: it may be anybody's, and name any file
        files=[*(run.path / name for name in (RECORD, EVIDENCE, PROBE) if name in {RECORD, *record["files"]}), *files],
    )


def _key(record: Mapping[str, Any]) -> str:
    """A fingerprint; of what is none, as a record from elsewhere may have, the digest."""
    key = str(record.get("cell") or record["digest"])
    return key if re.fullmatch("[0-9a-f]{32,64}", key) else bytes_digest(repr(key).encode())


def entries_of(what: Path, report: Path | None = None) -> tuple[list[Entry], str | None]:
    """What is logged of a run or of a study, and the group that it belongs to.

    Args:
        what: a run folder, or the folder of a study, of which every finished cell is a run.
        report: a file of what people look at.

    Raises:
        RunError: it is neither.
        StudyError: the study is damaged.
    """
    files = [] if report is None else [report]
    what = what.parent if what.name == STUDY else what
    if not (what / STUDY).is_file():
        return [entry_of(read_run(what), files=files)], None
    study = open_study(what)
    entries = [entry_of(run, name=cell.name) for cell in study.cells if (run := study.run(cell)) is not None]
    group = clean(what.resolve().name)
    if report is not None:
        key = bytes_digest(repr(sorted(str(cell.fingerprint) for cell in study.cells)).encode())
        told = {"cells": float(len(study.cells)), "cells_done": float(len(entries))}
        entries.append(Entry(name=f"{group} report", key=key, params={}, metrics=told, files=files, kind="report"))
    return entries, group


def log_to(client: Client, entries: Sequence[Entry], *, project: str | None = None, group: str | None = None) -> int:
    """Log runs, each once; returns how many were new.

    Args:
        client: which.
        entries: the runs.
        project: of W&B or Trackio, or the experiment of MLflow; by default what the client's settings say.
        group: what the runs belong to, such as a study.

    Raises:
        QuantDriftError: the client refuses, or cannot be reached.
    """
    log, new = _OPEN[client](project, group), 0
    for entry in entries:
        try:
            with redirect_stdout(io.StringIO()):  # what clients print of themselves
                new += log(entry)
        except Exception as error:
            told = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise QuantDriftError(
                f"{client} did not take {entry.name}: {clean(told)}. What was logged before stays; the same command "
                "goes on from there"
            ) from error
    return new


def client_of(name: str) -> Client:
    """The client of a name, before work goes into what is logged.

    Raises:
        UnknownNameError: there is none.
        MissingExtraError: it is not installed.
    """
    if name not in CLIENTS:
        raise UnknownNameError("client", name, CLIENTS, hint=f"(expected {', '.join(CLIENTS)})")
    with extras_named(needed_for=f"--log-to {name}"):
        import_module(name)
    return name


Log = Callable[[Entry], bool]
"""Logs one run, and says whether it was new."""


# --- Weights & Biases ---------------------------------------------------------------------------


def _wandb(project: str | None, group: str | None) -> Log:
    import wandb  # noqa: PLC0415 -- an extra

    # nothing of the machine, its user, the program or the repository around it
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )

    name = project or os.environ.get("WANDB_PROJECT") or PROJECT
    done = f"{_DONE}-to-{bytes_digest(name.encode())[:8]}"

    def log(entry: Entry) -> bool:
        # offline nobody else knows; online the run itself says whether it was there
        place = Path(wandb.setup(settings=settings).settings.wandb_dir)
        new = not list(place.glob(f"*run-*-{entry.key[:32]}/{done}"))
        if not new and entry.kind == "run":
            return False
        run = wandb.init(
            project=name,
            id=entry.key[:32],
            name=entry.name,
            group=group,
            job_type=entry.kind,
            config=dict(entry.params),
            resume="allow",
            settings=settings,
        )
        new = new and not run.resumed
        run.summary.update(dict(entry.metrics))  # a history would grow with every call
        artifact = wandb.Artifact(f"{entry.kind}-{entry.key[:32]}", type=f"quantdrift-{entry.kind}")
        for file in entry.files:
            artifact.add_file(str(file))
        run.log_artifact(artifact)  # one of the same content is no new version
        folder = Path(run.settings.sync_dir)
        run.finish()
        (folder / done).touch()
        return new

    return log


# --- MLflow -------------------------------------------------------------------------------------


def _mlflow(project: str | None, group: str | None) -> Log:
    from mlflow import MlflowClient  # noqa: PLC0415 -- an extra
    from mlflow.entities import Metric, Param  # noqa: PLC0415

    # its client, not its `start_run`, which adds names of the user, the program and the repository
    client: Any = MlflowClient()
    name = project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT

    def log(entry: Entry) -> bool:
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        tags = {_TAG: entry.key, **({} if group is None else {"quantdrift.group": group})}
        known = client.search_runs([experiment], f"tags.`{_TAG}` = '{entry.key}'", max_results=1)
        finished = bool(known) and known[0].info.status == "FINISHED"
        if finished and entry.kind == "run":
            return False
        run = known[0] if known else client.create_run(experiment, run_name=entry.name, tags=tags)
        place = run.info.run_id
        client.log_batch(
            place,
            metrics=[Metric(key, value, run.info.start_time, 0) for key, value in entry.metrics.items()],
            params=[Param(key, str(value)) for key, value in entry.params.items()],
        )
        for file in entry.files:
            client.log_artifact(place, str(file))
        client.set_terminated(place)
        return not finished

    return log


# --- Trackio ------------------------------------------------------------------------------------


def _trackio(project: str | None, group: str | None) -> Log:
    import trackio  # noqa: PLC0415 -- an extra

    name = project or os.environ.get("TRACKIO_PROJECT") or PROJECT

    def log(entry: Entry) -> bool:
        called = f"{entry.name} {entry.key[:8]}"
        try:
            new = called not in {run.name for run in trackio.Api().runs(name)}
        except ValueError:  # there is no such project yet
            new = True
        if not new and entry.kind == "run":
            return False
        trackio.init(
            project=name,
            name=called,
            group=group,
            config={**entry.params, _TAG: entry.key},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        if new:
            trackio.log(dict(entry.metrics), step=0)
        artifact = trackio.Artifact(f"{entry.kind}-{entry.key[:32]}", type=f"quantdrift-{entry.kind}")
        for file in entry.files:
            artifact.add_file(str(file))
        trackio.log_artifact(artifact)
        trackio.finish()
        return new

    return log


_OPEN: Mapping[str, Callable[[str | None, str | None], Log]] = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}
