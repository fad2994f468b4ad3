"""The samples that lm-eval logs: samples_TASK_DATE.jsonl, beside a results_DATE.json.

`--log_samples` writes one line per document and filter. The results file of the same date says how the tasks were
set; where it is missing, the hashes in the samples have to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantdrift.datasets.retrieval import excerpt, some
from quantdrift.errors import DataError
from quantdrift.finished.contents import FinishedRun, Part, digest, parse_json, read_text
from quantdrift.finished.lm_eval_evidence import HASHES

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.jsonl(?:\.gz)?")
_KEYS = frozenset({"doc_id", "doc", "target", "arguments", "filtered_resps"})
_DECIDE_ANSWERS = (
    "output_type", "num_fewshot", "repeats", "generation_kwargs", "filter_list", "metric_list", "description",
    "fewshot_delimiter", "target_delimiter", "test_split",
)  # fmt: skip
"""Of a task's configuration what is no model's and no machine's; that the documents and prompts are
the same is told by their hashes."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def sample_files(folder: Path) -> list[Path]:
    """The files of samples in a folder and in those right below it (lm-eval makes one per model)."""
    found = [*folder.glob("samples_*.jsonl*"), *folder.glob("*/samples_*.jsonl*")]
    return sorted(file for file in found if _NAME.fullmatch(file.name))


def is_sample(content: Any) -> bool:
    """Whether a JSON value is a sample of lm-eval."""
    return (
        isinstance(content, dict)
        and content.keys() >= _KEYS
        and all(isinstance(content.get(name), str | int | None) for name in ("doc_id", "filter", *HASHES))
    )


def read_lm_eval(path: Path) -> FinishedRun:
    """Read one file of samples, or those of one model in a folder.

    Of a task that was logged several times, the latest samples count.
    """
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
    results = {date: _results(files[0].parent, date) for date, _ in latest.values()}
    models = {str(found["model_name"]) for found in results.values() if found.get("model_name")}
    return FinishedRun(
        path=path,
        format="lm-eval",
        name=models.pop() if len(models) == 1 else path.name,
        digest=digest(*(text for _, text in sorted(texts.items()))),
        parts={task: Part(kind="samples", content=_samples(text, latest[task][1])) for task, text in texts.items()},
        settings={task: _settings(results[date], task) for task, (date, _) in latest.items()},
    )


def _samples(text: str, file: Path) -> list[Mapping[str, Any]]:
    samples = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            sample = parse_json(line, f"{file}, line {number}")
            if not is_sample(sample):
                raise DataError(
                    f"{file}, line {number}: expected a sample as lm_eval --log_samples writes it, with "
                    f"{', '.join(sorted(_KEYS))}; got {excerpt(line)}"
                )
            samples.append(sample)
    if not samples:
        raise DataError(f"{file} is empty; expected a sample a line")
    return samples


def _results(folder: Path, date: str) -> Mapping[str, Any]:
    """The results of the same evaluation, empty where they are not there."""
    found = sorted(folder.glob(f"*_{date}.json")) if date else []
    content = parse_json(read_text(found[0]), found[0]) if found else {}
    if not isinstance(content, dict) or "configs" not in content:
        return {}
    parts = [content.get(name, {}) for name in ("configs", "versions", "config")]
    configs = parts[0].values() if isinstance(parts[0], dict) else ()
    if not all(isinstance(part, dict) for part in (*parts, *configs)):
        raise DataError(f"{found[0]}: expected configs, versions and config as lm-eval writes them, in objects")
    return content


def _settings(found: Mapping[str, Any], task: str) -> dict[str, Any]:
    """How a task was set; empty where the results do not have it."""
    config = found.get("configs", {}).get(task)
    if config is None:
        return {}
    return {
        **{key: _plain(config.get(key)) for key in _DECIDE_ANSWERS},
        "version": found.get("versions", {}).get(task),
        "gen_kwargs": _plain(found.get("config", {}).get("gen_kwargs")),
        "system instruction": found.get("system_instruction_sha"),
    }


def _plain(value: Any) -> Any:
    """Without the addresses of functions, which are others in every process."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _ADDRESS.sub("", value) if isinstance(value, str) else value
