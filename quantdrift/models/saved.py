"""A candidate's folder: a model as its libraries read it, and a `scheme.json` that says what it is.

It is written as a whole; `scheme.json` is written last. What was interrupted never looks finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from quantdrift.errors import RunError, UnsupportedError
from quantdrift.records import check_writable, read_json, whole_folder
from quantdrift.spec import Scheme

FORMAT = "quantdrift-candidate"
FORMAT_VERSION = 1
RECORD = "scheme.json"
ONNX_MODEL = "onnx/model.onnx"
"""Where sentence-transformers looks for it, too."""

_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth")
_GRAPH_FOLDER = "onnx/"
_KINDS: Mapping[str, type[str] | type[dict[str, Any]]] = {
    **dict.fromkeys(("spec", "model_format"), str),
    **dict.fromkeys(("bits_per_weight", "base_model", "files", "weights", "onnx"), dict),
}
"""Entries of a record that are read, and what they are."""

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
    with whole_folder(path, what="the candidate") as folder:
        record = dict(fill(folder))
        full = {"format": FORMAT, "format_version": FORMAT_VERSION, **record, "files": files_of(folder)}
        text = json.dumps(full, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        (folder / RECORD).write_text(text, encoding="utf-8")
    return full


def check_place(path: Path) -> None:
    """Refuse a place that holds something other than a candidate, before hours go into one.

    Raises:
        RunError: it is a file, or a folder with files that no earlier candidate consists of, or
            it cannot be written to.
    """
    check_writable(path, what="the candidate")
    if not path.exists():
        return
    earlier = _content(path / RECORD)
    if not path.is_dir():
        others = [path.name]
    elif earlier is None:
        others = sorted(entry.name for entry in path.iterdir())
    else:
        files = earlier.get("files")
        known = {RECORD, *(files if isinstance(files, dict) else ())}
        others = sorted(name for name in files_of(path) if name not in known)
    if others:
        raise RunError(
            f"{path} holds something that is not a saved candidate: {', '.join(others[:4])}; "
            "expected a new folder or an earlier candidate to replace. Choose another with --out"
        )


def check_savable(scheme: Scheme) -> None:
    """Refuse a scheme that a folder of weights cannot carry: loaded, it would be another model.

    Raises:
        UnsupportedError: says what of the scheme, and what to do.
    """
    if scheme.activation_bits is not None:
        raise UnsupportedError(
            f"{scheme} quantizes activations (A{scheme.activation_bits}), which happens while a "
            "model runs: no file of weights can hold it, and what loads it would be another model "
            f"than was measured. Save the weights alone, without A{scheme.activation_bits}"
        )
    if scheme.query_only:
        raise UnsupportedError(
            f"{scheme} says that queries alone meet the candidate (+query); the saved model is the "
            "same without it. Leave +query out, and use the saved model for queries only"
        )


def files_of(folder: Path) -> dict[str, int]:
    """All files below a folder: path in it, with forward slashes, to its size in bytes."""
    return {
        file.relative_to(folder).as_posix(): file.lstat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_symlink() or not file.is_dir()
    }


def digests_of(folder: Path) -> dict[str, str]:
    """Digests of the files below a folder that hold weights, by path; 32 hex digits each.

    The graph of an ONNX folder is not among them, it has a digest of its own.
    """
    return {
        name: _digest(folder / name)
        for name in files_of(folder)
        if name.endswith(_WEIGHT_FILES) and not name.startswith(_GRAPH_FOLDER)
    }


def check_weights(folder: Path, record: Mapping[str, Any]) -> None:
    """Refuse a candidate whose weights are not the ones that were written.

    Args:
        folder: of the candidate.
        record: its `scheme.json`.

    Raises:
        RunError: names a file that was changed, added or removed.
    """
    wanted = record.get("weights")
    if wanted is None:  # not recorded by the version that wrote it
        return
    found = digests_of(folder)
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            raise RunError(
                f"{folder / name} is not what {RECORD} was written for: the file was changed, "
                "added or removed, and what is recorded of the quantized model does not hold for "
                f"it. Write the candidate again, or remove {RECORD} to use it as any other model"
            )


def is_candidate_folder(folder: Path) -> bool:
    """Whether what lies there is a saved candidate, of any format and version."""
    return _content(folder / RECORD) is not None


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
    if not _is_whole(record):
        raise RunError(
            f"{folder / RECORD} is damaged: an entry is not of the kind that quantdrift writes. "
            "Write the candidate again with: quantdrift quantize SPEC -o FOLDER"
        )
    return record


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether what is read of a record is of the kinds that it is written in."""
    layers = record.get("layers", [])
    kinds_fit = isinstance(layers, list) and all(
        isinstance(record.get(key, kind()), kind) for key, kind in _KINDS.items()
    )
    return (
        kinds_fit
        and all(isinstance(bits, int | float) for bits in record.get("bits_per_weight", {}).values())
        and all(
            isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("stored", ""), str)
            for one in layers
        )
    )


def _digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if not file.is_file():  # a pipe or a device may never end
        return ""
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _content(path: Path) -> dict[str, Any] | None:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    ours = isinstance(content, dict) and content.get("format") == FORMAT
    return content if ours else None
