"""Whether a run and a baseline belong together, and the inputs that both have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantdrift.gate.snapshot import ANSWER, Identity, Snapshot

__all__ = ["Matched", "match"]

_OTHER_REFERENCE = 0.02
"""Share of first answers of the reference that may be others. Rounding made less than 0.01 wherever
it was measured; a digest of weights does not see prompts, and of finished runs there is none."""

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """A run and its baseline, row by row.

    Attributes:
        now: the run, of the inputs that both have.
        before: the baseline, in the order of `now`.
        differs: what makes the two incomparable, one line each; empty if nothing does.
        notes: what to know, one sentence each, without a full stop.
        n_answers_changed: inputs to which the candidate now gives another first answer than it did.
        same_candidate: whether its weights are known to be those of the baseline.
    """

    now: Snapshot
    before: Snapshot
    differs: tuple[str, ...]
    notes: tuple[str, ...]
    n_answers_changed: int
    same_candidate: bool = False


def match(now: Snapshot, baseline: Snapshot) -> Matched:
    """Pair the inputs of a run with those of a baseline, and list what else is different.

    Args:
        now: of the run.
        baseline: what it is compared with.
    """
    here, there = now.identity, baseline.identity
    differs = _differs(here, there)
    order = {name: row for row, name in enumerate(baseline.input_ids)}
    rows = [row for row, name in enumerate(now.input_ids) if name in order]
    only_now, only_then = now.n_inputs - len(rows), baseline.n_inputs - len(rows)
    notes = []
    if only_now or only_then:
        known = set(now.input_ids)
        lists = (
            [name for name in now.input_ids if name not in order],
            [name for name in baseline.input_ids if name not in known],
        )
        told = ", ".join(
            f"{len(names):,} only in {where} ({_some(names)})"
            for names, where in zip(lists, ("this run", "the baseline"), strict=True)
            if names
        )
        # of the same data, inputs that layers were measured on are left out
        if rows and here.data_digest is not None and here.data_digest == there.data_digest:
            notes.append(f"inputs that only one of the two has are left out: {told}")
        else:
            differs.append(f"inputs: {told}")
    one, other = now.part(rows), baseline.part([order[now.input_ids[row]] for row in rows])
    moved, answered = _answers(one, other)
    seen = None not in (here.reference_digest, there.reference_digest)
    if moved:
        told = f"the reference gives another first answer on {moved:,} of {len(rows):,} inputs"
        if moved > _OTHER_REFERENCE * len(rows):
            why = "another prompt, length or pooling" if seen else "or the two runs are swapped"
            differs.append(f"reference: {told}, which is another model ({why})")
        else:
            notes.append(f"{told} than when the baseline was made")
    same = here.candidate_digest is not None and here.candidate_digest == there.candidate_digest
    same = same and here.spec == there.spec
    if here.spec != there.spec:
        notes.append(f"the baseline is of {there.spec}")
    elif same:
        notes.append("the candidate's weights are those of the baseline, to the bit")
    notes += [
        f"{name} differs: {_told(there.software.get(name))} in the baseline, "
        f"{_told(here.software.get(name))} now"
        for name in sorted(here.software.keys() | there.software.keys())
        if here.software.get(name) != there.software.get(name)
    ]
    return Matched(
        now=one,
        before=other,
        differs=tuple(differs),
        notes=tuple(notes),
        n_answers_changed=answered,
        same_candidate=same,
    )


def _differs(here: Identity, there: Identity) -> list[str]:
    found = []
    if here.definitions != there.definitions:
        found.append(
            f"definitions of the metrics: version {there.definitions} in the baseline, "
            f"{here.definitions} now"
        )
    for what, name, digest in (
        ("reference model", "reference", "reference_digest"),
        ("data", "data", "data_digest"),
    ):
        one, other = getattr(there, digest), getattr(here, digest)
        if None not in (one, other) and one != other:
            names = getattr(there, name), getattr(here, name)
            told = names[0] if names[0] == names[1] else f"{names[0]}, now {names[1]}"
            hint = ": ids, texts or labels are others, or their order" if what == "data" else ""
            found.append(
                f"{what}: {told} (digest {one[:12]} in the baseline, {other[:12]} now){hint}"
            )
    if None in (here.data_digest, there.data_digest) and here.data != there.data:
        # what a harness has no digest of is known by its name
        found.append(f"data: {there.data} in the baseline, {here.data} now")
    for name in sorted(here.settings.keys() | there.settings.keys()):
        before, after = there.settings.get(name), here.settings.get(name)
        if before != after:
            found.append(f"setting {name}: {_told(before)} in the baseline, {_told(after)} now")
    return found


def _answers(one: Snapshot, other: Snapshot) -> tuple[int, int]:
    """Inputs with another first answer of the reference, and of the candidate."""
    moved = answered = 0
    for here, there in zip(one.answers, other.answers, strict=True):
        if here != there:
            (before, after), (was, became) = (_pair(text) for text in (there, here))
            moved += before != was
            answered += after != became
    return moved, answered


def _pair(text: str) -> tuple[str, str]:
    found = ANSWER.fullmatch(text)
    assert found is not None  # written by `answer_of`, or checked when it was read
    return found["reference"], found["candidate"] or found["reference"]


def _told(value: Any) -> str:
    if isinstance(value, Mapping) and "digest" in value:
        return f"digest {str(value['digest'])[:12]}"
    return "nothing" if value is None else str(value)


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, ..."
