"""A measurement that is made once: by one process of one session, for all that ask the same.

Runs lie in pytest's cache under a digest of what decides them. A lock per run lets one process
measure while the others wait and then read. A run folder is there in full or not at all, so a
session that was killed leaves nothing to be taken for a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import pytest

import quantdrift
from quantdrift.datasets.labelled import Dataset, read_folder
from quantdrift.datasets.retrieval import load_task
from quantdrift.errors import MissingExtraError, RunError
from quantdrift.gate.target import Target, target_of_run
from quantdrift.models.named import resolve
from quantdrift.records import read_json, write_text
from quantdrift.runs import Run, read_run
from quantdrift.spec import Spec, Versus, is_endpoint, parse_pair
from quantdrift_pytest.drift import Drift
from quantdrift_pytest.session import Measuring, Session, read_settings

# --- Digests of files and folders by their content; what has not been touched is read once --------


def digest_of_json(value: Any) -> str:
    """A digest of a JSON value, 32 hex digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def looks(place: Path, pattern: str = "*") -> list[tuple[str, int, int]]:
    """The files at a place as far as they are seen without reading them.

    Hidden files and folders do not count; caches and version control change without the content.

    Args:
        place: a file or a folder.
        pattern: of the names of files in a folder.

    Returns:
        Path below the place, size in bytes and time of the last change in ns, sorted.
    """
    files = [place] if place.is_file() else place.rglob(pattern)
    found = []
    for file in files:
        name = file.relative_to(place).as_posix()
        if not any(part.startswith(".") and part != "." for part in name.split("/")):
            seen = file.stat()
            if not file.is_dir():
                found.append((name, seen.st_size, seen.st_mtime_ns))
    return sorted(found)


