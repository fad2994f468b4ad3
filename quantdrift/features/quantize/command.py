"""`quantdrift quantize`: write the quantized model to a folder."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quantdrift.base.records import read_json
from quantdrift.base.text import some
from quantdrift.cli.options import SPEC, OnCorpus, OnModel, argument, option, prints
from quantdrift.show.output import Output
from quantdrift.spec.grammar import parse


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(OnCorpus, OnModel):
    """The options of `quantdrift quantize`."""

    spec: str = argument(SPEC)
    out: Path = option("-o --out FOLDER: The folder to write.", default=...)
    model_format: Literal["safetensors", "onnx"] = option(
        "--format NAME: safetensors, for sentence-transformers; or onnx, with packed weights, for onnxruntime.",
        default="safetensors",
    )


@prints()
def command(options: QuantizeOptions) -> Output:
    """Quantize a model and save it, so that you deploy the model that was measured.

    Methods that calibrate (gptq, awq, adaround) need documents: --data, --task, or a file of texts in the scheme
    (+calib=texts.txt). To measure what was written: quantdrift run "minilm vs FOLDER" --data ...

    For example: quantdrift quantize minilm@W4-gptq --task PythonDocsRetrieval -o minilm-w4

    More: docs/guides/checkpoints.md
    """
    spec = parse(options.spec)
    from quantdrift.candidate.refusals import check_spec, refuse_uncalibrated
    from quantdrift.models.files.kinds import check_saved
    from quantdrift.models.files.model_files import MODEL_FILES
    from quantdrift.models.files.named import resolve
    from quantdrift.models.files.saved import check_place, check_savable

    form = options.model_format
    check_savable(spec.scheme, form)
    check_spec(spec)
    check_saved(resolve(spec.model), options.revision)
    check_place(options.out.absolute())
    named = options.data is not None or options.task is not None
    refuse_uncalibrated(spec, has_data=named)
    dataset = options.dataset if named else None
    from quantdrift.asking.saving import make_candidate, save_candidate

    if form in MODEL_FILES:
        MODEL_FILES[form].require_writers()
    with options.stoppable(f"{options.out} was not written"):
        pair = make_candidate(spec, dataset=dataset, **options.how)
        record = save_candidate(
            spec, pair, options.out, model_format=form, revision=options.revision, progress=options.progress
        )
    return Output(title=f"{record['spec']} saved as {record['model_format']}", next=list(_lines(options, record)))


def _lines(options: QuantizeOptions, record: Mapping[str, Any]) -> Iterator[str]:
    """Describe the folder, and how to use it."""
    layers, where = record["layers"], str(options.out)
    linear = f"{record['bits_per_weight']['linear']:g} bits per weight of {len(layers)} linear layers"
    yield f"{sum(record['files'].values()) / 1e6:,.1f} MB on disk"
    if "onnx" in record:
        stored = {layer["name"]: layer["stored"] for layer in layers}
        packed = [name for name, how in stored.items() if how.startswith("MatMulNBits")]
        yield f"{linear}; {len(packed)} of them packed, all else {record['dtype']}"
        for how in dict.fromkeys(stored[name] for name in stored.keys() - packed):
            yield f"{how}: {some(name for name in stored if stored[name] == how)}"
        worst = max(record["onnx"]["difference_to_torch"].values())
        yield f"checked: differs from torch by {worst:.1e} relative at most"
        load, model = "from quantdrift.builtin.onnx.running import load_onnx", "load_onnx"
    else:
        yield f"{linear}, stored as {record['dtype']}: the file is as large as that of the model"
        said = options.out / "config_sentence_transformers.json"
        kind = read_json(said).get("model_type", "SentenceTransformer") if said.is_file() else "SentenceTransformer"
        load, model = f"from sentence_transformers import {kind}", kind
    if fallbacks := [f"{layer['name']} ({layer['fallback']})" for layer in layers if layer["fallback"]]:
        yield f"{len(fallbacks)} of {len(layers)} layers were rounded to nearest instead: {some(fallbacks)}"
    if table := record["calibration"].get("embedding_table"):
        yield f"embedding matrix at {table['bits']} bits per weight, stored the same way: {some(table['tables'])}"
    if left_out := record["calibration"].get("layers_left_out"):
        yield f"left at full precision: {some(left_out)}"
    yield from ("\nload it:", f"  {load}", f"  model = {model}({where!r})", '  embeddings = model.encode(["a text"])')
    if model in {"MultiVectorEncoder", "SparseEncoder"}:  # quantdrift run does not compare two such models
        return
    pair = shlex.quote(f"{record['base_model']['name']} vs {where}")
    yield f"\nto see which answers it changes:\n  quantdrift run {pair} {options.data_words}{options.model_words}"
