"""A measurement that is made once: by one process of one session, for all that ask the same.

Runs lie in pytest's cache under a digest of what decides them. A lock per run lets one process
measure while the others wait and then read. A run folder is there in full or not at all, so a
session that was killed leaves nothing to be taken for a run.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from quantdrift.datasets.folder import Dataset
from quantdrift.errors import MissingExtraError, RunError
from quantdrift.gate.target import Target, target_of_run
from quantdrift.records import write_text
from quantdrift.runs import Run, read_run
from quantdrift.spec import Spec
from quantdrift.versus import Versus, parse_pair
from quantdrift_pytest.data import read_data
from quantdrift_pytest.digests import digest_of_json
from quantdrift_pytest.drift import Drift
from quantdrift_pytest.identity import identify
from quantdrift_pytest.session import Session
from quantdrift_pytest.settings import Measuring, read_settings

__all__ = ["measured"]


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


def _measure(
    pair: Spec | Versus, dataset: Dataset, path: Path, how: Measuring, *, anew: bool
) -> Run:
    with warnings.catch_warnings():
        # a suite may turn warnings into errors; those of libraries that load are not its business
        warnings.simplefilter("ignore")
        from quantdrift.measurement.dispatch import measure  # noqa: PLC0415 -- torch
        from quantdrift.measurement.embeddings import (  # noqa: PLC0415 -- likewise
            EmbeddingStore,
            default_store,
        )
        from quantdrift.measurement.encoding import Settings  # noqa: PLC0415 -- likewise
        from quantdrift.progress import Silent  # noqa: PLC0415 -- likewise

        return measure(
            pair,
            dataset,
            out=path,
            settings=Settings(
                k=how.k, batch_size=how.batch_size, noise_floor=how.noise_floor, seed=how.seed
            ),
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
