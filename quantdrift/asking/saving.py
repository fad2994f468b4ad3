"""Make the candidate of a spec, and write it to a folder."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack

import torch
from tokenizers import Tokenizer
from transformers.utils.hub import cached_file

from quantdrift.asking.ask import libraries
from quantdrift.asking.opening import Place, load_searching, refuse_kinds, search_of
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.candidate.calibration.in_order import LayerCandidate, put_in_place
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.candidate.pair import QuantizedPair, methods_of
from quantdrift.candidate.quantized import QuantizedWeight
from quantdrift.candidate.refusals import refuse_uncalibrated
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.models.files.saved import digests_of, write_folder
from quantdrift.models.inputs import Settings, text_inputs
from quantdrift.models.store import EmbeddingStore
from quantdrift.models.weights import saved_weights, weights_fingerprint
from quantdrift.spec.grammar import Spec, chooses


def make_candidate(
    spec: Spec,
    *,
    dataset: RetrievalDataset | None,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    **where: Unpack[Place],
) -> QuantizedPair:
    """Load a sentence encoder and calibrate its candidate if the scheme needs that."""
    methods_of(spec.scheme)
    if chooses(spec.scheme):
        raise UnsupportedError(
            f"{spec} chooses widths on queries, which quantize does not have; expected an "
            f"allocation: quantdrift allocate {spec} --data FOLDER, then quantdrift quantize "
            f"{spec.model}@allocation.json"
        )
    texts = calibration_texts(spec.scheme)
    refuse_uncalibrated(spec, has_data=dataset is not None)
    where |= settings.loading
    encoder = load_searching(spec.model, **where)
    if not isinstance(encoder, SentenceEncoder):
        raise UnsupportedError(f"{spec.model} is no model of sentence-transformers, whose format quantize writes")
    pair = QuantizedPair([encoder.module], spec.scheme, name=repr(spec.model), encoder=encoder)
    if dataset is not None:
        refuse_kinds([encoder], dataset)
        inputs = search_of(dataset, encoder.similarity, texts, pair=pair).calibration
    else:
        inputs = () if texts is None else (text_inputs(texts),)
    pair.calibrate(inputs, settings.batch_size, source="corpus", root=store.root, progress=progress)
    return pair


def save_candidate(
    spec: Spec, pair: QuantizedPair, path: Path, *, progress: Progress, revision: str | None = None
) -> dict[str, Any]:
    """Write the candidate of a prepared pair to a folder, and return the content of its `scheme.json`."""

    def fill(folder: Path) -> dict[str, Any]:
        layers: list[tuple[LayerCandidate, QuantizedWeight]] = []
        with progress.stage("quantizing layers", len(pair.layers)) as tell:
            for made in pair.candidate_layers():
                tell(1)
                if made.quantized is not None:  # None for a layer that an allocation leaves at full precision
                    layers.append((made, made.quantized))
        codes = {made.name: quantized for made, quantized in layers}
        with progress.stage("writing safetensors", 1) as tell:
            written = _save_safetensors(pair, codes, folder)
            tell(1)
        for file in folder.rglob("tokenizer.json"):
            _as_in_source(file, pair.encoder.model, revision)
        return {
            "spec": str(spec),
            "base_model": {**pair.encoder.identify(), "revision": revision, "fingerprint": pair.fingerprint},
            "versions": libraries(spec),
            "bits_per_weight": pair.bits().to_json(),
            **written,
            "calibration": pair.describe(),
            "layers": [
                {
                    "name": made.name,
                    "shape": list(quantized.codes.shape),
                    "bits": quantized.bits,
                    "group_size": quantized.group_size,
                    "symmetric": quantized.zero_point is None,
                    "permuted": quantized.permutation is not None,
                    "scaled": quantized.input_scaling is not None,
                    "error": made.output_error,
                    "fallback": made.fallback,
                }
                for made, quantized in layers
            ],
            "weights": digests_of(folder),
        }

    return write_folder(path, fill)


def _as_in_source(file: Path, model: Any, revision: str | None) -> None:
    """Restore the source's truncation and padding in a tokenizer.json; saving wrote those of the last call."""
    rules, source = Tokenizer.from_file(str(file)), None
    with suppress(OSError, AttributeError):  # the source has no such file
        place = cached_file(model.tokenizer.name_or_path, file.name, revision=revision, local_files_only=True)
        source = None if place is None else Tokenizer.from_file(str(place))
    rules.no_truncation()
    rules.no_padding()
    if source is not None and source.truncation is not None:
        rules.enable_truncation(**source.truncation)
    if source is not None and source.padding is not None:
        rules.enable_padding(**source.padding)
    rules.save(str(file))


def _save_safetensors(pair: QuantizedPair, codes: Mapping[str, QuantizedWeight], folder: Path) -> dict[str, Any]:
    """Write the candidate by sentence-transformers, in the model's dtype, and check that it loads the same."""
    model = pair.encoder.model
    with saved_weights(pair.layers), pair.under_layers(), pair.under_layers(False), torch.no_grad():
        for layer in pair.layers:
            if layer.name in codes:
                put_in_place(layer, codes[layer.name])
        model.save_pretrained(str(folder), create_model_card=False)  # a card would describe the reference
        fingerprint = weights_fingerprint([model])
    try:
        again = weights_fingerprint([type(model)(str(folder), device="cpu")])
    except Exception:  # whatever the reason, these files are not the model
        again = None
    if again != fingerprint:
        raise UnsupportedError(
            "sentence-transformers wrote files that do not load as the quantized model; nothing was written. Please "
            "report the model"
        )
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})
    return {"dtype": ", ".join(dtypes), "candidate_fingerprint": fingerprint}
