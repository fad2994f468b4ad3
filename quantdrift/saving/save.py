"""Save a candidate as a folder, in either format."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from quantdrift.progress import Progress
from quantdrift.saving.candidate import Candidate, CandidateLayer
from quantdrift.saving.folder import ModelFormat, check_savable, digests_of, write_folder
from quantdrift.saving.onnx_folder import save_onnx
from quantdrift.saving.safetensors_folder import save_safetensors

__all__ = ["save_candidate"]

_PACKAGES = ("quantdrift", "torch", "transformers", "sentence-transformers")
_ONNX_PACKAGES = ("onnxruntime", "onnxscript", "onnx-ir")


def save_candidate(
    candidate: Candidate, path: Path, *, model_format: ModelFormat, progress: Progress
) -> dict[str, Any]:
    """Write a candidate's folder: the model, and `scheme.json`.

    Args:
        candidate: a model and its codes.
        path: folder to write; may hold an earlier candidate, nothing else.
        model_format: "safetensors" for float weights that hold the grid's values, "onnx" for packed
            codes.
        progress: where progress is shown.

    Returns:
        The record of `scheme.json`.

    Raises:
        UnsupportedError: scheme or model cannot be written in this format.
        MissingExtraError: what writes the format is not installed.
        RunError: the folder cannot be written.
    """
    check_savable(candidate.spec.scheme)

    def fill(folder: Path) -> dict[str, Any]:
        if model_format == "onnx":
            made = save_onnx(candidate, folder, progress)
        else:
            with progress.stage("writing safetensors", 1) as tell:
                made = save_safetensors(candidate, folder)
                tell(1)
        return {**_record(candidate, model_format, made), "weights": digests_of(folder)}

    return write_folder(path, fill)


def _record(
    candidate: Candidate, model_format: ModelFormat, made: Mapping[str, Any]
) -> dict[str, Any]:
    source = candidate.source
    packages = (*_PACKAGES, *(_ONNX_PACKAGES if model_format == "onnx" else ()))
    stored = made.get("stored", {})
    return {
        "model_format": model_format,
        "spec": str(candidate.spec),
        "base_model": {
            "name": source.name,
            "canonical": source.canonical,
            "kind": source.kind,
            "revision": candidate.revision,
            "fingerprint": candidate.fingerprint,
        },
        "versions": {name: _version(name) for name in packages},
        "bits_per_weight": candidate.bits.to_json(),
        **{key: value for key, value in made.items() if key != "stored"},
        "calibration": None if candidate.calibration is None else dict(candidate.calibration),
        "layers": [_described(layer, stored.get(layer.name)) for layer in candidate.layers],
    }


def _described(layer: CandidateLayer, stored: str | None) -> dict[str, Any]:
    quantized = layer.quantized
    described: dict[str, Any] = {
        "name": layer.name,
        "shape": list(quantized.codes.shape),
        "bits": quantized.bits,
        "group_size": quantized.group_size,
        "symmetric": quantized.zero_point is None,
        "permuted": quantized.permutation is not None,
        "scaled": quantized.input_scaling is not None,
        "error": layer.error,
        "fallback": layer.fallback,
    }
    return described if stored is None else {**described, "stored": stored}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
