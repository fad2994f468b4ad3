"""The samples that lm-eval logs, samples_TASK_DATE.jsonl: one line per document and filter."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantdrift.base.errors import DataError
from quantdrift.base.text import some
from quantdrift.data.retrieval import excerpt
from quantdrift.finished.contents import FinishedRun, Part, digest, parse_json, read_text
from quantdrift.finished.formats import Format, Source
from quantdrift.finished.lm_eval_evidence import HASHES

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.jsonl(?:\.gz)?")
_KEYS = frozenset({"doc_id", "doc", "target", "arguments", "filtered_resps"})


def sample_files(folder: Path) -> list[Path]:
    """The files of samples in a folder and in its subfolders (lm-eval makes one per model)."""
    files = [*folder.glob("samples_*.jsonl*"), *folder.glob("*/samples_*.jsonl*")]
    return sorted(file for file in files if _NAME.fullmatch(file.name))


def _is_sample(content: Any) -> bool:
    """Whether a JSON value is a sample of lm-eval."""
    return (
        isinstance(content, dict)
        and content.keys() >= _KEYS
        and all(isinstance(content.get(name), str | int | None) for name in ("doc_id", "filter", *HASHES))
    )


def read_lm_eval(source: Source) -> FinishedRun:
    """Read one file of samples, or all samples of one model in a folder.

    If a task was logged several times, the latest samples count.
    """
    path = source.path
    files = sample_files(path) if path.is_dir() else [path]
    homes = sorted({file.parent.name for file in files})
    if not files:
        raise DataError(f"{path} holds no samples_*.jsonl; run lm_eval with --log_samples")
    if len(homes) > 1:
        raise DataError(f"{path} holds the samples of several models, in {some(homes)}; give the folder of one")
    latest: dict[str, tuple[str, Path]] = {}
    for file in files:
        named = _NAME.fullmatch(file.name)
        task, date = (named["task"], named["date"]) if named else (file.name.split(".")[0], "")
        latest[task] = max(latest.get(task, (date, file)), (date, file))
    texts = {task: read_text(file) for task, (_, file) in latest.items()}
    return FinishedRun(
        path=path,
        format="lm-eval",
        name=files[0].parent.name if path.is_dir() else path.name,
        digest=digest(*(text for _, text in sorted(texts.items()))),
        parts={task: Part(kind="samples", content=_samples(text, latest[task][1])) for task, text in texts.items()},
    )


def _samples(text: str, file: Path) -> dict[int, list[Mapping[str, Any]]]:
    """The samples of each document."""
    samples: dict[int, list[Mapping[str, Any]]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            sample = parse_json(line, f"{file}, line {number}")
            if not _is_sample(sample):
                raise DataError(
                    f"{file}, line {number}: expected a sample as lm_eval --log_samples writes it, with "
                    f"{', '.join(sorted(_KEYS))}; got {excerpt(line)}"
                )
            samples.setdefault(sample["doc_id"], []).append(sample)
    if not samples:
        raise DataError(f"{file} is empty; expected a sample a line")
    return samples


def _accepts(source: Source) -> bool:
    return bool(sample_files(source.path)) if source.path.is_dir() else _is_sample(source.first)


FORMAT = Format(
    expected="samples of lm-eval (samples_TASK_DATE.jsonl, or the folder --log_samples filled)",
    accepts=_accepts,
    read=read_lm_eval,
    place=30,
)
