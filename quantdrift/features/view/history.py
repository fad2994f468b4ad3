"""The history of a gate: its committed baseline as it was after every commit, from git."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantdrift.base.errors import QuantDriftError
from quantdrift.gate.baseline import NAME, Baseline
from quantdrift.gate.rules import find_config, read_config
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell
from quantdrift.report.figures import Figure, amount, named, points_with_intervals, spec_of, tooltip
from quantdrift.report.page import Section
from quantdrift.show.tables import Grid
from quantdrift.statistics.estimates import Estimate, rate_estimate

_MOST = 100
"""Commits that are looked at, the latest."""
_LARGEST = 50_000_000
"""Bytes of a baseline."""
_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A committed baseline.

    Attributes:
        digest: of the commit.
        date: of the commit, ISO 8601.
        subject: the first line of its message.
        spec: the pair that the baseline is of.
        rate: share of its inputs whose first answer changed.
        means: metric to its mean, as the file has it.
    """

    digest: str
    date: str
    subject: str
    spec: str
    rate: Estimate
    means: dict[str, int | float | None]


def baseline_in(folder: Path) -> Path:
    """The baseline that `quantdrift gate` takes in a folder."""
    config = find_config(folder)
    if config is None:
        return folder / NAME
    said = read_config(config).baseline
    return config.parent / NAME if said is None else Path(said)


def commits_of(baseline: Path) -> list[Commit]:
    """The baseline after every commit that changed it, the earliest first; none where git knows no such file."""
    log = _git(baseline.parent, "log", f"-{_MOST}", "--format=%H%x00%cI%x00%s", "--", baseline.name)
    found = []
    for line in reversed((log or b"").decode(errors="replace").splitlines()):
        digest, date, subject = line.split("\0", 2)
        content = _git(baseline.parent, "show", f"{digest}:./{baseline.name}")
        if content is None or len(content) > _LARGEST:  # it was deleted in this commit
            continue
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, NAME)
            place.write_bytes(content)
            try:
                read = Baseline.read(place)
            except QuantDriftError:
                continue
        changed = np.array([">" in answer for answer in read.snapshot().answers], dtype=np.float64)
        told = {"spec": read.spec, "means": dict(read.means), "rate": rate_estimate(changed)}
        found.append(Commit(digest=digest, date=date, subject=subject, **told))
    return found


def _git(folder: Path, *words: str) -> bytes | None:
    """What git prints in a folder; None where it fails, or is not installed."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false", "--no-pager", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def section_of(commits: Sequence[Commit], baseline: Path) -> Iterator[Section]:
    """Yield the history as a chart and a table; nothing without commits."""
    if not commits:
        return
    values = [
        {
            "commit": f"{place:03d} {commit.digest[:7]}",
            "date": commit.date[:10],
            "subject": commit.subject,
            "spec": commit.spec,
            "rate": commit.rate.value,
            "low": commit.rate.low,
            "high": commit.rate.high,
        }
        for place, commit in enumerate(commits, 1)
    ]
    x = {"field": "commit", "type": "ordinal", "title": None, "axis": {"labelAngle": -40, "labelOverlap": "greedy"}}
    shown = tooltip(date="date", subject="commit", spec="spec", rate="changed:.1%", low="from:.1%", high="to:.1%")
    layers = points_with_intervals(
        {"x": x, "color": named("spec", scale={"domain": list(dict.fromkeys(commit.spec for commit in commits))})},
        amount("rate", "top-1 changes", axis={"format": "%"}),
        tooltip=shown,
    )
    flip, names = parse_metric("flip@1"), list(dict.fromkeys(name for commit in commits for name in commit.means))
    rows = [
        [
            commit.date[:10],
            commit.digest[:10],
            commit.subject,
            commit.spec,
            f"{commit.rate.n:,}",
            cell(flip, commit.rate),
            *("-" if (mean := commit.means.get(name)) is None else f"{mean:.4g}" for name in names),
        ]
        for commit in reversed(commits)
    ]
    head = ["date", "commit", "message", "spec", "inputs", "top-1 changes", *(f"mean {name}" for name in names)]
    yield Section(
        name="history",
        title="The baseline over commits",
        about=[f"{baseline.name} as each commit left it; the latest {_MOST} commits."],
        figures=[
            Figure(
                name="history",
                title="Top-1 changes of the baseline",
                caption="One point a commit, with 95 % intervals.",
                spec=spec_of(values, width=520, height=220, layer=layers),
            )
        ],
        grids=[Grid(head=head, rows=rows, words={"date", "commit", "message", "spec"})],
    )
