"""A checkpoint that is the candidate: its place, the method that quantized it, and the packages that read it.

No weights are loaded here, so a missing library or a wrong folder is noticed before hours go into the reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.base import extras
from quantdrift.base.display import in_one_line, shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import entries
from quantdrift.base.registry import Package
from quantdrift.base.text import some
from quantdrift.models.files.kinds import model_json
from quantdrift.models.files.model_files import MODEL_FILES, ModelFile, files_in, folder_of, format_of, holds_weights
from quantdrift.models.files.named import ModelSource, name_in_config, resolve
from quantdrift.models.files.saved import is_candidate_folder, read_record
from quantdrift.models.files.tensors import stored_tensors

if TYPE_CHECKING:
    from torch import nn

NEEDED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "awq": (("gptqmodel", "accelerate"), "gptq"),
    "bitsandbytes": (("bitsandbytes", "accelerate"), "bitsandbytes"),
    "compressed-tensors": (("compressed-tensors",), "compressed-tensors"),
    "gptq": (("gptqmodel", "optimum"), "optimum"),
    "torchao": (("torchao",), "torchao"),
}
"""Method to the packages with which transformers 5 reads its checkpoints, and the extra that installs them."""
_WIDTH_KEYS = ("bits", "w_bit", "nbits", "num_bits")
_FILE_ON_HUB = re.compile(r"([^/:\s]+/[^/:\s]+):(.+)")
_LISTED = 8
"""Most entries of a list that a record repeats, as calibration texts and layer names can be thousands."""
_NOT_READ = ["*.onnx", "onnx/*", "openvino/*", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.bin", "*.pt", "*.pth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model on disk.

    Attributes:
        name: as the user wrote it.
        canonical: hub id, or the name of a local folder, followed by the path of a file.
        kind: its source: "embedded", "local" or "hub".
        folder: its folder.
        body: the folder in it that holds the transformer's config.json and weights.
        method: the method that quantized it by its config.json (gptq, awq, hqq, ...), a name of `MODEL_FILES`,
            "quantdrift" if `quantdrift quantize` wrote it, or "none".
        quantization: the quantization_config of its config.json, or entries of scheme.json; empty if there is neither.
        file: path in the folder of a file that another library than transformers reads; None without one.
        has_modules: whether a modules.json says how tokens become an embedding.
    """

    name: str
    canonical: str
    kind: str
    folder: Path
    body: Path
    method: str
    quantization: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = None
    has_modules: bool = False

    @property
    def revision(self) -> str | None:
        """The commit of a model on the hub; None if unknown."""
        return self.folder.name if self.kind == "hub" and re.fullmatch("[0-9a-f]{40}", self.folder.name) else None

    def identify(self) -> dict[str, Any]:
        """Return the origin of the model for the record of a run, as JSON values."""
        return {
            "name": self.name,
            "canonical": self.canonical,
            "kind": self.kind,
            "revision": self.revision,
            "format": self.method,
            **({} if self.file is None else {"file": self.file}),
        }

    def describe(self) -> dict[str, Any]:
        """Return how it is quantized for the record of a run, as JSON values."""
        return {
            "quantizer": self.method,
            "nominal_bits": nominal_bits(self.quantization),
            "quantization_config": _shortened(self.quantization),
        }


def find_checkpoint(name: str) -> Checkpoint:
    """Find the checkpoint of a name; download one on the hub."""
    form, file = format_of(name), None
    if form is not None:
        source, folder, file = _named_file(name, MODEL_FILES[form])
    else:
        source = resolve(name)
        folder = _downloaded(source.canonical) if source.kind == "hub" else Path(source.location)
    quantization: Any = {}
    body, modules = folder, None
    if form is None or MODEL_FILES[form].companions:
        here = replace(source, kind="local", location=str(folder))
        modules = model_json(here, "modules.json").get("", [])
        first = modules[0] if isinstance(modules, list) and modules else {}
        body = folder / str(first.get("path", "") if isinstance(first, dict) else "")
        config = model_json(here, str(body / "config.json"))
        quantization = config.get("quantization_config") or config.get("compression_config") or _said_beside(here, body)
        if not isinstance(quantization, dict):
            raise UnsupportedError(f"{body}/config.json is damaged: expected its quantization_config as an object")
        if is_candidate_folder(folder):
            record = read_record(folder)
            kept = {key: record[key] for key in ("spec", "bits_per_weight")}
            quantization = {"quant_method": "quantdrift", **kept}
        elif file is None and files_in(folder) and not holds_weights(body):
            file, *others = files_in(folder)
            if others:
                raise UnsupportedError(
                    f"{name} holds {1 + len(others)} models in files of other libraries: {some([file, *others])}; name "
                    f"the one to run: {name.rstrip('/')}/{file}"
                )
        if file is not None:
            quantization = {"quant_method": format_of(file), "file": file}
    return Checkpoint(
        name=name,
        canonical=source.canonical,
        kind=source.kind,
        folder=folder,
        body=body,
        method=method_of(quantization) if quantization else form or "none",
        quantization=quantization,
        file=file,
        has_modules=bool(modules),
    )


def _said_beside(source: ModelSource, body: Path) -> dict[str, Any]:
    """Find the settings of packed weights that config.json does not have: those of AutoGPTQ (2023) or of hqq."""
    if settings := model_json(source, str(body / "quantize_config.json")):
        return {"quant_method": "gptq", **settings}
    with suppress(ImportError, UnsupportedError):  # damage is reported when it is vetted
        if any(name.endswith(".encoded_state_dict") for name in stored_tensors(body)):
            return {"quant_method": "hqq"}
    return {}


