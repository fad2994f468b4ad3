"""The samples of lm-eval that two runs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantdrift.finished.lm_eval.document import HASHES

__all__ = ["shared_samples"]

Samples = Sequence[Mapping[str, Any]]


def shared_samples(a: Samples, b: Samples) -> tuple[Samples, Samples]:
    """The samples of either run whose document, prompt, target and filter the other has too.

    Args:
        a: samples of one task.
        b: those of the other run.
    """
    known = {_identity(sample): sample for sample in b}
    both = {
        _identity(sample)
        for sample in a
        if (other := known.get(_identity(sample))) is not None
        and other["arguments"] == sample["arguments"]
    }
    kept = [[sample for sample in samples if _identity(sample) in both] for samples in (a, b)]
    return kept[0], kept[1]


def _identity(sample: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        sample["doc_id"],
        sample.get("filter"),
        *(sample.get(name) for name in HASHES),
    )
