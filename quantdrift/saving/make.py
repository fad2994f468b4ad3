"""From a spec to a candidate that can be saved."""

from __future__ import annotations

from quantdrift.allocation.unchosen import chooses
from quantdrift.calibration.sample import calibration_texts, draw_sample
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import UnsupportedError
from quantdrift.measurement.embeddings import EmbeddingStore, default_store
from quantdrift.measurement.text_inputs import text_inputs
from quantdrift.models.full_precision import full_precision, refuse_quantized
from quantdrift.models.sentence_encoder import load_encoder, pick_device
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.quantizers import methods_of
from quantdrift.saving.candidate import Candidate, CandidateLayer
from quantdrift.spec import Spec

__all__ = ["make_candidate"]


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
    """Load a model and quantize its layers.

    Args:
        spec: model and scheme.
        dataset: whose documents a method calibrates on; None for methods that need none.
        batch_size: documents per forward pass.
        cache: whether quantized layers are kept for the next time.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.

    Raises:
        QuantDriftError: scheme, model or device cannot be used, or documents are needed.
    """
    methods = [method.quantizer for method in methods_of(spec.scheme).values()]
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
    pair = QuantizedPair([encoder.module], spec.scheme, name=repr(spec.model))
    if pair.needs_calibration and texts is not None:
        sample = draw_sample(text_inputs(encoder, texts), spec.scheme, batch_size)
        store = default_store() if cache else EmbeddingStore(None)
        pair.prepare(sample, root=store.root, progress=progress)
    layers = []
    with progress.stage("quantizing layers", len(pair.layers)) as tell:
        for made in pair.candidate_layers():
            tell(1)
            if made.quantized is not None:  # None for what an allocation leaves alone
                layers.append(
                    CandidateLayer(
                        name=made.name,
                        quantized=made.quantized,
                        error=made.output_error,
                        fallback=made.fallback,
                    )
                )
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
