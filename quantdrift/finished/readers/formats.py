"""Which format a finished run has: told by its content, not by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from quantdrift.datasets.beir_files import excerpt, some
from quantdrift.errors import DataError, UnknownNameError
from quantdrift.finished.lm_eval.folder import is_sample, read_lm_eval, sample_files
from quantdrift.finished.readers.contents import FORMATS, Arm, FinishedRun, Format
from quantdrift.finished.readers.files import parse_json, read_text
from quantdrift.finished.readers.json_rankings import is_rankings, means_only, read_json_rankings
from quantdrift.finished.readers.mteb_predictions import META, prediction_files, read_mteb
from quantdrift.finished.readers.own_runs import read_own
from quantdrift.finished.readers.trec import looks_like_trec, read_trec
from quantdrift.runs import RECORD

__all__ = ["read_finished", "recognise"]

_READERS: Mapping[str, Callable[[Path], FinishedRun]] = {
    "trec": read_trec,
    "json": read_json_rankings,
    "mteb": read_mteb,
    "lm-eval": read_lm_eval,
}

_PEEK = 200
_STRING = r'"(?:[^"\\]|\\.)*"'
_RANKINGS = re.compile(rf"\s*\{{\s*{_STRING}\s*:\s*\{{\s*{_STRING}\s*:\s*[-0-9]")
"""How query to document to score begins."""


def read_finished(path: Path, *, format: str | None = None, arm: Arm = "candidate") -> FinishedRun:
    """Read a finished run.

    Args:
        path: a file, or a folder.
        format: one of `FORMATS`; told by the content if not given.
        arm: which arm of a run folder of quantdrift; others have one.

    Raises:
        DataError: it is of no format, or damaged.
        RunError: it is a run folder that cannot be read.
        UnknownNameError: there is no such format.
    """
    if format is not None and format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS, hint=f"({', '.join(FORMATS)})")
    if not path.exists():
        raise DataError(f"{path} does not exist; expected {_expected()}")
    found = recognise(path) if format is None else format
    return read_own(path, arm) if found == "run" else _READERS[found](path)


def recognise(path: Path) -> Format:
    """The format of a file or folder that exists.

    Raises:
        DataError: it is of none.
    """
    if path.is_dir():
        return _of_folder(path)
    if path.name == RECORD:
        return "run"
    text = read_text(path)
    start = text.lstrip()
    if start.startswith("{"):
        return _of_json(path, text)
    line = start.split("\n", 1)[0]
    if looks_like_trec(line):
        return "trec"
    found = excerpt(line) if line.strip() else "nothing"
    raise DataError(f"{path}: expected {_expected()}; it begins with {found}")


def _of_folder(path: Path) -> Format:
    if (path / RECORD).is_file():
        return "run"
    kinds = {"mteb": prediction_files(path), "lm-eval": sample_files(path)}
    there = [name for name, files in kinds.items() if files]
    if len(there) == 1:
        return cast("Format", there[0])
    if there:
        raise DataError(f"{path} holds {' and '.join(there)} files; say which with --format")
    names = some(sorted(entry.name for entry in path.iterdir())) or "nothing"
    raise DataError(f"{path}: expected {_expected()}; the folder holds {names}")


def _of_json(path: Path, text: str) -> Format:
    # big files are parsed once, by their reader
    if META in text[:_PEEK]:
        return "mteb"
    if _RANKINGS.match(text):
        return "json"
    first = _first_line(text)
    if is_sample(first):
        return "lm-eval"
    content = parse_json(text, path)
    if META in content:
        return "mteb"
    if "configs" in content and "results" in content:
        raise DataError(
            f"{path} holds lm-eval's results, not its samples; give the folder, with the "
            "samples_*.jsonl that --log_samples writes"
        )
    if is_rankings(content) or means_only(content):
        return "json"
    raise DataError(f"{path}: expected {_expected()}; its keys are {some(content) or 'none'}")


def _first_line(text: str) -> object:
    try:
        return parse_json(text.lstrip().split("\n", 1)[0], "")
    except DataError:
        return None


def _expected() -> str:
    *most, last = FORMATS.values()
    return f"{'; '.join(most)}; or {last}"
