"""Run folders as points of the law: medians, change rate with its interval, and a unique label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quantdrift import perturbation
from quantdrift.runs import Run, refuse_copies
from quantdrift.spec import Spec
from quantdrift.statistics import Estimate, rate_estimate
from quantdrift.theory.law import LawPoint, law_point
from quantdrift.versus import Versus, parse_pair
from quantdrift.widths import FULL_BITS

__all__ = ["LawRun", "law_runs", "refuse_copies", "spec_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawRun:
    """One run, and where it comes from.

    Attributes:
        path: its folder.
        point: medians and change rate, under a label no other run has.
        changed: the change rate with its 95 % Wilson interval, in [0, 1].
        spec: the pair.
        data: name of the corpus.
        n_documents: its size.
        stored_bits: weight bits of a candidate that was stored; None for one that a scheme made.
    """

    path: Path
    point: LawPoint
    changed: Estimate
    spec: Spec | Versus
    data: str
    n_documents: int
    stored_bits: float | None = None

    @property
    def bits(self) -> str:
        """Weight and activation bits as a spec spells them, e.g. W4 or W4A8."""
        if isinstance(self.spec, Versus):
            return "stored" if self.stored_bits is None else f"W{self.stored_bits:g}"
        return str(self.spec.scheme).partition("-")[0]

    @property
    def width(self) -> tuple[float, int]:
        """Weight and activation bits, by which runs are sorted; 16 are bits that are left alone."""
        if isinstance(self.spec, Versus):
            return self.stored_bits or FULL_BITS, FULL_BITS
        return self.spec.scheme.weight_bits, self.spec.scheme.activation_bits or FULL_BITS


def spec_of(run: Run) -> Spec | Versus:
    """The pair of a run.

    Raises:
        SpecError: this version cannot read what it names.
    """
    return parse_pair(run.record["spec"])


def law_runs(runs: Sequence[Run]) -> list[LawRun]:
    """Read runs as points.

    A label is `SPEC on DATA`; where two runs share it, the number of documents and then the folder
    are added.

    Args:
        runs: as found on disk; each folder once.

    Returns:
        One per run, in that order.

    Raises:
        RunError: a run lies there twice, or one cannot be read.
        TheoryError: a run has no input with two items.

    Source: paper, section 5.2.
    """
    specs = [spec_of(run) for run in runs]
    refuse_copies(runs)
    found = [_law_run(run, spec) for run, spec in zip(runs, specs, strict=True)]
    more: tuple[Callable[[LawRun], str], ...] = (
        lambda run: f"{run.n_documents:,} documents",
        lambda run: str(run.path),
    )
    for addition in more:
        times = Counter(run.point.label for run in found)
        found = [
            run
            if times[run.point.label] == 1
            else replace(run, point=replace(run.point, label=f"{run.point.label}, {addition(run)}"))
            for run in found
        ]
    return found


def _stored_bits(run: Run) -> float | None:
    """What its method calls itself, else what was counted in its files."""
    nominal = run.record.get("quantization", {}).get("nominal_bits")
    counted = run.record.get("bits_per_weight") or {}  # null where a server has the weights
    found = nominal or counted.get("linear")
    return None if found is None else round(float(found), 2)


def _law_run(run: Run, spec: Spec | Versus) -> LawRun:
    evidence = run.exact_evidence("the law")
    data = str(run.record["data"]["name"])
    n_documents = run.record["data"].get("n_documents")
    scored = evidence.n_items > 0
    point = law_point(evidence, label=f"{spec} on {data}")  # says so if nothing was scored
    return LawRun(
        path=run.path,
        point=point,
        changed=rate_estimate(perturbation.flips(evidence)[scored].astype(np.float64)),
        spec=spec,
        data=data,
        n_documents=int(evidence.n_items.max()) if n_documents is None else int(n_documents),
        stored_bits=_stored_bits(run) if isinstance(spec, Versus) else None,
    )
