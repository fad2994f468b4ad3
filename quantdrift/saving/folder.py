"""A candidate's folder: a model as its libraries read it, and a `scheme.json` that says what it is.

It is written beside its place and moved there in one step when it is complete; `scheme.json` is
written last. What was interrupted never looks finished.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from quantdrift.errors import RunError

__all__ = [
    "ONNX_MODEL",
    "RECORD",
    "ModelFormat",
    "check_place",
    "files_of",
    "is_onnx_folder",
    "read_record",
    "write_folder",
]

FORMAT = "quantdrift-candidate"
FORMAT_VERSION = 1
RECORD = "scheme.json"
ONNX_MODEL = "onnx/model.onnx"
"""Where sentence-transformers looks for it, too."""

ModelFormat = Literal["safetensors", "onnx"]


def write_folder(path: Path, fill: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Write a candidate's folder, replacing an earlier one at that place.

    Args:
        path: folder to write; may hold an earlier candidate, nothing else.
        fill: writes the model into the folder it is given; returns the record of `scheme.json` as
            JSON values, without `format`, `format_version` and `files`, which are added.

    Returns:
        The whole record.

    Raises:
        RunError: the place holds something else, or it cannot be written (no space, no permission).
            Nothing is left behind.
    """
    path = path.absolute()
    check_place(path)
    with _complaints(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))
        try:
            # a model library asked to save names its folder in what it writes or logs
            inside = partial / path.name
            inside.mkdir()
            record = dict(fill(inside))
            full = {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                **record,
                "files": files_of(inside),
            }
            text = json.dumps(full, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
            (inside / RECORD).write_text(text, encoding="utf-8")
            _move(inside, path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return full


def check_place(path: Path) -> None:
    """Refuse a place that holds something other than a candidate, before hours go into one.

    Raises:
        RunError: it is a file, or a folder with files that no earlier candidate consists of.
    """
    if not path.exists():
        return
    if path.is_dir():
        known = _known_files(path / RECORD)
        others = sorted(name for name in files_of(path) if name not in known)
    else:
        others = [path.name]
    if others:
        raise RunError(
            f"{path} holds something that is not a saved candidate: {', '.join(others[:4])}; "
            "expected a new folder or an earlier candidate to replace. Choose another with --out"
        )


def files_of(folder: Path) -> dict[str, int]:
    """All files below a folder: path in it, with forward slashes, to its size in bytes."""
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def is_onnx_folder(folder: Path) -> bool:
    """Whether a candidate lies there that onnxruntime runs; false for anything else."""
    record = _content(folder / RECORD)
    return record is not None and record.get("model_format") == "onnx"


def read_record(folder: Path) -> dict[str, Any]:
    """What `scheme.json` of a candidate's folder says.

    Raises:
        RunError: there is none, or this version cannot read it.
    """
    record = _content(folder / RECORD)
    if record is None:
        raise RunError(
            f"expected a candidate's folder (with {RECORD}), got {folder}. "
            "One is written by: quantdrift quantize SPEC -o FOLDER"
        )
    if record.get("format_version") != FORMAT_VERSION:
        raise RunError(
            f"{folder / RECORD} is of format version {record.get('format_version')}; this "
            f"quantdrift reads version {FORMAT_VERSION}"
        )
    return record


def _content(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(content, dict) and content.get("format") == FORMAT
    return content if ours else None


def _known_files(record: Path) -> set[str]:
    content = _content(record)
    if content is None:
        return set()
    return {RECORD, *content.get("files", {})}


def _move(partial: Path, path: Path) -> None:
    """Put `partial` in place of `path`; an earlier candidate stays whole until the last step."""
    if path.is_dir() and any(path.iterdir()):
        earlier = Path(tempfile.mkdtemp(prefix=f".{path.name}.earlier-", dir=path.parent))
        try:
            os.replace(path, earlier / path.name)
            os.replace(partial, path)
        except BaseException:  # Ctrl-C too
            if not path.exists():
                os.replace(earlier / path.name, path)
            raise
        finally:
            shutil.rmtree(earlier, ignore_errors=True)
        return
    if path.is_dir():
        path.rmdir()
    os.replace(partial, path)


@contextmanager
def _complaints(path: Path) -> Iterator[None]:
    """Turn what the disk says into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise RunError(
                f"no space left to write the candidate to {path}; nothing was left behind. Free "
                "some space or choose another disk with --out"
            ) from error
        raise RunError(f"the candidate cannot be written to {path}: {error}") from error
