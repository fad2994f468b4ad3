"""Whether two runs belong together: the same data, inputs, reference and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.runs import Run

__all__ = ["cautions", "in_both", "matching_rows"]

HARMLESS = frozenset({"k", "batch_size", "noise_floor", "seed"})
"""Settings that change what is stored or how noise is measured, not what a metric means."""

SOFTWARE = frozenset({"device", "probe", "torch", "transformers", "sentence-transformers"})
"""Settings that change scores by rounding only; the reference's own answers show if they did. A
probe of the same data and weights is one: fitted anew elsewhere, it differs in its last digits."""


def in_both(a: Run, b: Run, one: Evidence, other: Evidence) -> tuple[Evidence, Evidence, list[str]]:
    """The evidence without inputs that the other run leaves out, having measured layers on them.

    Inputs that are missing for another reason stay, and `matching_rows` then refuses the runs.

    Args:
        a: the first run.
        b: the second run.
        one: evidence of the first.
        other: evidence of the second.

    Returns:
        Evidence of either, and what to know: one sentence or none.
    """
    here, there = one.input_ids, other.input_ids
    kept, kept_there = np.isin(here, there), np.isin(there, here)
    left_out = [int(_at(run.record, ("data", "inputs_left_out")) or 0) for run in (a, b)]
    only = int((~kept).sum()), int((~kept_there).sum())
    if not any(only) or not kept.any() or only[0] > left_out[1] or only[1] > left_out[0]:
        return one, other, []
    dropped = [
        f"{count:,} of {name}" for count, name in zip(only, ("A", "B"), strict=True) if count
    ]
    note = (
        f"compared on the {int(kept.sum()):,} inputs that both have; left out because the other "
        f"run's layers were measured on them: {', '.join(dropped)}"
    )
    return one.part(np.flatnonzero(kept)), other.part(np.flatnonzero(kept_there)), [note]


def matching_rows(a: Run, b: Run, one: Evidence, other: Evidence) -> NDArray[np.int64]:
    """The rows of B in the order of A's inputs, int64 [n_inputs].

    Args:
        a: the first run.
        b: the second run.
        one: evidence of the first.
        other: evidence of the second.

    Raises:
        RunError: the runs have another reference, other data, other inputs or other settings that
            change scores; lists everything that differs.
    """
    wrong = []
    for what, path in (
        ("reference model", ("model", "fingerprint")),
        ("data", ("data", "fingerprint")),
    ):
        here, there = (_at(run.record, path) for run in (a, b))
        names = [_name(run, path[0]) for run in (a, b)]
        # what a harness has no digest of is known by its name
        if here != there or (here is None and names[0] != names[1]):
            wrong.append(f"{what}: {' and '.join(names)} (digests {here} and {there})")
    settings = [run.record.get("settings", {}) for run in (a, b)]
    for name in sorted(settings[0].keys() | settings[1].keys()):
        here, there = (held.get(name) for held in settings)
        if here != there and name not in HARMLESS | SOFTWARE:
            wrong.append(f"setting {name}: {here} and {there}")
    ids, other_ids = one.input_ids.tolist(), other.input_ids.tolist()
    only_a, only_b = (len(set(x) - set(y)) for x, y in ((ids, other_ids), (other_ids, ids)))
    if only_a or only_b:
        wrong.append(
            f"inputs: {only_a:,} of {len(ids):,} are only in A, "
            f"{only_b:,} of {len(other_ids):,} only in B"
        )
    if wrong:
        listed = "".join(f"\n  - {line}" for line in wrong)
        raise RunError(
            f"expected two runs of the same data, reference and settings; {a.path} (A) and "
            f"{b.path} (B) differ in{listed}\nRun one of them again with what the other has; "
            "only the scheme (the part after @) may differ."
        )
    row_of = {name: row for row, name in enumerate(other_ids)}
    return np.array([row_of[name] for name in ids], dtype=np.int64)


def cautions(a: Run, b: Run, one: Evidence, other: Evidence, order: NDArray[np.int64]) -> list[str]:
    """What to know before comparing two runs that match: one sentence each.

    Args:
        a: the first run.
        b: the second run.
        one: evidence of the first.
        other: evidence of the second.
        order: rows of the second by those of the first.
    """
    notes = []
    settings = [run.record.get("settings", {}) for run in (a, b)]
    for name in sorted(SOFTWARE):
        here, there = (held.get(name) for held in settings)
        if here != there:
            shown = (
                held.get("digest") if isinstance(held, dict) else held for held in (here, there)
            )
            notes.append(f"{name} differs: {next(shown)} in A, {next(shown)} in B")
    # inputs without any item have -1 there, in both
    first, second = (
        [run.item_ids[item] if item >= 0 else None for item in run.reference_top.items[rows, 0]]
        for run, rows in ((one, np.arange(one.n_inputs)), (other, order))
    )
    differ = sum(x != y for x, y in zip(first, second, strict=True))
    if differ:
        notes.append(
            f"the reference itself gives another first answer on {differ:,} of {one.n_inputs:,} "
            "inputs (its scores are not the same to the last bit in both runs)"
        )
    return notes


def _at(record: Mapping[str, Any], path: Sequence[str]) -> Any:
    part: Any = record
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def _name(run: Run, part: str) -> str:
    named = _at(run.record, (part, "name"))
    split = _at(run.record, (part, "split"))
    return f"{named or 'unnamed'}" + (f" ({split})" if split else "")
