"""Which class of a model a label of the data means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quantdrift.datasets.retrieval import some


def told_apart(classes: Sequence[str]) -> tuple[str, ...]:
    """Names of classes that differ: those that occur twice get their position.

    >>> told_apart(["crane", "heron", "crane"])
    ('crane (0)', 'heron', 'crane (2)')
    """
    times = Counter(classes)
    return tuple(f"{name} ({place})" if times[name] > 1 else name for place, name in enumerate(classes))


def match_labels(
    labels: Sequence[str], classes: Sequence[str], *, positions: bool = True
) -> tuple[tuple[str, ...] | None, str | None]:
    """The class of every label: by name, whatever its case; else by position.

    Labels that are names of classes win over positions, so that a model whose classes are called "0" and "1" is read
    by these names.

    >>> match_labels(["positive", "negative"], ["NEGATIVE", "POSITIVE"])
    (('POSITIVE', 'NEGATIVE'), None)
    >>> match_labels(["1", "0"], ["LABEL_0", "LABEL_1"])
    (('LABEL_1', 'LABEL_0'), None)
    """
    distinct = list(dict.fromkeys(labels))
    exact, folded = set(classes), {name.casefold(): name for name in reversed(classes)}
    means = {
        label: label if label in exact else folded[label.casefold()]
        for label in distinct
        if label in exact or label.casefold() in folded
    }
    numbered = positions and all(map(_is_number, distinct))
    if 0 < len(means) < len(distinct) and numbered and all(map(_is_number, classes)):
        return None, (
            "accuracy is not measured: labels and classes are whole numbers of which only some are "
            "the same, so they may be counted from another start; the labels are "
            f"{some(distinct)}, the classes {some(classes)}"
        )
    if not means and numbered and all(int(label) < len(classes) for label in distinct):
        means = {label: classes[int(label)] for label in distinct}
    if not means:
        return None, (
            f"labels are none of the model's classes: accuracy is not measured; the labels are "
            f"{some(distinct)}, the classes {some(classes)}"
        )
    unknown = [label for label in distinct if label not in means]
    note = None
    if unknown:
        n = sum(label not in means for label in labels)
        inputs = "input has a label" if n == 1 else "inputs have labels"
        note = f"{n:,} {inputs} that the model has no class for, which counts as wrong: "
        note += some(unknown)
    return tuple(means.get(label, label) for label in labels), note


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()
