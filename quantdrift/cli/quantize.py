"""`quantdrift quantize`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdrift.cli import Interrupted
from quantdrift.cli.tables import console, headed
from quantdrift.datasets.retrieval import RetrievalDataset, load_task, read_beir_folder
from quantdrift.display import clean
from quantdrift.engine.refusals import check_spec
from quantdrift.errors import QuantDriftError
from quantdrift.models.named import ALIASES
from quantdrift.models.saved import ModelFormat, check_place, check_savable
from quantdrift.progress import Silent, Terminal
from quantdrift.spec import parse

_FORMATS: tuple[ModelFormat, ...] = ("safetensors", "onnx")
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """The options of `quantdrift quantize`, as typed by the user."""

    spec: str
    out: Path
    model_format: str
    data: Path | None
    task: str | None
    split: str
    batch_size: int
    device: str | None
    revision: str | None
    cache: bool
    quiet: bool


def quantize_command(options: QuantizeOptions) -> None:
    """Quantize a model, write the candidate's folder, print where it is and how to use it.

    Raises:
        QuantDriftError: anything wrong with spec, data, model or disk.
    """
    spec = parse(options.spec)
    chosen = next((name for name in _FORMATS if name == options.model_format), None)
    if chosen is None:
        raise QuantDriftError(f"expected --format {' or '.join(_FORMATS)}; got {options.model_format!r}")
    check_savable(spec.scheme)
    check_spec(spec)
    check_place(options.out.absolute())
    dataset = _dataset(options)
    # torch, after all that needs none
    from quantdrift.engine.saving.onnx import need_exporter  # noqa: PLC0415
    from quantdrift.engine.saving.save import make_candidate, save_candidate  # noqa: PLC0415 -- as above

    if chosen == "onnx":
        need_exporter()
    progress = Silent() if options.quiet else Terminal()
    try:
        candidate = make_candidate(
            spec,
            dataset=dataset,
            batch_size=options.batch_size,
            cache=options.cache,
            progress=progress,
            device=options.device,
            revision=options.revision,
        )
        record = save_candidate(candidate, options.out, model_format=chosen, progress=progress)
    except KeyboardInterrupt:
        kept = "; finished layers are kept, and the same command goes on" if options.cache else ""
        raise Interrupted(f"{options.out} was not written{kept}") from None
    _print(options, record)


def _dataset(options: QuantizeOptions) -> RetrievalDataset | None:
    if options.data is not None and options.task is not None:
        raise QuantDriftError("expected --data FOLDER or --task NAME to calibrate on; got both")
    if options.data is not None:
        return read_beir_folder(options.data, options.split)
    return None if options.task is None else load_task(options.task)


def _print(options: QuantizeOptions, record: Mapping[str, Any]) -> None:
    out = console()

    def say(text: str = "") -> None:
        out.print(text, soft_wrap=True)

    files, layers = record["files"], record["layers"]
    out.print()
    out.print(headed(record["spec"], f" saved as {record['model_format']}"), soft_wrap=True)
    say(
        f"{sum(files.values()) / _MEGABYTE:,.1f} MB on disk, of which the largest file is "
        f"{max(files.values()) / _MEGABYTE:,.1f} MB"
    )
    for line in _findings(record):
        say(line)
    fallbacks = [layer for layer in layers if layer["fallback"]]
    if fallbacks:
        say(f"{len(fallbacks)} of {len(layers)} layers were rounded to nearest instead:")
        for layer in fallbacks[:4]:
            say(f"  {clean(layer['name'])}: {clean(layer['fallback'])}")
    if left_out := list((record["calibration"] or {}).get("layers_left_out", ())):
        more = f" and {len(left_out) - 4} more" if len(left_out) > 4 else ""  # noqa: PLR2004 -- the first four
        say(f"left at full precision: {', '.join(left_out[:4])}{more}")
    where = str(options.out)
    if where.lower() in {alias.lower() for alias in ALIASES}:  # it would mean that model
        where = f"./{where}"
    say(f"folder: {where}")
    say("\nload it:")
    for line in _loading(where, record["model_format"]):
        out.print(f"  {line}", soft_wrap=True)
    pair = shlex.quote(f"{record['base_model']['name']} vs {where}")
    say("\nsee which answers it changes:")
    out.print(f"  quantdrift run {pair} {_data_option(options)}", soft_wrap=True)


def _findings(record: Mapping[str, Any]) -> list[str]:
    bits, layers = record["bits_per_weight"], record["layers"]
    linear = f"{bits['linear']:g} bits per weight of {len(layers)} linear layers"
    if record["model_format"] == "safetensors":
        return [
            f"{linear}, stored as {record['dtype']}: each weight holds a value of the "
            "grid, so the file is as large as the model's own"
        ]
    packed = [layer for layer in layers if layer["stored"].startswith("MatMulNBits")]
    widths = sorted({layer["stored"].split(",")[1].strip() for layer in packed})
    worst = max(record["onnx"]["difference_to_torch"].values())
    found = [
        f"{linear}; {len(packed)} of them packed at {' and '.join(widths)}, all else {record['dtype']}",
        f"checked: differs from torch by {worst:.1e} relative at most",
    ]
    others: dict[str, list[str]] = {}
    for layer in layers:
        if layer not in packed:
            others.setdefault(layer["stored"], []).append(layer["name"])
    for stored, names in others.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 -- the first three
        found.append(f"{stored}: {', '.join(names[:3])}{more}")
    return found


def _loading(where: str, model_format: str) -> list[str]:
    if model_format == "onnx":
        return [
            "from quantdrift.models.onnx_encoder import load_onnx",
            f"model = load_onnx({where!r})",
            'embeddings = model.encode(["a text"])',
        ]
    return [
        "from sentence_transformers import SentenceTransformer",
        f"model = SentenceTransformer({where!r})",
        'embeddings = model.encode(["a text"])',
    ]


def _data_option(options: QuantizeOptions) -> str:
    if options.task is not None:
        return f"--task {options.task}"
    return f"--data {shlex.quote(str(options.data)) if options.data else 'FOLDER'}"
