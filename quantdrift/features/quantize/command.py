"""`quantdrift quantize`: write the quantized model to a folder."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    from quantdrift.models.files.named import resolve
    from quantdrift.models.files.saved import check_place, check_savable

    check_savable(spec.scheme)
    check_spec(spec)
    check_saved(resolve(spec.model), options.revision)
    check_place(options.out.absolute())
    named = options.data is not None or options.task is not None
    refuse_uncalibrated(spec, has_data=named)
    dataset = options.dataset if named else None
    from quantdrift.asking.saving import make_candidate, save_candidate

    with options.stoppable(f"{options.out} was not written"):
        pair = make_candidate(spec, dataset=dataset, **options.how)
        record = save_candidate(spec, pair, options.out, revision=options.revision, progress=options.progress)
    return Output(title=f"{record['spec']} saved as safetensors", next=list(_lines(options, record)))


def _lines(options: QuantizeOptions, record: Mapping[str, Any]) -> Iterator[str]:
    """Describe the folder, and how to use it."""
    layers, where = record["layers"], str(options.out)
    linear = f"{record['bits_per_weight']['linear']:g} bits per weight of {len(layers)} linear layers"
    yield f"{sum(record['files'].values()) / 1e6:,.1f} MB on disk"
    yield f"{linear}, stored as {record['dtype']}: the file is as large as that of the model"
    if fallbacks := [f"{layer['name']} ({layer['fallback']})" for layer in layers if layer["fallback"]]:
        yield f"{len(fallbacks)} of {len(layers)} layers were rounded to nearest instead: {some(fallbacks)}"
    if table := record["calibration"].get("embedding_table"):
        yield f"embedding matrix at {table['bits']} bits per weight, stored the same way: {some(table['tables'])}"
    if left_out := record["calibration"].get("layers_left_out"):
        yield f"left at full precision: {some(left_out)}"
    said = options.out / "config_sentence_transformers.json"
    kind = read_json(said).get("model_type", "SentenceTransformer") if said.is_file() else "SentenceTransformer"
    yield f"\nload it:\n  from sentence_transformers import {kind}"
    yield from (f"  model = {kind}({where!r})", '  embeddings = model.encode(["a text"])')
    if kind in {"MultiVectorEncoder", "SparseEncoder"}:  # quantdrift run does not compare two such models
        return
    pair = shlex.quote(f"{record['base_model']['name']} vs {where}")
    yield f"\nto see which answers it changes:\n  quantdrift run {pair} {options.data_words}{options.model_words}"
