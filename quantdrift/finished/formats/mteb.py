"""Predictions that mteb writes: TASK_predictions.json, by subset and split."""

import json
from collections.abc import Iterator
from typing import Any

from quantdrift.base.errors import DataError
from quantdrift.finished.contents import FinishedRun, Part, digest, number, parse_json, read_text
from quantdrift.finished.formats import Format, Source
from quantdrift.finished.formats.json_rankings import is_ranking

_META = "mteb_model_meta"
_SUFFIX = "_predictions.json"

_ABOUT_LABELS = (
    "mteb fits a classifier for each model and stores no ids: a changed label is the work of both, and that the inputs "
    "are the same is known from their number. Older clustering tasks write numbers of clusters, which mean nothing here"
)


def _read(source: Source) -> FinishedRun:
    """Read a file of predictions, or all such files in a folder."""
    path = source.path
    files = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]
    parts: dict[str, Part] = {}
    texts = [read_text(file) for file in files]
    models: set[str] = set()
    for file, text in zip(files, texts, strict=True):
        content = parse_json(text, file)
        meta = content.pop(_META, {}) if isinstance(content, dict) else {}
        if not isinstance(content, dict) or not all(isinstance(splits, dict) for splits in content.values()):
            raise DataError(f"{file}: expected the predictions that mteb writes, an object of subsets and their splits")
        if isinstance(meta, dict) and meta.get("model_name"):
            models.add(str(meta["model_name"]))
        task = f"{file.name.removesuffix(_SUFFIX)}/" if path.is_dir() else ""
        for subset, splits in content.items():
            for split, predictions in splits.items():
                for more, part in _predicted(predictions, f"{file}, {subset}/{split}"):
                    parts[f"{task}{subset}/{split}{more}"] = part
    if not parts:
        raise DataError(f"{path} holds no predictions; run mteb with --prediction-folder")
    return FinishedRun(
        path=path,
        format="mteb",
        name=models.pop() if len(models) == 1 else path.name,
        digest=digest(*texts),
        parts=parts,
        data=None if path.is_dir() else path.name.removesuffix(_SUFFIX),
        notes=(_ABOUT_LABELS,) if any(part.kind == "answers" for part in parts.values()) else (),
    )


def _predicted(predictions: Any, where: str) -> Iterator[tuple[str, Part]]:
    """Yield what one split holds: an addition to its name, and the part."""
    rows = predictions if isinstance(predictions, list) else []
    if isinstance(predictions, dict) and predictions and all(map(is_ranking, predictions.values())):
        yield "", Part(kind="rankings", content=predictions)
    elif isinstance(predictions, dict) and predictions and all(map(_is_neighbours, predictions.values())):
        for pair, neighbours in predictions.items():
            nearest = {str(n): {str(row["corpus_id"]): row["score"]} for n, row in enumerate(neighbours)}
            more = f"/{pair}" if len(predictions) > 1 else ""
            yield more, Part(kind="rankings", content=nearest, depth=1, numbered=True)
    elif rows and all(isinstance(row, list) and row and not any(map(_is_float, row)) for row in rows):
        for experiment, row in enumerate(rows, start=1):
            answers = {str(n): label if isinstance(label, str) else json.dumps(label) for n, label in enumerate(row)}
            yield f"#{experiment}" if len(rows) > 1 else "", Part(kind="answers", content=answers, numbered=True)
    else:
        raise DataError(
            f"{where} is of a kind of task whose inputs have no answer that could change (scores of pairs of texts, or "
            "of classes, or a regression). quantdrift diff reads rankings, labels and neighbours"
        )


def _is_float(value: Any) -> bool:
    return isinstance(value, float | dict) or (isinstance(value, list) and any(map(_is_float, value)))


def _is_neighbours(value: Any) -> bool:
    """Whether it is what bitext mining keeps: the nearest neighbour of every sentence."""
    rows = value if isinstance(value, list) and value else [None]
    return all(isinstance(row, dict) and "corpus_id" in row and number(row.get("score")) for row in rows)


def _accepts(source: Source) -> bool:
    if source.path.is_dir():
        return any(source.path.glob(f"*{_SUFFIX}"))
    return isinstance(source.first, dict) and _META in source.first


FORMAT = Format(
    expected="predictions of mteb (TASK_predictions.json, or a folder of them)", accepts=_accepts, read=_read, place=20
)