def _named_file(name: str, kind: ModelFile) -> tuple[ModelSource, Path, str]:
    """Return the source of a model file, its folder, and its path in the folder."""
    if on_hub := _FILE_ON_HUB.fullmatch(name):
        repo, file = on_hub.groups()
        folder = _downloaded(repo, file, *(pattern.format(file=file) for pattern in kind.companions))
        return ModelSource(name=name, canonical=name, kind="hub", location=repo), folder, file
    path = Path(name).expanduser()
    if not path.is_file():
        raise UnsupportedError(
            f"no file {path} (expected FOLDER/FILE{kind.suffix}, or ORG/REPO:FILE{kind.suffix} on the hub)"
        )
    path = path.parent.resolve() / path.name
    folder = folder_of(path) if kind.companions else path.parent
    file = path.relative_to(folder).as_posix()
    canonical = f"{folder.name}/{file}" if kind.companions else file
    return ModelSource(name=name, canonical=canonical, kind="local", location=str(folder)), folder, file


def _downloaded(repo: str, file: str | None = None, *beside: str) -> Path:
    """Download a model of the hub, either one file and its companions or all that torch loads; return the folder."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 -- only for models on the hub

    only, ignored = (None, _NOT_READ) if file is None else ([file, *beside], None)
    with in_one_line(f"the checkpoint {repo!r} cannot be downloaded from the hub"):
        folder = Path(snapshot_download(repo, allow_patterns=only, ignore_patterns=ignored))
    if file is not None and not (folder / file).is_file():
        raise UnsupportedError(f"{repo} on the hub has no file {file}")
    return folder


def refuse_missing(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose libraries are not installed."""
    needed_for = f"the {checkpoint.method} checkpoint {checkpoint.name}"
    extras.refuse_missing(packages_for(checkpoint.method), needed_for=needed_for)


def packages_for(method: str) -> tuple[Package, ...]:
    """Return the packages that read the checkpoints of a method."""
    if method in MODEL_FILES:
        return MODEL_FILES[method].packages
    names, extra = NEEDED.get(method, ((), ""))
    return tuple(Package(name=name, module=name.replace("-", "_"), extra=extra, note="") for name in names)


# --- reading a quantization_config ---------------------------------------------------------------


def method_of(quantization: Mapping[str, Any]) -> str:
    """Return the method that quantized the weights, as the config names it.

    >>> method_of({"load_in_4bit": True}), method_of({"bits": 4})
    ('bitsandbytes', 'unknown')
    """
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        return "bitsandbytes"
    return shown(str(quantization.get("quant_method", "unknown")))


def nominal_bits(quantization: Mapping[str, Any]) -> float | None:
    """Return the weight width that a quantization_config names; None if it names none or several.

    >>> nominal_bits({"quant_method": "gptq", "bits": 4, "group_size": 128})
    4.0
    """
    method = method_of(quantization)
    if method == "quantdrift":
        return float(quantization["bits_per_weight"]["linear"])
    if method == "bitsandbytes":
        return 4.0 if quantization.get("load_in_4bit") else 8.0
    if method == "torchao":
        named = re.findall(r"Int(\d+)Weight|Float(8)", json.dumps(quantization))
        widths = {float(first or second) for first, second in named}
    else:
        # compressed-tensors also has a width for activations
        said = entries(quantization, without=("input_activations", "output_activations"))
        widths = {float(value) for key, value in said if key in _WIDTH_KEYS and isinstance(value, int | float)}
    return widths.pop() if len(widths) == 1 else None


def _shortened(value: Any) -> Any:
    """Shorten a config for a record: unset entries are left out, and long lists become their length."""
    if isinstance(value, Mapping):
        return {str(key): _shortened(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return f"{len(value)} entries" if len(value) > _LISTED else [_shortened(part) for part in value]
    return value if isinstance(value, str | int | float | bool) else None


# --- models that have to be at full precision -----------------------------------------------------

_SAVED = "quantized already (a candidate saved by quantdrift quantize)"


def full_precision_source(name: str) -> ModelSource:
    """Find the model that a spec names, and refuse one that is quantized already.

    Nothing is loaded or downloaded; `refuse_quantized` checks a model from the hub once it is loaded.
    """
    if kind := format_of(name):
        raise _unfit(name, MODEL_FILES[kind].what)
    source = resolve(name)
    if source.kind != "local":
        return source
    folder = Path(source.location)
    if is_candidate_folder(folder):
        raise _unfit(name, _SAVED)
    files = list(files_in(folder).values())
    if files and not next(folder.rglob("*.safetensors"), None) and not holds_weights(folder):
        raise _unfit(name, MODEL_FILES[files[0]].what)
    method = find_checkpoint(name).method
    if method != "none":
        raise _unfit(name, f"quantized already (its config.json says {method})")
    return source


def refuse_quantized(modules: Iterable[nn.Module], name: str) -> None:
    """Refuse a loaded model, given its outermost modules, if its config or a scheme.json says that it is quantized."""
    modules = list(modules)
    here = name_in_config(modules)
    if here is not None and Path(here).is_dir() and is_candidate_folder(Path(here)):
        raise _unfit(here, _SAVED)
    for module in (module for outermost in modules for module in outermost.modules()):
        said = getattr(getattr(module, "config", None), "quantization_config", None)
        if said:
            content = said if isinstance(said, dict) else said.to_dict()
            raise _unfit(name, f"quantized already (its config.json says {method_of(content)})")


def _unfit(name: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} is {what}, which can be the candidate only; expected a model at full precision there. To see "
        f'which answers it changes: quantdrift run "REFERENCE vs {name}"'
    )