def content_digest(place: Path, known: Path, pattern: str = "*") -> str:
    """A digest of the names and contents of the files at a place.

    Args:
        place: a file or a folder.
        known: folder that keeps digests; one is used again while size and time of all files are the
            same, so that gigabytes of weights are not read for every session.
        pattern: of the names of files in a folder.

    Returns:
        32 hex digits. Times and the place itself are no part of it: a copy has the same.

    Raises:
        OSError: a file cannot be read.
        RunError: the folder cannot be written.
    """
    found = looks(place, pattern)
    seen = [list(each) for each in found]  # as JSON gives it back
    note = known / f"{digest_of_json([str(place.resolve()), pattern])}.json"
    try:
        kept = read_json(note)
        if kept["seen"] == seen:
            return str(kept["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not kept yet, or damaged
    digest = digest_of_json([[name, _of_file(place / name)] for name, _, _ in found])
    write_text(note, json.dumps({"seen": seen, "digest": digest}), what="a digest")
    return digest


def _of_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "blake2b").hexdigest()


# --- The data that a test names: a folder from the rootdir, or a task -----------------------------


def read_data(session: Session, *, data: str | PathLike[str] | None, task: str | None, split: str) -> Dataset:
    """The data, read once per session as long as the files stay as they are.

    Args:
        session: that asks.
        data: folder, from the rootdir.
        task: name of a task, in place of a folder.
        split: of the folder.

    Raises:
        pytest.UsageError: neither or both are given.
        DataError: the data cannot be read.
        UnknownNameError: there is no such task; carries the nearest names.
    """
    if (data is None) == (task is None):
        got = "neither" if data is None else "both"
        raise pytest.UsageError('expected either data="FOLDER" or task="NAME" (quantdrift list tasks); got ' + got)
    if data is None:
        assert task is not None  # one of the two is given
        name: tuple[object, ...] = ("task", task)
        if name not in session.data:
            session.data[name] = load_task(task)
    else:
        folder = session.root / data
        name = ("data", folder, split, *(looks(folder) if folder.exists() else ()))
        if name not in session.data:
            session.data[name] = read_folder(folder, split)
    return session.data[name]


# --- What decides a measurement, as far as it can be told without loading the model ---------------

_LIBRARIES = (
    *("torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "numpy"),
    *("scikit-learn", "accelerate", "gptqmodel", "auto-gptq", "autoawq", "hqq", "optimum"),
    *("bitsandbytes", "compressed-tensors", "torchao", "gguf", "onnx", "onnxruntime"),
    *("pillow", "timm"),
)
"""That load models, quantize or compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a pair is, and what measures it.

    Attributes:
        parts: JSON values; another measurement has others.
        lasting: whether it holds beyond a session; not for models that are not seen from here, on a
            server or not yet downloaded.
    """

    parts: Mapping[str, Any]
    lasting: bool


def identify(pair: Spec | Versus, *, revision: str | None, known: Path) -> Identity:
    """What decides a measurement of a pair, beside data and settings.

    Args:
        pair: model and scheme, or two models.
        revision: of a reference on the hub.
        known: folder that keeps digests of files.

    Raises:
        QuantDriftError: a model cannot be found.
        OSError: a file of it cannot be read.
    """
    if isinstance(pair, Versus):
        models = [_model(pair.reference, revision, known), _model(pair.candidate, None, known)]
        files = {}
    else:
        models = [_model(pair.model, revision, known)]
        # widths that were stored, texts to calibrate on
        options = [(key, Path(value)) for key, value in pair.scheme.options]
        files = {key: content_digest(file, known) for key, file in options if file.is_file()}
    package = Path(quantdrift.__file__).parent
    return Identity(
        parts={
            "pair": str(pair),
            "models": models,
            "files": files,
            "code": [quantdrift.__version__, content_digest(package, known, "*.py")],
            "libraries": dict(_versions()),
            "machine": _machine(),
        },
        lasting=None not in models,
    )


def _model(name: str, revision: str | None, known: Path) -> str | None:
    """A digest of a model's files; None where they are not seen from here."""
    if is_endpoint(name):
        return None
    on_hub = None
    if name.lower().endswith(".gguf"):
        place = Path(name).expanduser()
        if not place.is_file():
            on_hub = name.rpartition(":")[0]
    else:
        source = resolve(name)
        place = Path(source.location)
        if source.kind == "hub":
            on_hub = source.canonical
    if on_hub is not None:
        found = _downloaded(on_hub, revision)
        if found is None:
            return None
        place = found
    return content_digest(place, known)


def _downloaded(repo: str, revision: str | None) -> Path | None:
    """The snapshot of a hub model that lies on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415 -- only for hub models

    root = Path(os.environ.get("SENTENCE_TRANSFORMERS_HOME") or HF_HUB_CACHE)
    folder = root / f"models--{repo.replace('/', '--')}"
    name = revision or "main"
    try:
        commit = (folder / "refs" / name).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = name
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _versions() -> Iterator[tuple[str, str]]:
    for library in _LIBRARIES:
        try:
            yield library, version(library)
        except PackageNotFoundError:
            continue


def _machine() -> list[str]:
    """What decides on which device a model runs by itself."""
    gpus = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return [platform.system(), platform.machine(), *gpus, *([f"of {chosen}"] if gpus else [])]


# --- A measurement that is made once: by one process of one session, for all that ask the same ----


def measured(
    session: Session,
    spec: str,
    *,
    data: str | PathLike[str] | None,
    task: str | None,
    split: str,
    settings: Mapping[str, Any],
) -> Drift:
    """A measurement of a pair, made now or read back.

    Args:
        session: that asks.
        spec: the pair.
        data: folder, from the rootdir.
        task: name of a task, in place of a folder.
        split: of the folder.
        settings: by name.

    Raises:
        pytest.UsageError: neither or both of data and task are given.
        QuantDriftError: anything that keeps the run from being made; nothing is left behind.
    """
    pair = parse_pair(spec)
    how = read_settings(settings)
    dataset = read_data(session, data=data, task=task, split=split)
    try:
        who = identify(pair, revision=how.revision, known=session.folder("digests"))
    except OSError as error:
        raise RunError(f"the files of {pair} cannot be read: {error}") from error
    on = [dataset.name, dataset.split, dataset.fingerprint]
    name = digest_of_json([dict(who.parts), on, how.to_json()])
    if name in session.measured:
        return session.measured[name]
    runs = session.folder("runs")
    path, note = runs / name, runs / f"{name}.session"
    with _one_at_a_time(runs / f"{name}.lock"):
        found = None
        if _said(note) == session.id or (who.lasting and not session.anew):
            found = _kept(path)
        if found is None:
            shutil.rmtree(path, ignore_errors=True)  # of another session, or damaged
            run = _measure(pair, dataset, path, how, anew=session.anew)
            found = run, target_of_run(run)
            write_text(note, session.id, what="a note beside a run")
            kept = False
        else:
            kept = True
    drift = Drift(run=found[0], target=found[1], kept=kept, session=session)
    # whoever asks next gets one that was measured before
    session.measured[name] = Drift(run=drift.run, target=drift.target, kept=True, session=session)
    return drift


def _kept(path: Path) -> tuple[Run, Target] | None:
    """The run in a folder; None where there is none, or one that cannot be read."""
    try:
        run = read_run(path)
        return run, target_of_run(run)
    except RunError:
        return None


def _said(note: Path) -> str | None:
    """Which session made the run beside a note."""
    try:
        return note.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _measure(pair: Spec | Versus, dataset: Dataset, path: Path, how: Measuring, *, anew: bool) -> Run:
    with warnings.catch_warnings():
        # a suite may turn warnings into errors; those of libraries that load are not its business
        warnings.simplefilter("ignore")
        from quantdrift.engine.run import run_pair  # noqa: PLC0415 -- torch
        from quantdrift.engine.search import Settings  # noqa: PLC0415 -- likewise
        from quantdrift.engine.store import EmbeddingStore, default_store  # noqa: PLC0415 -- likewise
        from quantdrift.progress import Silent  # noqa: PLC0415 -- likewise

        return run_pair(
            pair,
            dataset,
            out=path,
            settings=Settings(k=how.k, batch_size=how.batch_size, noise_floor=how.noise_floor, seed=how.seed),
            store=EmbeddingStore(None) if anew else default_store(),
            progress=Silent(),
            device=how.device,
            revision=how.revision,
        )


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    try:
        from filelock import FileLock  # noqa: PLC0415 -- only the extra brings it
    except ImportError as error:
        raise MissingExtraError("filelock", "pytest", needed_for="measuring in pytest") from error
    with FileLock(lock):
        yield
