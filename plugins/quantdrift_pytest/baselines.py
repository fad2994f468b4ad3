"""Baselines that tests name, written at the end of a session by one process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from quantdrift.errors import QuantDriftError, RunError
from quantdrift.gate.baseline import read_baseline, write_baseline
from quantdrift.gate.judge import snapshot_for
from quantdrift.gate.rules import parse_rule
from quantdrift.gate.target import target_of_run
from quantdrift.runs import read_run
from quantdrift_pytest.session import Session

__all__ = ["write_asked"]


def write_asked(session: Session, *, broken_off: bool) -> tuple[list[str], bool]:
    """Write every baseline that a test has named.

    Args:
        session: that has collected which.
        broken_off: whether it ended before all its tests had run, and so knows too little.

    Returns:
        What was done, one line each; and whether all of them were written.
    """
    asked: dict[str, list[dict[str, Any]]] = {}
    for told in session.told:
        if update := told["update"]:
            asked.setdefault(update["path"], []).append(update)
    if broken_off and asked:
        return ["no baseline was written: the session was broken off"], False
    done = [_write(session, Path(path), asked[path]) for path in sorted(asked)]
    return [line for line, _ in done], all(written for _, written in done)


def _write(session: Session, path: Path, updates: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """Write one; it holds what all tests that name it compare."""
    name = _seen_from(session.root, path)
    runs = sorted({update["run"] for update in updates})
    try:
        targets = [target_of_run(read_run(Path(run))) for run in runs]
        if len(targets) > 1:
            whose = " and ".join(f"{t.identity.spec} on {t.identity.data}" for t in targets)
            return (
                f"{name} was not written: tests name it for more than one run ({whose}); give each "
                "run a file of its own"
            ), False
        rules = dict.fromkeys(rule for update in updates for rule in update["rules"])
        earlier = None
        with suppress(RunError):  # none, or a damaged one
            earlier = read_baseline(path)
        snapshot = snapshot_for(targets[0], [parse_rule(rule) for rule in rules], earlier)
        write_baseline(snapshot, path)
    except QuantDriftError as error:
        return f"{name} was not written: {error}", False
    identity = snapshot.identity
    inputs = "1 input" if snapshot.n_inputs == 1 else f"{snapshot.n_inputs:,} inputs"
    return f"wrote {name}: {identity.spec} on {identity.data}, {inputs}; commit it", True


def _seen_from(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
