"""Runs of one reference, written by hand."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import Run, write_run
from support import small_evidence

N, ITEMS = 60, 12
COMPUTED = {"similarity": "cosine", "dtype": "torch.float32", "device": "cpu", "torch": "2.6"}
RECORD: dict[str, Any] = {
    "spec": "minilm@W4-g64-rtn",
    "model": {"name": "minilm", "fingerprint": "reference"},
    "data": {"name": "corpus", "split": "test", "fingerprint": "texts"},
    "settings": {"k": ITEMS, "batch_size": 32, "seed": 0, "noise_floor": False, **COMPUTED},
}


def scores() -> NDArray[np.float64]:
    """Scores of a reference: every input ranks the items in an order of its own."""
    return np.random.default_rng(0).permuted(np.tile(np.linspace(0, 1, ITEMS), (N, 1)), axis=1)


def flipped(reference: NDArray[np.float64], rows: range) -> NDArray[np.float64]:
    """A candidate that agrees except that in these rows ranks 1 and 2 change places."""
    candidate, order = reference.copy(), np.argsort(-reference, axis=1)
    for row in rows:
        candidate[row, order[row, :2]] = reference[row, order[row, 1::-1]]
    return candidate


def evidence_of(
    reference: NDArray[np.float64],
    candidate: NDArray[np.float64],
    *,
    k: int = ITEMS,
    labels: bool = True,
    names: list[str] | None = None,
) -> Evidence:
    """The best item of the reference is the relevant one, for every input."""
    names = names or [f"q{row}" for row in range(len(reference))]
    qrels = {name: {f"d{item}": 1} for name, item in zip(names, reference.argmax(axis=1), strict=True)}
    named = {"input_ids": names, "item_ids": [f"d{item}" for item in range(ITEMS)]}
    return small_evidence.evidence_of(reference, candidate, k=k, qrels=qrels if labels else None, **named)


def run_of(path: Path, evidence: Evidence, **changes: Any) -> Run:
    """A run whose record differs from `RECORD` in these parts."""
    record = {**RECORD}
    for part, change in changes.items():
        record[part] = {**RECORD.get(part, {}), **change} if isinstance(change, dict) else change
    return write_run(path, evidence=evidence, record=record)
