"""Two candidates of one reference on the same inputs: is B worse than A, or no worse?

Run A is, say, of minilm@W4-g64 and run B of minilm@W4-channel, on the same corpus. They are joined
by input id; `quantdrift.statistics` then has difference, tests and verdict of each metric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError, RunError
from quantdrift.evidence import Evidence
from quantdrift.identity import Identity
from quantdrift.metrics import Metric, MetricError, parse_metric
from quantdrift.runs import Run, classifies, read_run
from quantdrift.statistics import PairedComparison, PairedSample, compare_samples

# --- Whether two runs belong together: the same data, inputs, reference and settings --------------


def in_both(a: Run, b: Run, one: Evidence, other: Evidence) -> tuple[Evidence, Evidence, list[str]]:
    """The evidence without inputs that the other run leaves out, having measured layers on them.

    Inputs that are missing for another reason stay, and `matching_rows` then refuses the runs.

    Args:
        a: the first run.
        b: the second run.
        one: evidence of the first.
        other: evidence of the second.

    Returns:
        Evidence of either, and what to know: one sentence or none.
    """
    here, there = one.input_ids, other.input_ids
    kept, kept_there = np.isin(here, there), np.isin(there, here)
    left_out = [int(run.record["data"].get("inputs_left_out") or 0) for run in (a, b)]
    only = int((~kept).sum()), int((~kept_there).sum())
    if not any(only) or not kept.any() or only[0] > left_out[1] or only[1] > left_out[0]:
        return one, other, []
    dropped = [f"{count:,} of {name}" for count, name in zip(only, ("A", "B"), strict=True) if count]
    note = (
        f"compared on the {int(kept.sum()):,} inputs that both have; left out because the other "
        f"run's layers were measured on them: {', '.join(dropped)}"
    )
    return one.part(np.flatnonzero(kept)), other.part(np.flatnonzero(kept_there)), [note]


def matching_rows(a: Run, b: Run, one: Evidence, other: Evidence) -> NDArray[np.int64]:
    """The rows of B in the order of A's inputs, int64 [n_inputs].

    Args:
        a: the first run.
        b: the second run.
        one: evidence of the first.
        other: evidence of the second.

    Raises:
        RunError: the runs have another reference, other data, other inputs or other settings that
            change scores; lists everything that differs.
    """
    first, second = (Identity.of(run.record) for run in (a, b))
    wrong = first.differences(second, ("reference", "name", "data", "settings"))
    ids, other_ids = one.input_ids.tolist(), other.input_ids.tolist()
    only_a, only_b = (len(set(x) - set(y)) for x, y in ((ids, other_ids), (other_ids, ids)))
    if only_a or only_b:
        wrong.append(f"inputs: {only_a:,} of {len(ids):,} are only in A, {only_b:,} of {len(other_ids):,} only in B")
    if wrong:
        listed = "".join(f"\n  - {line}" for line in wrong)
        raise RunError(
            f"expected two runs of the same data, reference and settings; {a.path} (A) and "
            f"{b.path} (B) differ in{listed}\nRun one of them again with what the other has; "
            "only the scheme (the part after @) may differ."
        )
    row_of = {name: row for row, name in enumerate(other_ids)}
    return np.array([row_of[name] for name in ids], dtype=np.int64)


def cautions(a: Run, b: Run, one: Evidence, other: Evidence, order: NDArray[np.int64]) -> list[str]:
    """What to know before comparing two runs that match: one sentence each.

    Args:
        a: the first run.
        b: the second run.
        one: evidence of the first.
        other: evidence of the second.
        order: rows of the second by those of the first.
    """
    notes = Identity.of(a.record).differences(Identity.of(b.record), ("software",))
    # inputs without any item have -1 there, in both
    first, second = (
        [run.item_ids[item] if item >= 0 else None for item in run.reference_top.items[rows, 0]]
        for run, rows in ((one, np.arange(one.n_inputs)), (other, order))
    )
    differ = sum(x != y for x, y in zip(first, second, strict=True))
    if differ:
        notes.append(
            f"the reference itself gives another first answer on {differ:,} of {one.n_inputs:,} "
            "inputs (its scores are not the same to the last bit in both runs)"
        )
    return notes


# --- Two candidates of one reference on the same inputs: is B worse than A, or no worse? ----------

DEFAULT_METRICS = (
    "flip@1",
    "gold_lost@1",
    "gold_lost@5",
    "gold_lost@10",
    "ndcg@10",
    "recall@1",
    "recall@10",
    "mrr@10",
    "separation",
)
"""What is compared when nobody asks for particular metrics, where it is defined."""

CLASSIFICATION_METRICS = ("flip@1", "gold_lost@1", "accuracy", "separation")
"""The same of runs on classification data, where an input has one right answer."""

LEAST_ALPHA = 1e-9
"""Nobody means less, and normal quantiles of much less do not exist in floating point."""

MOST_ALPHA = 0.5

STRAY = 0.01
"""Share of the inputs that may have a value in one run only; more are no accident of rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Run B compared with run A.

    Attributes:
        a: the first run.
        b: the second run.
        n_inputs: inputs of either.
        margin: by how much B may be worse, in each metric's own unit; None if not asked.
        alpha: level of the verdicts.
        seed: of resampling and permutations.
        metrics: one comparison per metric.
        notes: what to know before reading them.
    """

    a: Run
    b: Run
    n_inputs: int
    margin: float | None
    alpha: float
    seed: int
    metrics: tuple[PairedComparison, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            **{
                name: {"spec": run.record.get("spec"), "path": str(run.path)}
                for name, run in (("a", self.a), ("b", self.b))
            },
            "data": self.a.record.get("data", {}).get("name"),
            "n_inputs": self.n_inputs,
            "margin": self.margin,
            "alpha": self.alpha,
            "seed": self.seed,
            "notes": list(self.notes),
            "metrics": [metric.to_json() for metric in self.metrics],
        }


def compare_runs(
    a: Run | str | Path,
    b: Run | str | Path,
    metrics: Sequence[Metric | str] | None = None,
    *,
    margin: float | None = None,
    alpha: float = 0.05,
    seed: int = 0,
) -> Comparison:
    """Compare two runs of the same data and reference, metric by metric.

    Args:
        a: the run that is compared with, or its folder.
        b: the run that is asked about, or its folder.
        metrics: which, e.g. ["flip@1", "ndcg@10"]; if not given, those of `DEFAULT_METRICS` (of
            `CLASSIFICATION_METRICS` on classification data) that these runs define.
        margin: by how much B may be worse, in each metric's own unit; None for no such test.
        alpha: level of the verdicts, over all metrics together.
        seed: of resampling and permutations.

    Raises:
        RunError: the runs cannot be compared; lists everything that differs.
        MetricError: a metric that was asked for looks deeper than a run stored.
        QuantDriftError: the margin or alpha is out of its range.
    """
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        raise QuantDriftError(f"alpha is a probability from {LEAST_ALPHA:g} to {MOST_ALPHA}, say 0.05; got {alpha:g}")
    a, b = (run if isinstance(run, Run) else read_run(Path(run)) for run in (a, b))
    one, other = a.evidence(), b.evidence()
    if not one.n_inputs:
        raise RunError(f"there is nothing to compare: {a.path} holds no inputs")
    one, other, shared = in_both(a, b, one, other)
    order = matching_rows(a, b, one, other)
    names = CLASSIFICATION_METRICS if classifies(a.record) else DEFAULT_METRICS
    asked = names if metrics is None else [metrics] if isinstance(metrics, str) else metrics
    chosen = [parse_metric(one) if isinstance(one, str) else one for one in asked]
    samples = []
    for metric in dict.fromkeys(chosen):
        try:
            sample = _sample(metric, one, other, order)
        except MetricError:
            if metrics is None:
                continue
            raise
        if metrics is not None or len(sample.a):
            samples.append(sample)
    _check_margin(margin, samples)
    same = ("A and B are one and the same run",) if a.path.resolve() == b.path.resolve() else ()
    return Comparison(
        a=a,
        b=b,
        n_inputs=one.n_inputs,
        margin=margin,
        alpha=alpha,
        seed=seed,
        metrics=compare_samples(samples, margin=margin, alpha=alpha, seed=seed),
        notes=(*same, *shared, *cautions(a, b, one, other, order)),
    )


def _sample(metric: Metric, one: Evidence, other: Evidence, order: NDArray[np.int64]) -> PairedSample:
    """The values of both runs, where both have one."""
    unlabelled = [name for name, run in (("A", one), ("B", other)) if run.judgements is None]
    if metric.family.needs_labels and unlabelled:
        return _nothing(metric, f"no relevance labels in {' and '.join(unlabelled)}")
    if metric.arm == "relative":
        ask = f"change.{str(metric).removeprefix('relative.')}"
        return _nothing(metric, f"a ratio of means has no value per input; compare {ask}")
    if metric.family.when_cut != "the same" and not (one.exact and other.exact):
        return _nothing(metric, "only a bound is known, of lists that were cut short")
    both_runs = (one, other)
    a, b = (metric.told_apart(metric.per_input(run), both_runs) for run in both_runs)
    b = b[order]
    here, there = ~np.isnan(a), ~np.isnan(b)
    both = here & there
    only_a, only_b = int((here & ~there).sum()), int((there & ~here).sum())
    if not both.any() and not only_a and not only_b:
        return _nothing(metric, metric.family.undefined_when)
    reason = None
    if only_a or only_b:
        uneven = f"{only_a:,} inputs have a value only in A, {only_b:,} only in B"
        if only_a + only_b > STRAY * int(both.sum()):
            return _nothing(metric, f"{uneven}: not the same inputs, so not paired")
        reason = f"{uneven}; they are left out"
    if _of_reference(metric):
        reason = "of the reference, which both runs share"
    if metric.family.cutoff_is == "level":
        reason = (
            "each threshold is calibrated on a part of the run, and no paired test sees that draw; "
            "quantdrift certify shows the spread over splits"
        )
    return PairedSample(metric=str(metric), a=a[both], b=b[both], reason=reason, **_meaning(metric))


def _of_reference(metric: Metric) -> bool:
    return metric.arm == "reference" or metric.family.of_reference


def _meaning(metric: Metric) -> dict[str, Any]:
    family = metric.family
    kinds = {"wilson": "rate", "order statistics": "quantile"}
    percentile = family.cutoff_is == "percentile"
    return {
        "kind": kinds.get(metric.uncertainty, "mean"),
        "better": None
        if metric.direction == "none" or _of_reference(metric) or family.cutoff_is == "level"
        else metric.direction,
        # in a change the reference, which both runs share, cancels
        "span": family.high - family.low if math.isfinite(family.low) else math.inf,
        "q": metric.cutoff / 100 if percentile else 0.5,
    }


def _nothing(metric: Metric, reason: str) -> PairedSample:
    empty = np.empty(0)
    return PairedSample(metric=str(metric), a=empty, b=empty, reason=reason, **_meaning(metric))


def _check_margin(margin: float | None, samples: Sequence[PairedSample]) -> None:
    if margin is None:
        return
    if not 0 < margin < math.inf:
        raise QuantDriftError(f"a margin is above 0, say 0.02; got {margin:g}")
    for sample in samples:
        if sample.tested and sample.better is not None and margin >= sample.span:
            raise QuantDriftError(
                f"the margin is in the metric's own unit, and {sample.metric} cannot differ by "
                f"more than {sample.span:g}; got {margin:g}. For 2 percentage points give 0.02"
            )
