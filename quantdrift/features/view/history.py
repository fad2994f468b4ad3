"""The history of a gate: its committed baseline as every commit left it, from git."""

import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.base.errors import QuantDriftError
from quantdrift.gate.baseline import NAME, Baseline
from quantdrift.gate.rules import find_config, read_config
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell
from quantdrift.report.page import Section
from quantdrift.show.tables import Column, table
from quantdrift.statistics.estimates import rate_estimate

_MOST = 100
"""Commits that are looked at, the latest."""
_LARGEST = 50_000_000
"""Bytes of a baseline."""
_SECONDS = 20


def _means(baseline: Baseline) -> str:
    return ", ".join(f"{name} {mean:.4g}" for name, mean in baseline.means.items() if mean is not None)


_COLUMNS = (
    Column("commit", "commit", kind="words"),
    Column("date", "date", kind="words"),
    Column("message", "subject", kind="words"),
    Column("spec", lambda commit: commit["baseline"].spec, kind="words"),
    Column("inputs", lambda commit: f"{commit['baseline'].n_inputs:,}"),
    Column("top-1 changes", "rate", partial(cell, parse_metric("flip@1"))),
    Column("means", "baseline", _means, kind="words"),
)


def baseline_in(folder: Path) -> Path:
    """The baseline that `quantdrift gate` takes in a folder."""
    config = find_config(folder)
    said = None if config is None else read_config(config).baseline
    return Path(said) if said is not None else (folder if config is None else config.parent) / NAME


def commits_of(baseline: Path) -> Iterator[dict[str, Any]]:
    """Yield the baseline after every commit that changed it, the earliest first; none where git knows no such file."""
    log = _git(baseline.parent, "log", f"-{_MOST}", "--format=%H%x00%cs%x00%s", "--", baseline.name)
    for line in reversed((log or b"").decode(errors="replace").splitlines()):
        digest, date, subject = line.split("\0", 2)
        content = _git(baseline.parent, "show", f"{digest}:./{baseline.name}")
        if content is None or len(content) > _LARGEST:  # none: it was deleted in this commit
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / NAME).write_bytes(content)
            try:
                read = Baseline.read(Path(folder) / NAME)
            except QuantDriftError:
                continue
        rate = rate_estimate(np.array([">" in answer for answer in read.snapshot().answers], dtype=np.float64))
        yield {"commit": digest[:10], "date": date, "subject": subject, "baseline": read, "rate": rate}


def _git(folder: Path, *words: str) -> bytes | None:
    """What git prints in a folder; None where it fails, or is not installed."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false", "--no-pager", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def history(baseline: Path) -> Iterator[Section]:
    """Yield the history of a baseline as a table; nothing where it was never committed."""
    if commits := list(commits_of(baseline)):
        about = [f"{baseline.name} as each commit left it, the latest {_MOST} at most; with 95 % intervals."]
        grid = table(_COLUMNS, commits[::-1])
        yield Section(name="history", title="The baseline over commits", about=about, grids=[grid])
