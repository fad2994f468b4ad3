"""Finished studies made of random numbers: the run folders of every cell, without a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.metrics import measure
from quantdrift.spec.grammar import parse_scheme
from quantdrift.study.folder import StudyFolder, plan_into
from quantdrift.study.plan import Cell, cells_of
from quantdrift.study.plan import study_of as read
from support.comparison_samples import run_of
from support.routing_samples import classified, logits, searched, similarities

CLASSES = "classes"
"""Data of this name are labelled inputs; others are searched."""
Finished = tuple[Evidence, Mapping[str, Any]]
"""The evidence of a cell, and what its record has beside or in place of that of `comparison_samples`."""


def planned(folder: Path, content: Mapping[str, Any], finished: Callable[[Cell], Finished | None]) -> StudyFolder:
    """Plan a study, and write the runs of its cells that are finished; the others are open."""
    study = read(content, folder / "study.yaml", folder=folder)
    cells = cells_of(study)
    made = plan_into(folder, cells, [f"mark {number}" for number in range(len(cells))], capture=study.capture)
    for cell in made.cells:
        if run := finished(cell):
            run_of(made.place(cell.name), run[0], **{"spec": str(cell.spec), "cell": cell.fingerprint, **run[1]})
    return made


def study_of(
    folder: Path,
    *,
    models: Sequence[str],
    schemes: Sequence[str],
    data: Sequence[str],
    n: int = 60,
    missing: Sequence[str] = (),
    metrics: bool = False,
    **more: Any,
) -> StudyFolder:
    """A study of searches and, where data are called so, of classes; cells of schemes in `missing` are open."""
    left_out = [parse_scheme(scheme) for scheme in missing]

    def finished(cell: Cell) -> Finished | None:
        scheme, called = cell.spec.scheme, cell.data.called
        if scheme in left_out:
            return None
        evidence = _evidence(scheme.weight_bits, models.index(cell.model), scheme.quantizer, called, n)
        record = _record(cell, evidence)
        if metrics:
            record["metrics"] = {name: estimate.to_json() for name, estimate in measure(evidence).items()}
        return evidence, record

    entries = [{"folder": f"/{name}", "name": name} for name in data]
    return planned(folder, {"models": [*models], "schemes": [*schemes], "data": entries, **more}, finished)


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


def _record(cell: Cell, evidence: Evidence) -> dict[str, Any]:
    scheme, called = cell.spec.scheme, cell.data.called
    quantization: dict[str, Any] = {"quantizer": scheme.quantizer}
    if scheme.criterion is not None:
        names = [f"layer.{number}.{kind}" for number in range(6) for kind in ("query", "key", "value", "dense")]
        quantization["allocation"] = {
            "criterion": scheme.criterion,
            "data_digest": f"queries of {cell.spec}",
            "widths": {name: 3 + number % 2 for number, name in enumerate(names)},
            "losses": {name: 1.0 / (1 + number) for number, name in enumerate(names)},
        }
    kind = {"kind": "classification", "inputs": "texts", "n_inputs": evidence.n_inputs}
    size = kind if called.startswith(CLASSES) else {"n_queries": evidence.n_inputs, "n_documents": 30}
    weights = {"fingerprint": f"weights of {cell.model}", "candidate_fingerprint": str(cell.spec)}
    bits = {"linear": scheme.weight_bits, "linear_with_scales": scheme.weight_bits + 0.125}
    return {
        "model": {"name": cell.model, **weights},
        "bits_per_weight": {**bits, "n_parameters": 22_000_000},
        "quantization": quantization,
        "data": {"name": called, "fingerprint": f"texts of {called}", **size},
        "settings": {"k": evidence.depth},
    }
