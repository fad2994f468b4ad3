"""The folder of a saved candidate: a model as its libraries read it, and a `scheme.json` that describes it.

A folder is put in place as a whole, so an interrupted one never looks finished.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.base.records import DIGEST, Amount, Record, check_writable, file_digest, whole_folder, with_checksum
from quantdrift.kinds.stage import STAGES
from quantdrift.scheme import Scheme

RECORD = "scheme.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_SETTINGS = (".json", ".txt", ".model")
"""Suffixes of the settings of network, tokenizer, pooling and prompts."""


class _Layer(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str


class Candidate(Record):
    """The entries of `scheme.json` that are read."""

    model_config = ConfigDict(extra="ignore")
    FORMAT, VERSION = "quantdrift-candidate", 1
    WHAT, MAKE = "a saved candidate", "quantdrift quantize SPEC -o FOLDER"

    spec: str
    bits_per_weight: dict[str, Amount]
    base_model: dict[str, Any] = Field(default_factory=dict)
    files: dict[str, Any] = Field(default_factory=dict)
    weights: dict[str, Any] = Field(default_factory=dict)
    layers: list[_Layer] = Field(default_factory=list)

    @classmethod
    def has_checksum(cls, content: Mapping[str, Any]) -> bool:
        """Say whether there is a checksum: an earlier version wrote none, and whoever edits the file may remove it."""
        return DIGEST in content


def write_folder(path: Path, fill: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Write a candidate's folder in place of an earlier one; return the whole record."""
    path = path.absolute()
    check_place(path)
    with whole_folder(path, what="the candidate") as folder:
        record = dict(fill(folder))
        full = with_checksum({**Candidate.head(), **record, "files": files_of(folder)})
        text = json.dumps(full, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        (folder / RECORD).write_text(text, encoding="utf-8")
    return full


def check_place(path: Path) -> None:
    """Refuse a folder that holds anything but a saved candidate, before hours go into a new one."""
    check_writable(path, what="the candidate")
    files = (Candidate.peek(path / RECORD) or {}).get("files")
    written = {RECORD, *files} if isinstance(files, dict) else set()
    if path.is_dir():
        names = list(files_of(path)) if written else [entry.name for entry in path.iterdir()]
    else:
        names = [path.name] if path.exists() else []
    others = sorted(set(names) - written)
    if others:
        raise RunError(
            f"{path} holds something that is not a saved candidate: {', '.join(others[:4])}; "
            "expected a new folder or an earlier candidate to replace. Choose another with --out"
        )


def check_savable(scheme: Scheme) -> None:
    """Refuse a scheme that a folder of weights cannot hold: the loaded model would be another one."""
    for stage in (stage for stage in STAGES.values() if stage.kind != "layers" and stage.in_(scheme)):
        options = ", ".join(f"+{key}=" for key, _ in scheme.options if key in stage.options)
        if options and not stage.can_save:
            raise UnsupportedError(
                f"{scheme}: {options} is about {stage.what}, which no file of weights can hold; leave it out"
            )
    if scheme.activation_bits is not None or scheme.query_only:
        option = "+query" if scheme.query_only else f"A{scheme.activation_bits}"
        raise UnsupportedError(
            f"{scheme}: {option} is about how a model runs, which no file of weights can hold: what loads it would be "
            f"another model than was measured. Leave {option} out"
        )


def files_of(folder: Path) -> dict[str, int]:
    """Map all files below a folder, by path with forward slashes, to their sizes in bytes."""
    return {
        file.relative_to(folder).as_posix(): file.lstat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_symlink() or not file.is_dir()
    }


def digests_of(folder: Path) -> dict[str, str]:
    """Compute the digests of the files that decide the outputs of a model, by path; 32 hex digits each."""
    names = (name for name in files_of(folder) if name != RECORD)
    return {name: _digest(folder / name) for name in names if name.endswith((*_WEIGHTS, *_SETTINGS))}


def _digest(file: Path) -> str:
    try:
        return file_digest(file, size=16)
    except (OSError, ValueError):  # a pipe or a device might never end
        return ""


def check_weights(folder: Path, record: Mapping[str, Any]) -> None:
    """Refuse a candidate whose weights or settings are not those that were written with its `scheme.json`."""
    wanted = record.get("weights")
    if wanted is None:  # not recorded by the version that wrote it
        return
    digests = digests_of(folder)
    for name in sorted({name for name in digests if name.endswith(_WEIGHTS)} | {*wanted}):
        if digests.get(name) != wanted.get(name):
            raise RunError(
                f"{folder / name} is not what {RECORD} was written for: the file was changed, "
                "added or removed, and what is recorded of the quantized model does not hold for "
                f"it. Write the candidate again, or remove {RECORD} to use it as any other model"
            )


def is_candidate_folder(folder: Path) -> bool:
    """Say whether a folder is a saved candidate of any version."""
    return Candidate.peek(folder / RECORD) is not None


def read_record(folder: Path) -> dict[str, Any]:
    """Return the content of `scheme.json` in a candidate's folder."""
    record = Candidate.read_content(folder / RECORD)
    Candidate.checked(record, folder / RECORD)
    return record
