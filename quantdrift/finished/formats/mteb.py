"""Predictions of searches that mteb writes: TASK_predictions.json, by subset and split."""

from quantdrift.base.errors import DataError
from quantdrift.finished.contents import FinishedRun, Part, digest, parse_json, read_text
from quantdrift.finished.formats import Format, Source
from quantdrift.finished.formats.json_rankings import is_ranking

_META = "mteb_model_meta"
_SUFFIX = "_predictions.json"


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
                if not (isinstance(predictions, dict) and predictions and all(map(is_ranking, predictions.values()))):
                    raise DataError(
                        f"{file}, {subset}/{split}: expected rankings of documents. For other tasks mteb "
                        "stores no ids of inputs; give only the files of searches"
                    )
                parts[f"{task}{subset}/{split}"] = Part(kind="rankings", content=predictions)
    if not parts:
        raise DataError(f"{path} holds no predictions; run mteb with --prediction-folder")
    name = models.pop() if len(models) == 1 else path.name
    data = None if path.is_dir() else path.name.removesuffix(_SUFFIX)
    return FinishedRun(path=path, format="mteb", name=name, digest=digest(*texts), parts=parts, data=data)


def _accepts(source: Source) -> bool:
    if source.path.is_dir():
        return any(source.path.glob(f"*{_SUFFIX}"))
    return isinstance(source.first, dict) and _META in source.first


FORMAT = Format(
    expected="predictions of mteb (TASK_predictions.json, or a folder of them)", accepts=_accepts, read=_read, place=20
)
