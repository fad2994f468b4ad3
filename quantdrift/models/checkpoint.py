"""What kind of checkpoint a candidate is: where it lies, which method quantized it, what it needs.

Nothing is loaded here, so that a missing library or a wrong folder is known before hours go into
the reference.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantdrift.errors import MissingExtraError, RunError, UnsupportedError
from quantdrift.models.quantization_config import method_of, nominal_bits, shortened
from quantdrift.models.resolve import resolve
from quantdrift.records import read_json
from quantdrift.saving.folder import RECORD, is_candidate_folder, read_record

__all__ = ["NEEDED", "Checkpoint", "find_checkpoint", "refuse_missing"]

NEEDED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "awq": (("gptqmodel", "accelerate"), "gptq"),
    "bitsandbytes": (("bitsandbytes", "accelerate"), "bitsandbytes"),
    "compressed-tensors": (("compressed-tensors",), "compressed-tensors"),
    "gptq": (("gptqmodel", "optimum"), "optimum"),
    "torchao": (("torchao",), "torchao"),
}
"""Method to the packages that transformers 5 reads its checkpoints with, and the extra for them."""

_GGUF_ON_HUB = re.compile(r"([^/:\s]+/[^/:\s]+):(.+\.gguf)", re.IGNORECASE)

_OTHER_WEIGHTS = ["*.onnx", "onnx/*", "openvino/*", "*.h5", "*.msgpack", "*.ot", "*.gguf"]
_OLD_WEIGHTS = ["*.bin", "*.pt", "*.pth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model as it lies on disk.

    Attributes:
        name: as the user wrote it.
        canonical: hub id, or the folder's name for a local one; with the file's name for GGUF.
        kind: how it is had: "embedded", "local" or "hub".
        folder: where it lies.
        body: folder below it that holds the transformer's config.json and weights.
        method: what quantized it, as its config.json says (gptq, awq, hqq, ...); "gguf";
            "quantdrift" for what `quantdrift quantize` wrote; or "none".
        quantization: the quantization_config of its config.json, or what scheme.json says; empty if
            there is neither.
        gguf: name of the GGUF file in the folder, None for other formats.
        has_modules: whether it says how tokens become an embedding (modules.json).
        revision: commit of a hub model, where it can be told.
    """

    name: str
    canonical: str
    kind: str
    folder: Path
    body: Path
    method: str
    quantization: Mapping[str, Any] = field(default_factory=dict)
    gguf: str | None = None
    has_modules: bool = False
    revision: str | None = None

    def identify(self) -> dict[str, Any]:
        """What a run records of where it came from, as JSON values."""
        return {
            "name": self.name,
            "canonical": self.canonical,
            "kind": self.kind,
            "revision": self.revision,
            "format": self.method,
        }

    def describe(self) -> dict[str, Any]:
        """What a run records of how it is quantized, as JSON values."""
        return {
            "quantizer": self.method,
            "nominal_bits": nominal_bits(self.quantization),
            "quantization_config": shortened(self.quantization),
        }


def find_checkpoint(name: str) -> Checkpoint:
    """Find the checkpoint that a name means; one on the hub is downloaded.

    Args:
        name: a model as in a spec, `FOLDER/FILE.gguf`, or `ORG/REPO:FILE.gguf`.

    Raises:
        UnknownNameError: nothing of that name.
        UnsupportedError: the folder or file is not there, holds no model, or the hub has none.
        RunError: it was written by a quantdrift that this one cannot read, or is damaged.
    """
    if name.lower().endswith(".gguf"):
        return _gguf(name)
    source = resolve(name)
    folder = _downloaded(source.canonical) if source.kind == "hub" else Path(source.location)
    has_modules = (folder / "modules.json").is_file()
    body = folder / _body_path(folder) if has_modules else folder
    config = _json(body / "config.json") if (body / "config.json").is_file() else {}
    said = config if isinstance(config, dict) else {}
    quantization = said.get("quantization_config") or said.get("compression_config") or {}
    if said is not config or not isinstance(quantization, dict):
        raise UnsupportedError(
            f"{body / 'config.json'} is damaged: expected a JSON object, and its "
            "quantization_config to be one"
        )
    if is_candidate_folder(folder):
        quantization = {"quant_method": "quantdrift", **_own(folder)}
    return Checkpoint(
        name=name,
        canonical=source.canonical,
        kind=source.kind,
        folder=folder,
        body=body,
        method=method_of(quantization) if quantization else "none",
        quantization=quantization,
        has_modules=has_modules,
        revision=_commit(folder) if source.kind == "hub" else None,
    )


def refuse_missing(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose libraries are not installed.

    Raises:
        MissingExtraError: names the package and the extra that brings it.
    """
    packages, extra = NEEDED.get(checkpoint.method, ((), ""))
    for package in packages:
        if importlib.util.find_spec(package.replace("-", "_")) is None:
            needed_for = f"the {checkpoint.method} checkpoint {checkpoint.name}"
            raise MissingExtraError(package, extra, needed_for=needed_for)


def _own(folder: Path) -> dict[str, Any]:
    """What scheme.json says of how the model is quantized."""
    record = read_record(folder)
    try:
        return {key: record[key] for key in ("spec", "model_format", "bits_per_weight")}
    except KeyError as error:
        raise RunError(
            f"{folder / RECORD} is damaged: it has no entry {error}. Write the candidate again "
            "with: quantdrift quantize SPEC -o FOLDER"
        ) from error


def _gguf(name: str) -> Checkpoint:
    if on_hub := _GGUF_ON_HUB.fullmatch(name):
        repo, file = on_hub.groups()
        folder, kind, canonical = _downloaded(repo, file), "hub", name
    else:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UnsupportedError(
                f"no file {path} (expected FOLDER/FILE.gguf, or ORG/REPO:FILE.gguf on the hub)"
            )
        folder, file, kind, canonical = path.resolve().parent, path.name, "local", path.name
    return Checkpoint(
        name=name,
        canonical=canonical,
        kind=kind,
        folder=folder,
        body=folder,
        method="gguf",
        gguf=file,
        revision=_commit(folder) if kind == "hub" else None,
    )


def _downloaded(repo: str, file: str | None = None) -> Path:
    """The folder of a hub model, downloaded if need be: one file of it, or what torch loads."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 -- only for models on the hub

    try:
        if file is not None:
            folder = Path(snapshot_download(repo, allow_patterns=[file]))
        else:
            ignored = [*_OTHER_WEIGHTS, *_OLD_WEIGHTS]
            folder = Path(snapshot_download(repo, ignore_patterns=ignored))
            if not any(folder.rglob("*.safetensors")):
                folder = Path(snapshot_download(repo, ignore_patterns=_OTHER_WEIGHTS))
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        message = f"the checkpoint {repo!r} cannot be had from the hub: {first}"
        raise UnsupportedError(message) from error
    if file is not None and not (folder / file).is_file():
        raise UnsupportedError(f"{repo} on the hub has no file {file}")
    return folder


def _commit(folder: Path) -> str | None:
    return folder.name if re.fullmatch("[0-9a-f]{40}", folder.name) else None


def _body_path(folder: Path) -> str:
    modules = _json(folder / "modules.json")
    first = modules[0] if isinstance(modules, list) and modules else {}
    return str(first.get("path", "")) if isinstance(first, dict) else ""


def _json(file: Path) -> Any:
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{file} cannot be read: {error}") from error
