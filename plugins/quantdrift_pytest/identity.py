"""What decides a measurement, as far as it can be told without loading the model.

A run is used again only where all of it is the same: the pair, the content of the models' files,
the data, the settings, and the code that measures.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import quantdrift
from quantdrift.models.endpoint.address import is_endpoint
from quantdrift.models.resolve import resolve
from quantdrift.spec import Spec
from quantdrift.versus import Versus
from quantdrift_pytest.digests import content_digest

__all__ = ["Identity", "identify"]

_LIBRARIES = (
    *("torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "numpy"),
    *("scikit-learn", "accelerate", "gptqmodel", "auto-gptq", "autoawq", "hqq", "optimum"),
    *("bitsandbytes", "compressed-tensors", "torchao", "gguf", "onnx", "onnxruntime"),
    *("pillow", "timm"),
)
"""That load models, quantize or compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a pair is, and what measures it.

    Attributes:
        parts: JSON values; another measurement has others.
        lasting: whether it holds beyond a session; not for models that are not seen from here, on a
            server or not yet downloaded.
    """

    parts: Mapping[str, Any]
    lasting: bool


def identify(pair: Spec | Versus, *, revision: str | None, known: Path) -> Identity:
    """What decides a measurement of a pair, beside data and settings.

    Args:
        pair: model and scheme, or two models.
        revision: of a reference on the hub.
        known: folder that keeps digests of files.

    Raises:
        QuantDriftError: a model cannot be found.
        OSError: a file of it cannot be read.
    """
    if isinstance(pair, Versus):
        models = [_model(pair.reference, revision, known), _model(pair.candidate, None, known)]
        files = {}
    else:
        models = [_model(pair.model, revision, known)]
        # widths that were stored, texts to calibrate on
        options = [(key, Path(value)) for key, value in pair.scheme.options]
        files = {key: content_digest(file, known) for key, file in options if file.is_file()}
    package = Path(quantdrift.__file__).parent
    return Identity(
        parts={
            "pair": str(pair),
            "models": models,
            "files": files,
            "code": [quantdrift.__version__, content_digest(package, known, "*.py")],
            "libraries": dict(_versions()),
            "machine": _machine(),
        },
        lasting=None not in models,
    )


def _model(name: str, revision: str | None, known: Path) -> str | None:
    """A digest of a model's files; None where they are not seen from here."""
    if is_endpoint(name):
        return None
    on_hub = None
    if name.lower().endswith(".gguf"):
        place = Path(name).expanduser()
        if not place.is_file():
            on_hub = name.rpartition(":")[0]
    else:
        source = resolve(name)
        place = Path(source.location)
        if source.kind == "hub":
            on_hub = source.canonical
    if on_hub is not None:
        found = _downloaded(on_hub, revision)
        if found is None:
            return None
        place = found
    return content_digest(place, known)


def _downloaded(repo: str, revision: str | None) -> Path | None:
    """The snapshot of a hub model that lies on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415 -- only for hub models

    root = Path(os.environ.get("SENTENCE_TRANSFORMERS_HOME") or HF_HUB_CACHE)
    folder = root / f"models--{repo.replace('/', '--')}"
    name = revision or "main"
    try:
        commit = (folder / "refs" / name).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = name
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _versions() -> Iterator[tuple[str, str]]:
    for library in _LIBRARIES:
        try:
            yield library, version(library)
        except PackageNotFoundError:
            continue


def _machine() -> list[str]:
    """What decides on which device a model runs by itself."""
    gpus = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return [platform.system(), platform.machine(), *gpus, *([f"of {chosen}"] if gpus else [])]
