"""What mteb writes with a prediction folder: TASK_predictions.json, by subset and split.

Which kind of task wrote it is not in the file, so the shape of what it holds has to tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quantdrift.errors import DataError
from quantdrift.finished.readers.contents import FinishedRun, Labelled, Part, Ranked
from quantdrift.finished.readers.files import digest, number, parse_json, read_text
from quantdrift.finished.readers.json_rankings import as_rankings, is_rankings

__all__ = ["META", "SUFFIX", "prediction_files", "read_mteb"]

META = "mteb_model_meta"
SUFFIX = "_predictions.json"

_REFIT = (
    "each arm's classifier was fitted anew, on the embeddings of that arm; a changed label is the "
    "work of both"
)
_POSITIONS = (
    "mteb stores no ids of labelled inputs: that the {n:,} inputs are the same ones is known from "
    "their number only"
)
_CLUSTERS = (
    "taken for labels of a classifier; the older clustering tasks of mteb write numbers of "
    "clusters in the same form, which mean something else in either file"
)
_NEEDS = "quantdrift diff reads rankings, labels, neighbours and zero-shot scores"


def prediction_files(folder: Path) -> list[Path]:
    """The files of predictions in a folder, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_mteb(path: Path) -> FinishedRun:
    """Read a file of predictions, or all such files in a folder.

    Returns:
        The run; its parts are named SUBSET/SPLIT, TASK/SUBSET/SPLIT in a folder.

    Raises:
        DataError: it is not such a file, or of a kind of task whose inputs have no answer.
    """
    files = prediction_files(path) if path.is_dir() else [path]
    parts: dict[str, Part] = {}
    notes: list[str] = []
    models: set[str] = set()
    texts: list[str] = []
    for file in files:
        text = read_text(file)
        content = parse_json(text, file)
        texts.append(text)
        if not isinstance(content, dict):
            raise DataError(f"{file}: expected the predictions that mteb writes, a JSON object")
        meta = content.pop(META, {})
        if isinstance(meta, dict) and meta.get("model_name"):
            models.add(str(meta["model_name"]))
        task = f"{file.name.removesuffix(SUFFIX)}/" if path.is_dir() else ""
        for subset, splits in content.items():
            if not isinstance(splits, dict):
                raise DataError(f"{file}: expected the splits of subset {subset!r}")
            for split, predictions in splits.items():
                name = f"{subset}/{split}"
                for more, part, told in _parts(predictions, f"{file}, {name}"):
                    parts[f"{task}{name}{more}"] = part
                    notes += told
    if not parts:
        raise DataError(f"{path} holds no predictions; run mteb with --prediction-folder")
    return FinishedRun(
        path=path,
        format="mteb",
        name=models.pop() if len(models) == 1 else path.name,
        digest=digest(*texts),
        parts=parts,
        data=None if path.is_dir() else path.name.removesuffix(SUFFIX),
        notes=tuple(dict.fromkeys(notes)),
    )


def _parts(predictions: Any, where: str) -> Iterator[tuple[str, Part, tuple[str, ...]]]:
    """What one split holds: an addition to its name, the part, what to know."""
    if isinstance(predictions, dict):
        if is_rankings(predictions):
            yield "", Ranked(rankings=as_rankings(predictions, where)), ()
            return
        if predictions and all(_neighbours(found) for found in predictions.values()):
            for pair, found in predictions.items():
                more = f"/{pair}" if len(predictions) > 1 else ""
                yield more, Ranked(rankings=_nearest(found), depth=1, numbered=True), ()
            return
        if predictions and all(_numbers(found) for found in predictions.values()):
            raise DataError(
                f"{where} holds one score for every pair of texts; no input of such a task has an "
                f"answer that could change. {_NEEDS}"
            )
        raise DataError(f"{where} is of a kind of task that has no answers. {_NEEDS}")
    rows = predictions if isinstance(predictions, list) else []
    if not (rows and all(isinstance(row, list) for row in rows)):
        raise DataError(f"{where} is of a kind of task that has no answers. {_NEEDS}")
    yield from _lists(predictions, where)


def _lists(rows: list[list[Any]], where: str) -> Iterator[tuple[str, Part, tuple[str, ...]]]:
    """Labels by experiment and input, or scores by input and class."""
    values = [value for row in rows for value in row]
    if values and all(isinstance(value, float) for value in values):
        widths = {len(row) for row in rows}
        # a regression has ten experiments of more inputs than that
        if len(widths) > 1 or len(rows) <= max(widths) or max(widths) < 2:  # noqa: PLR2004 -- a choice
            raise DataError(
                f"{where} holds lists of numbers: values of a regression, which have no answer "
                "that could change, or zero-shot scores of fewer inputs than classes, which look "
                f"the same. {_NEEDS}"
            )
        rankings = {
            str(n): {str(each): score for each, score in enumerate(row)}
            for n, row in enumerate(rows)
        }
        yield (
            "",
            Ranked(rankings=rankings, complete=True, numbered=True),
            ("taken for zero-shot scores; the answer of an input is the number of its class",),
        )
        return
    labels = [[_label(value) for value in row] for row in rows]
    if not values or any(label is None for row in labels for label in row):
        raise DataError(f"{where} is of a kind of task that has no answers. {_NEEDS}")
    told = (_REFIT, _CLUSTERS, _POSITIONS.format(n=len(labels[0])))
    for experiment, row in enumerate(labels):
        more = f"#{experiment + 1}" if len(labels) > 1 else ""
        answers = {str(n): str(label) for n, label in enumerate(row)}
        yield more, Labelled(answers=answers, numbered=True), told


def _label(value: Any) -> str | None:
    """A label; of several labels per input, the numbers of those that hold."""
    if isinstance(value, (str, bool, int)):
        return str(value)
    if isinstance(value, list) and all(each in (0, 1) for each in value):
        return "{" + ", ".join(str(n) for n, each in enumerate(value) if each) + "}"
    return None


def _neighbours(found: Any) -> bool:
    return (
        isinstance(found, list)
        and bool(found)
        and all(
            isinstance(each, dict) and "corpus_id" in each and number(each.get("score"))
            for each in found
        )
    )


def _nearest(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The one neighbour that mteb keeps of every sentence."""
    return {str(n): {str(each["corpus_id"]): each["score"]} for n, each in enumerate(found)}


def _numbers(found: Any) -> bool:
    return isinstance(found, list) and all(number(each) for each in found)
