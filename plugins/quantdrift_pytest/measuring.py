"""A measurement that is made once: by one process of one session, for all that ask the same.

Runs lie in pytest's cache under the fingerprint of what is asked; those that a later session cannot trust lie in a
folder of the session. A lock per run lets one process measure while the others wait and then read.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from quantdrift.ask import Ask, ensure
from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.extras import extras_named
from quantdrift.base.records import bytes_digest, file_digest, problem_of
from quantdrift.checkpoints.named import resolve
from quantdrift.data.labelled import Dataset, load_task, read_folder
from quantdrift.gate.target import target_of_run
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Dtype, Spec, Versus, is_endpoint, parse_pair
from quantdrift_pytest.drift import Drift
from quantdrift_pytest.session import Session


class Measuring(BaseModel, strict=True, frozen=True, extra="forbid"):
    """The settings of a measurement; those of `quantdrift run`."""

    k: int = Field(200, ge=1)
    batch_size: int = Field(32, ge=1)
    noise_floor: bool = True
    seed: int = Field(0, ge=0)
    device: str | None = None
    revision: str | None = None
    dtype: Dtype = "float32"


def read_settings(given: Mapping[str, Any]) -> Measuring:
    """Settings by name, checked."""
    try:
        return Measuring(**given)
    except ValidationError as error:
        known = ", ".join(Measuring.model_fields)
        raise QuantDriftError(f"the setting {problem_of(error)}. Settings are {known}; limits go to require") from error


# --- what decides a measurement, as far as it can be told without loading the model -----------


def looks(place: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the files at a place, sorted; hidden ones change without the content, and do not count."""
    files = []
    for file in [place] if place.is_file() else place.rglob("*"):
        name = file.relative_to(place).as_posix()
        if not any(part.startswith(".") and part != "." for part in name.split("/")) and not file.is_dir():
            files.append((name, file.stat().st_size, file.stat().st_mtime_ns))
    return sorted(files)


def content_digest(place: Path) -> str:
    """A digest of the names and contents of the files at a place: a copy has the same."""
    contents = [[name, _digest_of_file(place / name, *seen)] for name, *seen in looks(place)]
    return bytes_digest(json.dumps(contents).encode())


@functools.cache
def _digest_of_file(file: Path, *seen: int) -> str:
    """A digest of a file, taken once as long as its size and time are the same."""
    return file_digest(file)


def asked(pair: Spec | Versus, dataset: Dataset, how: Measuring) -> Ask:
    """What is asked: models by the content of their files, None for one that is not seen from here."""
    if isinstance(pair, Versus):
        models = [_model(pair.reference, how.revision), _model(pair.candidate, None)]
    else:
        models = [_model(pair.model, how.revision)]
    gpus = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    # what decides on which device a model runs by itself
    machine = [platform.system(), platform.machine(), *gpus, os.environ.get("CUDA_VISIBLE_DEVICES", "all")]
    return Ask(
        pair=pair,
        data=[dataset.name, dataset.split, dataset.fingerprint],
        settings=how.model_dump(),
        part=["machine", *machine],
        models=models,
    )


def _model(name: str, revision: str | None) -> str | None:
    """A digest of a model's files; None where they are not seen from here."""
    if is_endpoint(name):
        return None
    if name.lower().endswith(".gguf"):
        place, on_hub = Path(name).expanduser(), name.rpartition(":")[0]
        folder = place if place.is_file() else _downloaded(on_hub, revision)
    else:
        source = resolve(name)
        folder = _downloaded(source.canonical, revision) if source.kind == "hub" else Path(source.location)
    return None if folder is None else content_digest(folder)


def _downloaded(repo: str, revision: str | None) -> Path | None:
    """The snapshot of a hub model that lies on this machine."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 -- only for hub models
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415 -- likewise

    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    try:
        return Path(snapshot_download(repo, revision=revision, cache_dir=folder, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):  # not here, or no such name
        return None


# --- made once, and read afterwards -----------------------------------------------------------


def read_data(session: Session, *, data: str | PathLike[str] | None, task: str | None, split: str) -> Dataset:
    """The data, read once per session as long as the files stay as they are."""
    if (data is None) == (task is None):
        got = "neither" if data is None else "both"
        raise pytest.UsageError('expected either data="FOLDER" or task="NAME" (quantdrift list tasks); got ' + got)
    folder = session.config.rootpath / (data or "")
    seen = looks(folder) if data is not None and folder.exists() else []
    name = (task, folder, split, *map(tuple, seen))
    if name not in session.data:
        session.data[name] = read_folder(folder, split) if task is None else load_task(task)
    return session.data[name]


def measured(
    session: Session,
    spec: str,
    *,
    data: str | PathLike[str] | None,
    task: str | None,
    split: str,
    settings: Mapping[str, Any],
) -> Drift:
    """A measurement of a pair, made now or read back."""
    pair, how = parse_pair(spec), read_settings(settings)
    dataset = read_data(session, data=data, task=task, split=split)
    try:
        ask = asked(pair, dataset, how)
        name = ask.fingerprint
    except OSError as error:
        raise RunError(f"the files of {pair} cannot be read: {error}") from error
    if name in session.measured:
        return session.measured[name]
    anew = bool(session.config.getoption("quantdrift_no_cache"))
    # models that are not seen from here may be others in the next session
    path = session.folder("runs", lasting=ask.certain and not anew) / name
    with extras_named(needed_for="measuring in pytest", extra="pytest"):
        from filelock import FileLock  # noqa: PLC0415 -- only the extra brings it
    kept = True

    def measure(fingerprint: str) -> Run:
        nonlocal kept
        kept = False
        return _measure(pair, dataset, path, how, anew=anew, fingerprint=fingerprint)

    with FileLock(path.with_name(f"{name}.lock")):
        run = ensure(ask, path, measure)
    drift = Drift(run=run, target=target_of_run(run), kept=kept, session=session)
    session.measured[name] = replace(drift, kept=True)  # for whoever asks next
    return drift


def _measure(pair: Spec | Versus, dataset: Dataset, path: Path, how: Measuring, *, anew: bool, fingerprint: str) -> Run:
    with warnings.catch_warnings():
        # a suite may turn warnings into errors; those of libraries that load are not its business
        warnings.simplefilter("ignore")
        from quantdrift.base.progress import Silent  # noqa: PLC0415 -- likewise
        from quantdrift.engine.inputs import Settings  # noqa: PLC0415 -- likewise
        from quantdrift.engine.run import run  # noqa: PLC0415 -- torch
        from quantdrift.engine.store import EmbeddingStore, default_store  # noqa: PLC0415 -- likewise

        return run(
            pair,
            dataset,
            out=path,
            settings=Settings(**how.model_dump(exclude={"device", "revision"})),
            store=EmbeddingStore(None) if anew else default_store(),
            progress=Silent(),
            device=how.device,
            revision=how.revision,
            fingerprint=fingerprint,
        )
