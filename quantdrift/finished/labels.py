"""Relevance labels of two finished runs: given with them, or what a run folder holds itself."""

from __future__ import annotations

from collections.abc import Sequence

from quantdrift.datasets.beir_files import some
from quantdrift.errors import DataError, RunError
from quantdrift.finished.rankings import Qrels
from quantdrift.finished.readers.contents import Labelled, Ranked

__all__ = ["label_notes", "marks", "refuse_other_labels", "right_by"]


def refuse_other_labels(name: str, a: Ranked, b: Ranked) -> None:
    """Refuse two runs that bring relevance labels of their own, which are not the same.

    Args:
        name: of the part.
        a: the reference.
        b: the candidate, over the same inputs.

    Raises:
        RunError: an input has other relevant items, or other grades of them.
    """
    if a.qrels is None or b.qrels is None:
        return
    differ = [n for n in a.rankings if _relevant(a.qrels, n) != _relevant(b.qrels, n)]
    if differ:
        where = f"{name}: " if name else ""
        raise RunError(
            f"{where}expected the same relevance labels in both runs; those of {len(differ):,} of "
            f"{len(a.rankings):,} inputs differ ({some(differ)}). Say which count with --qrels"
        )


def right_by(part: Labelled, qrels: Qrels) -> dict[str, bool]:
    """Whether each answer is a right one.

    Args:
        part: answers of one run.
        qrels: the right answers of every input.

    Raises:
        DataError: an input has none.
    """
    missing = [name for name in part.answers if not qrels.get(name)]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(part.answers):,} inputs have no label, {missing[0]!r} for "
            "one; expected the right answer of every input (inputs that have no name are "
            "numbered from 0)"
        )
    return {name: qrels[name].get(answer, 0) > 0 for name, answer in part.answers.items()}


def marks(a: Labelled, b: Labelled) -> tuple[dict[str, bool], dict[str, bool]] | None:
    """Whether each answer is right by the runs' own labels, which only tell of answers given there.

    Args:
        a: the reference.
        b: the candidate, over the same inputs.

    Returns:
        Of the reference and of the candidate; None where an answer was marked in neither run, for
        it need not be wrong, and where both gave one answer and do not agree on it.
    """
    found: list[dict[str, bool]] = []
    for own, other in ((a, b), (b, a)):
        right = {}
        for name, answer in own.answers.items():
            grades = [(part.qrels or {}).get(name, {}).get(answer) for part in (own, other)]
            known = [grade for grade in grades if grade is not None]
            if not known:
                return None
            right[name] = known[0] > 0
        found.append(right)
    first, second = found
    if any(first[n] != second[n] for n, answer in a.answers.items() if answer == b.answers[n]):
        return None
    return first, second


def label_notes(labels: Qrels | None, inputs: Sequence[str]) -> list[str]:
    """What to know of labels: one sentence or none.

    Args:
        labels: input to item to grade.
        inputs: of the runs.

    Raises:
        DataError: no input has a label.
    """
    if labels is None:
        return []
    without = sum(not labels.get(name) for name in inputs)
    if without == len(inputs):
        raise DataError(
            f"the relevance labels are of other inputs: they are of {next(iter(labels))!r} and "
            f"{len(labels) - 1:,} more, the runs hold {inputs[0]!r} and {len(inputs) - 1:,} more"
        )
    return [f"{without:,} of {len(inputs):,} inputs have no relevance label"] if without else []


def _relevant(qrels: Qrels, input_id: str) -> dict[str, int]:
    return {item: grade for item, grade in qrels.get(input_id, {}).items() if grade > 0}
