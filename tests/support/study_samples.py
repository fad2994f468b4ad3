"""Finished studies made of random numbers: the run folders of every cell, without a model."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.metrics import measure
from quantdrift.runs.folder import write_run
from quantdrift.spec.grammar import parse
from quantdrift.study.folder import STUDY, StudyFolder, StudyRecord
from quantdrift.study.grid import CaptureGrid
from quantdrift.study.plan import Cell, CellSettings, DataEntry
from support.routing_samples import classified, logits, searched, similarities

SCHEMES = ("W8", "W4", "W3", "W4-gptq", "W3-gptq", "W3.5+gap")
CLASSES = "classes"
"""Data of this name are labelled inputs; others are searched."""


def study_of(
    folder: Path,
    *,
    models: Sequence[str] = ("minilm", "e5"),
    schemes: Sequence[str] = SCHEMES,
    data: Sequence[str] = ("cranfield", "scifact"),
    n: int = 60,
    missing: Sequence[str] = (),
    metrics: bool = False,
    capture: CaptureGrid | None = None,
) -> StudyFolder:
    """A study of searches and, where data are called so, of classes; cells of schemes in `missing` are open."""
    cells = []
    for model in models:
        for name in data:
            for scheme in schemes:
                spec = parse(f"{model}@{scheme}")
                cell = Cell(
                    name=f"cell{len(cells)}",
                    spec=spec,
                    model=model,
                    data=DataEntry(folder=f"/{name}", name=name),
                    settings=CellSettings(),
                    fingerprint=f"mark {len(cells)}",
                )
                cells.append(cell)
                if scheme not in missing:
                    evidence = _evidence(spec.scheme.weight_bits, models.index(model), spec.scheme.quantizer, name, n)
                    record = _record(cell, spec, evidence)
                    if metrics:
                        record["metrics"] = {key: one.to_json() for key, one in measure(evidence).items()}
                    write_run(folder / "cells" / cell.name, evidence=evidence, record=record)
    folder.mkdir(parents=True, exist_ok=True)
    StudyRecord(cells=tuple(cells), capture=capture).write(folder / STUDY)
    return StudyFolder(path=folder, cells=tuple(cells), capture=capture)


@cache
def _evidence(bits: float, model: int, quantizer: str, data: str, n: int) -> Evidence:
    seed = sum(map(ord, quantizer + data)) + model
    noise = 0.4 * 2.0**-bits * (1 + 0.3 * model) * (0.7 if quantizer == "gptq" else 1.0)
    if data.startswith(CLASSES):
        made = classified(*logits(n, n_classes=6, noise=24 * noise, seed=seed))
    else:
        made = searched(*similarities(n, noise=noise, seed=seed))
    floor = Noise(flips=np.arange(n) == 0, epsilon=np.full(n, 1e-7, dtype=np.float32))
    return replace(made, noise=floor)


def _record(cell: Cell, spec: Any, evidence: Evidence) -> dict[str, Any]:
    bits, called = spec.scheme.weight_bits, cell.data.called
    quantization: dict[str, Any] = {"quantizer": spec.scheme.quantizer}
    if spec.scheme.criterion is not None:
        names = [f"layer.{number}.{kind}" for number in range(6) for kind in ("query", "key", "value", "dense")]
        quantization["allocation"] = {
            "criterion": spec.scheme.criterion,
            "data_digest": f"queries of {cell.spec}",
            "widths": {name: 3 + number % 2 for number, name in enumerate(names)},
            "losses": {name: 1.0 / (1 + number) for number, name in enumerate(names)},
        }
    kind = {"kind": "classification", "inputs": "texts", "n_inputs": evidence.n_inputs}
    return {
        "spec": str(cell.spec),
        "cell": cell.fingerprint,
        "model": {
            "name": cell.model,
            "fingerprint": f"weights of {cell.model}",
            "candidate_fingerprint": str(cell.spec),
        },
        "bits_per_weight": {"linear": bits, "linear_with_scales": bits + 0.125, "n_parameters": 22_000_000},
        "quantization": quantization,
        "data": {
            "name": called,
            "split": "test",
            "fingerprint": f"texts of {called}",
            **(kind if called.startswith(CLASSES) else {"n_queries": evidence.n_inputs, "n_documents": 30}),
        },
        "settings": {"k": evidence.depth},
    }
