"""`quantdrift quantize`: write the candidate to a folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdrift.cli.options import DATA, SPEC, SPLIT, TASK, OnModel, argument, corpus, data_words, option, prints
from quantdrift.cli.output import Shown, some
from quantdrift.errors import QuantDriftError
from quantdrift.spec import parse


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(OnModel):
    """The options of `quantdrift quantize`."""

    spec: str = argument(SPEC)
    out: Path = option("-o --out FOLDER: Folder to write.", default=...)
    model_format: str = option(
        "--format NAME: safetensors, as sentence-transformers loads it; or onnx, with packed weights that "
        "onnxruntime runs.",
        default="safetensors",
    )
    data: Path | None = option(DATA)
    task: str | None = option(TASK)
    split: str = option(SPLIT, default="test")


@prints()
def command(options: QuantizeOptions) -> Shown:
    """Quantize a model and save the candidate, so that what is deployed is what was measured.

    Methods that calibrate (gptq, awq, adaround) need documents: --data, --task, or a file of texts in the scheme
    (+calib=texts.txt). To measure what was written: quantdrift run "minilm vs FOLDER" --data ...
    """
    spec = parse(options.spec)
    from quantdrift.engine.refusals import check_spec
    from quantdrift.models.saved import check_place, check_savable

    if options.model_format not in {"safetensors", "onnx"}:
        raise QuantDriftError(f"expected --format safetensors or onnx; got {options.model_format!r}")
    check_savable(spec.scheme)
    check_spec(spec)
    check_place(options.out.absolute())
    named = options.data is not None or options.task is not None
    dataset = corpus(options.data, options.task, options.split) if named else None
    from quantdrift.engine.saving.onnx import need_exporter
    from quantdrift.engine.saving.save import make_candidate, save_candidate

    if options.model_format == "onnx":
        need_exporter()
    with options.stoppable(f"{options.out} was not written"):
        candidate = make_candidate(
            spec,
            dataset=dataset,
            batch_size=options.batch_size,
            cache=options.cache,
            progress=options.progress,
            device=options.device,
            revision=options.revision,
        )
        chosen: Any = options.model_format
        record = save_candidate(candidate, options.out, model_format=chosen, progress=options.progress)
    return Shown(title=f"{record['spec']} saved as {record['model_format']}", next=list(_lines(options, record)))


def _lines(options: QuantizeOptions, record: Mapping[str, Any]) -> Iterator[str]:
    """What the folder holds, and how to use it."""
    from quantdrift.models.named import ALIASES

    sizes, layers = [size / 1e6 for size in record["files"].values()], record["layers"]
    yield f"{sum(sizes):,.1f} MB on disk, of which the largest file is {max(sizes):,.1f} MB"
    linear = f"{record['bits_per_weight']['linear']:g} bits per weight of {len(layers)} linear layers"
    onnx = record["model_format"] == "onnx"
    if onnx:
        stored = [layer["stored"] for layer in layers]
        packed = [each for each in stored if each.startswith("MatMulNBits")]
        widths = " and ".join(sorted({each.split(",")[1].strip() for each in packed}))
        yield f"{linear}; {len(packed)} of them packed at {widths}, all else {record['dtype']}"
        for other in dict.fromkeys(each for each in stored if each not in packed):
            yield f"{other}: {some(layer['name'] for layer in layers if layer['stored'] == other)}"
        worst = max(record["onnx"]["difference_to_torch"].values())
        yield f"checked: differs from torch by {worst:.1e} relative at most"
    else:
        yield (
            f"{linear}, stored as {record['dtype']}: each weight holds a value of the grid, so the file is as large "
            "as the model's own"
        )
    if fallbacks := [f"{layer['name']} ({layer['fallback']})" for layer in layers if layer["fallback"]]:
        yield f"{len(fallbacks)} of {len(layers)} layers were rounded to nearest instead: {some(fallbacks)}"
    if left_out := (record["calibration"] or {}).get("layers_left_out"):
        yield f"left at full precision: {some(left_out)}"
    where = str(options.out)
    if where.lower() in {alias.lower() for alias in ALIASES}:  # it would mean that model
        where = f"./{where}"
    yield f"folder: {where}"
    load = "from quantdrift.engine.encoders.onnx import load_onnx" if onnx else ""
    yield "\nload it:"
    yield f"  {load or 'from sentence_transformers import SentenceTransformer'}"
    yield f"  model = {'load_onnx' if onnx else 'SentenceTransformer'}({where!r})"
    yield '  embeddings = model.encode(["a text"])'
    yield "\nsee which answers it changes:"
    pair = shlex.quote(f"{record['base_model']['name']} vs {where}")
    yield f"  quantdrift run {pair} {data_words(options.data, options.task)}"
