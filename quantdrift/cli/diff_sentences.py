"""What two finished runs differ in, in plain sentences; needs no torch."""

from __future__ import annotations

from quantdrift import perturbation
from quantdrift.finished.diff import Diff, PartDiff, estimate_of
from quantdrift.metrics import parse_metric


def sentences(found: Diff) -> list[str]:
    """The finding, what was left out, and what to know; the finding of each part if there are few.

    Args:
        found: the comparison.
    """
    lines = [line for part in found.parts for line in _finding(part)]
    several = len(found.parts) > 1
    for part in found.parts:
        before = f"{part.name}: " if several else ""
        lines += _left_out(part, before)
    # a note that all parts have is told once
    notes = [set(part.notes) for part in found.parts]
    shared = set.intersection(*notes)
    told = [note for note in found.parts[0].notes if note in shared]
    lines += [_sentence(note) for note in (*found.notes, *told)]
    for part in found.parts:
        lines += [f"{part.name}: {note}." for note in part.notes if note not in shared]
    return lines


def _sentence(note: str) -> str:
    return f"Note: {note}."


def _finding(part: PartDiff) -> list[str]:
    before = f"{part.name}: " if part.name else ""
    if part.evidence is None:
        return [f"{before}{part.reason}; only the harness's own metrics are compared."]
    changed = int(perturbation.flips(part.evidence).sum())
    n = part.evidence.n_inputs
    what = "first answer" if part.lists is not None else "answer"
    if not changed:
        lines = [f"{before}none of {n:,} inputs has another {what} in B than in A"]
    else:
        share = f"{100 * changed / n:.1f} %"
        lines = [f"{before}{changed:,} of {n:,} inputs ({share}) have another {what} in B"]
    if part.evidence.judgements is not None and changed:
        lost, won = (estimate_of(parse_metric(name), part) for name in ("harm", "benefit"))
        if lost.value is not None and won.value is not None:
            lines.append(
                f"{round(lost.value * lost.n):,} went from right to wrong, "
                f"{round(won.value * won.n):,} from wrong to right"
            )
    text = "; ".join(lines) + "."
    return [text if before else text[0].upper() + text[1:]]


def _left_out(part: PartDiff, before: str) -> list[str]:
    a, b = part.left_out
    if not a and not b:
        return []
    return [f"Note: {before}left out, as only one of the two runs has them: {a:,} inputs of A and {b:,} of B."]
