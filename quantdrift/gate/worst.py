"""The inputs to look at first: what changed, the worst and the new ones before the others."""

from __future__ import annotations

from quantdrift.finished.changed import changed_inputs
from quantdrift.gate.result import Worst
from quantdrift.gate.snapshot import Snapshot
from quantdrift.gate.target import Target

__all__ = ["worst_inputs"]


def worst_inputs(
    target: Target, baseline: Snapshot | None, *, n: int
) -> tuple[tuple[Worst, ...], int, int | None]:
    """Inputs whose first answer changed: right ones that became wrong, new ones, largest leads.

    Args:
        target: the run.
        baseline: an input is new if its answer had not changed there; None if none can be compared.
        n: how many to list.

    Returns:
        Those, how many there are in all, and how many of them are new (None without a baseline).
    """
    unchanged = (
        set()
        if baseline is None
        else {
            name
            for name, answer in zip(baseline.input_ids, baseline.answers, strict=True)
            if ">" not in answer
        }
    )
    found = []
    for part in target.parts:
        for each in changed_inputs(part.evidence):
            name = f"{part.name}:{each.input_id}" if part.name else each.input_id
            new = None if baseline is None else name in unchanged
            found.append(Worst(changed=each, part=part.name, new=new))
    found.sort(key=_how_bad)
    n_new = None if baseline is None else sum(bool(each.new) for each in found)
    return tuple(found[:n]), len(found), n_new


def _how_bad(worst: Worst) -> tuple[int, bool, float, str, str]:
    changed = worst.changed
    kind = 1 if changed.was_right is None else 1 + bool(changed.is_right) - changed.was_right
    # the names last, so that the order of the inputs does not matter
    return kind, not worst.new, -(changed.lead or 0.0), worst.part, changed.input_id
