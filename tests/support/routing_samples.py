"""Runs to route: a classifier with labels, and a search, both small and made of random numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.measuring.readings import evidence_of_logits
from quantdrift.runs.folder import Run, write_run
from support.metric_samples import names
from support.small_evidence import evidence_of


def logits(n: int = 400, n_classes: int = 4, noise: float = 0.5, seed: int = 0) -> Any:
    """(reference, candidate, labels): the reference is right where its margin tells the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=n)
    return _arms(rng, rng.normal(0, 1, (n, n_classes)), labels, lead=2.5, noise=noise)


def _arms(rng: np.random.Generator, drawn: Any, right: Any, *, lead: float, noise: float) -> Any:
    """The reference of scores that were drawn, in which what is right leads; the candidate, which has noise; and it."""
    drawn[np.arange(len(right)), right] += lead
    candidate = drawn + rng.normal(0, noise, drawn.shape)
    return drawn.astype(np.float32), candidate.astype(np.float32), right


def classified(reference: Any, candidate: Any, labels: Any = None, *, noise: Noise | None = None) -> Evidence:
    """Evidence of a classifier from logits written by hand."""
    before, after = (np.asarray(arm, dtype=np.float32) for arm in (reference, candidate))
    classes = [f"c{number}" for number in range(before.shape[1])]
    made = evidence_of_logits(
        before,
        after,
        input_ids=[f"x{number}" for number in range(len(before))],
        classes=classes,
        labels=None if labels is None else [classes[number] for number in labels],
    )
    return replace(made, noise=noise)


def searched(reference: Any, candidate: Any, relevant: Any = None, *, depth: int | None = None) -> Evidence:
    """Evidence of a search from similarities written by hand; one relevant item per query."""
    before, after = (np.asarray(arm, dtype=np.float32) for arm in (reference, candidate))
    qrels = None if relevant is None else {f"q{row}": {f"d{item}": 1} for row, item in enumerate(relevant)}
    n_items = before.shape[1]
    return evidence_of(before, after, k=depth or n_items, qrels=qrels, item_ids=names(n_items))


def similarities(n: int = 120, n_items: int = 30, noise: float = 0.1, seed: int = 0) -> Any:
    """(reference, candidate, relevant item of each query)."""
    rng = np.random.default_rng(seed)
    relevant = rng.integers(n_items, size=n)
    return _arms(rng, rng.uniform(0, 0.8, (n, n_items)), relevant, lead=0.3, noise=noise)


def run_of(
    path: Path, evidence: Evidence, *, spec: str = "vit@W4-channel-rtn", candidate: str | None = None, **settings: str
) -> Run:
    """A run folder on data of the folder's name."""
    record = {
        "spec": spec,
        "model": {"name": spec.partition("@")[0], "fingerprint": "weights", "candidate_fingerprint": candidate},
        "data": {"name": path.name, "split": "test", "fingerprint": f"data of {path.name}"},
        "settings": {"k": evidence.depth, **settings},
    }
    return write_run(path, evidence=evidence, record=record)
