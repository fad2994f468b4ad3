"""From a spec to a candidate, and from a candidate to its folder, in either format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.calibration.in_order import LayerCandidate
from quantdrift.engine.calibration.sample import calibration_texts, draw_sample
from quantdrift.engine.encoders.sentence import load_encoder, pick_device
from quantdrift.engine.inputs import text_inputs
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.saving.candidate import Candidate, save_safetensors
from quantdrift.engine.saving.onnx import save_onnx
from quantdrift.engine.store import EmbeddingStore, default_store
from quantdrift.errors import UnsupportedError
from quantdrift.extras import version_of
from quantdrift.models.checkpoint import full_precision, refuse_quantized
from quantdrift.models.saved import ModelFormat, check_savable, digests_of, write_folder
from quantdrift.progress import Progress
from quantdrift.spec import Spec, chooses

_PACKAGES = ("quantdrift", "torch", "transformers", "sentence-transformers")
_ONNX_PACKAGES = ("onnxruntime", "onnxscript", "onnx-ir")


def save_candidate(
    candidate: Candidate, path: Path, *, model_format: ModelFormat, progress: Progress
) -> dict[str, Any]:
    """Write a candidate's folder: the model, and `scheme.json`, which is returned."""
    check_savable(candidate.spec.scheme)

    def fill(folder: Path) -> dict[str, Any]:
        if model_format == "onnx":
            made = save_onnx(candidate, folder, progress)
        else:
            with progress.stage("writing safetensors", 1) as tell:
                made = save_safetensors(candidate, folder)
                tell(1)
        source, stored = candidate.source, made.pop("stored", {})
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
            "versions": {name: version_of(name) for name in _PACKAGES + _ONNX_PACKAGES * (model_format == "onnx")},
            "bits_per_weight": candidate.bits.to_json(),
            **made,
            "calibration": None if candidate.calibration is None else dict(candidate.calibration),
            "layers": [_described(layer, stored.get(layer.name)) for layer in candidate.layers],
            "weights": digests_of(folder),
        }

    return write_folder(path, fill)


def _described(layer: LayerCandidate, stored: str | None) -> dict[str, Any]:
    quantized = layer.quantized
    assert quantized is not None  # a candidate has none that are left alone
    return {
        "name": layer.name,
        "shape": list(quantized.codes.shape),
        "bits": quantized.bits,
        "group_size": quantized.group_size,
        "symmetric": quantized.zero_point is None,
        "permuted": quantized.permutation is not None,
        "scaled": quantized.input_scaling is not None,
        "error": layer.output_error,
        "fallback": layer.fallback,
        **({} if stored is None else {"stored": stored}),
    }


def make_candidate(
    spec: Spec,
    *,
    dataset: RetrievalDataset | None,
    batch_size: int,
    cache: bool,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> Candidate:
    """Load a model and quantize its layers."""
    methods = list(methods_of(spec.scheme).values())
    if chooses(spec.scheme):
        raise UnsupportedError(
            f"{spec} chooses widths on queries, which quantize does not have; expected an "
            f"allocation: quantdrift allocate {spec} --data FOLDER, then quantdrift quantize "
            f"{spec.model}@allocation.json"
        )
    texts = calibration_texts(spec.scheme)
    if texts is None and dataset is not None:
        texts = list(dataset.documents)
    if texts is None and any(method is not None and method.needs_moments for method in methods):
        raise UnsupportedError(
            f"{spec.scheme.quantizer} is calibrated on documents, and none were given; expected "
            "--data FOLDER, --task NAME, or a file of texts in the scheme (+calib=texts.txt)"
        )
    source = full_precision(spec.model)
    encoder = load_encoder(source, device=pick_device(device), revision=revision)
    refuse_quantized([encoder.module], spec.model)
    pair = QuantizedPair([encoder.module], spec.scheme, name=repr(spec.model), encoder=encoder)
    if pair.needs_calibration and texts is not None:
        sample = draw_sample(encoder, text_inputs(texts), spec.scheme, batch_size)
        store = default_store() if cache else EmbeddingStore(None)
        pair.prepare(sample, root=store.root, progress=progress)
    layers = []
    with progress.stage("quantizing layers", len(pair.layers)) as tell:
        for made in pair.candidate_layers():
            tell(1)
            if made.quantized is not None:  # None for what an allocation leaves alone
                layers.append(made)
    return Candidate(
        model=encoder.model,
        source=source,
        spec=spec,
        layers=layers,
        fingerprint=pair.fingerprint,
        bits=pair.bits(),
        revision=revision,
        calibration=pair.describe(),
    )
