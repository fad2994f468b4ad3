"""Two candidates of one reference on the same inputs: is B worse than A, or no worse?

For example, run A is of minilm@W4-g64 and run B of minilm@W4-channel, on the same corpus. They are joined by input id,
and `quantdrift.statistics` computes difference, tests and verdict of each metric.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import Metric, MetricError, parse_metric
from quantdrift.runs.folder import Run, read_run
from quantdrift.runs.identity import Identity, classifies
from quantdrift.statistics.estimates import as_json
from quantdrift.statistics.verdicts import PairedComparison, PairedSample, compare_samples

DEFAULT_METRICS = (
    "flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10", "ndcg@10", "recall@1", "recall@10", "mrr@10", "separation",
)  # fmt: skip
"""The default metrics of a comparison."""

CLASSIFICATION_METRICS = ("flip@1", "gold_lost@1", "accuracy", "separation")
"""Default metrics of runs on classification data, where an input has one right answer."""

JUDGED = frozenset({"flip@1", "gold_lost@10", "ndcg@10", "accuracy"})
"""The default metrics that get a verdict, as they do in a gate that has no rules of its own; the others are shown."""

LEAST_ALPHA, MOST_ALPHA = 1e-9, 0.5
"""The range of alpha; below it, normal quantiles are not accurate in floating point."""

STRAY = 0.01
"""Most inputs, as a share, that may have a value in only one run; rounding does not explain more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Run B compared with run A.

    Attributes:
        a: the first run.
        b: the second run.
        n_inputs: number of inputs that both have.
        margin: the difference by which B may be worse, in each metric's own unit; None if not given.
        alpha: level of the verdicts.
        seed: seed of resampling and permutations.
        metrics: one comparison per metric.
        notes: remarks on the comparison.
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
        """The comparison as a JSON object."""
        arms = {"a": self.a, "b": self.b}
        return {
            **{arm: {"spec": run.record.get("spec"), "path": str(run.path)} for arm, run in arms.items()},
            "data": self.a.record.get("data", {}).get("name"),
            **{name: getattr(self, name) for name in ("n_inputs", "margin", "alpha", "seed")},
            "notes": list(self.notes),
            "metrics": as_json(self.metrics),
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
        a: the run to compare with, or its folder.
        b: the run to judge, or its folder.
        metrics: e.g. ["flip@1", "ndcg@10"]; by default those of `DEFAULT_METRICS` (or `CLASSIFICATION_METRICS` on
            classification data) that are defined for these runs, of which `JUDGED` get a verdict.
        margin: the difference by which B may be worse, in each metric's own unit; None for no such test.
        alpha: level of the verdicts, over all judged metrics together.
        seed: seed of resampling and permutations.

    Raises:
        RunError: the runs cannot be compared; lists everything that differs.
        MetricError: a metric that was asked for needs more ranks than a run stored.
        QuantDriftError: the margin or alpha is out of its range.
    """
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        raise QuantDriftError(f"alpha is a probability from {LEAST_ALPHA:g} to {MOST_ALPHA}, say 0.05; got {alpha:g}")
    a, b = (run if isinstance(run, Run) else read_run(Path(run)) for run in (a, b))
    here, there, notes = joined(a, b)
    names = CLASSIFICATION_METRICS if classifies(a.record) else DEFAULT_METRICS
    asked = names if metrics is None else [metrics] if isinstance(metrics, str) else metrics
    samples = []
    for metric in dict.fromkeys(parse_metric(metric) if isinstance(metric, str) else metric for metric in asked):
        try:
            sample = _sample(metric, here, there)
        except MetricError:
            if metrics is not None:
                raise
            continue
        if metrics is not None or len(sample.a):
            samples.append(sample)
    judged = JUDGED if metrics is None else None
    tests = compare_samples(samples, margin=margin, alpha=alpha, seed=seed, judged=judged)
    return Comparison(
        a=a, b=b, n_inputs=here.n_inputs, margin=margin, alpha=alpha, seed=seed, metrics=tests, notes=tuple(notes)
    )


def joined(a: Run, b: Run) -> tuple[Evidence, Evidence, list[str]]:
    """The evidence of both runs on the same inputs in the same order, and remarks.

    Inputs that one run does not have, because its layers were measured on them, are left out of the other.
    """
    first, second = a.evidence(), b.evidence()
    if not first.n_inputs:
        raise RunError(f"there is nothing to compare: {a.path} holds no inputs")
    notes = ["A and B are one and the same run"] if a.path.resolve() == b.path.resolve() else []
    kept, kept_there = np.isin(first.input_ids, second.input_ids), np.isin(second.input_ids, first.input_ids)
    only_a, only_b = int((~kept).sum()), int((~kept_there).sum())
    left_out = [int(run.record.get("data", {}).get("inputs_left_out") or 0) for run in (a, b)]
    explained = kept.any() and only_a <= left_out[1] and only_b <= left_out[0]
    here, there = (Identity.of(run.record) for run in (a, b))
    wrong = here.differences(there, ("reference", "name", "data", "meaning"))
    if (only_a or only_b) and not explained:
        wrong.append(
            f"inputs: {only_a:,} of {first.n_inputs:,} are only in A, {only_b:,} of {second.n_inputs:,} only in B"
        )
    if wrong:
        listed = "".join(f"\n  - {line}" for line in wrong)
        raise RunError(
            f"expected two runs of the same data, reference and settings; {a.path} (A) and {b.path} (B) differ "
            f"in{listed}\nRun one of them again with what the other has; only the scheme (the part after @) may differ."
        )
    if only_a or only_b:
        notes.append(
            f"compared on the {int(kept.sum()):,} inputs that both have; left out because the other run's layers were "
            f"measured on them: {only_a:,} of A, {only_b:,} of B"
        )
        first = first.part(np.flatnonzero(kept))
    second = second.part(second.rows_of(first.input_ids.tolist()))
    notes += here.differences(there, ("software",))
    names = [
        np.where(run.reference_top.items[:, 0] >= 0, run.item_ids[run.reference_top.items[:, 0]], "")
        for run in (first, second)
    ]
    if differ := int((names[0] != names[1]).sum()):
        notes.append(
            f"the reference itself gives another top-1 on {differ:,} of {first.n_inputs:,} "
            "inputs (its scores are not the same to the last bit in both runs)"
        )
    return first, second, notes


def _sample(metric: Metric, first: Evidence, second: Evidence) -> PairedSample:
    """The values of both runs on inputs with a value in both."""
    family, both_runs = metric.family, (first, second)
    # the reference is shared by both runs; in a change it cancels
    shared = metric.arm == "reference" or family.of_reference
    direction = None if metric.direction == "none" or shared or family.cutoff_is == "level" else metric.direction

    def sample(reason: str | None, a: Any = (), b: Any = ()) -> PairedSample:
        return PairedSample(
            metric=str(metric),
            a=np.asarray(a, dtype=np.float64),
            b=np.asarray(b, dtype=np.float64),
            reason=reason,
            kind=metric.kind,
            better=direction,
            span=metric.span,
            q=metric.cutoff / 100 if family.cutoff_is == "percentile" else 0.5,
        )

    unlabelled = [name for name, run in (("A", first), ("B", second)) if run.judgements is None]
    if family.needs_labels and unlabelled:
        return sample(f"no relevance labels in {' and '.join(unlabelled)}")
    if metric.arm == "relative":
        ask = f"change.{str(metric).removeprefix('relative.')}"
        return sample(f"a ratio of means has no value per input; compare {ask}")
    if family.when_cut != "the same" and not (first.exact and second.exact):
        return sample("only a bound is known, as the lists are truncated")
    a, b = (metric.told_apart(metric.per_input(run), both_runs) for run in both_runs)
    here, there = ~np.isnan(a), ~np.isnan(b)
    both = here & there
    only_a, only_b = int((here & ~there).sum()), int((there & ~here).sum())
    uneven = f"{only_a:,} inputs have a value only in A, {only_b:,} only in B"
    if not (here | there).any():
        return sample(family.undefined_when)
    if only_a + only_b > STRAY * int(both.sum()):
        return sample(f"{uneven}: not the same inputs, so not paired")
    reason = f"{uneven}; they are left out" if only_a or only_b else None
    if shared:
        reason = "a value of the reference, which both runs share"
    if family.cutoff_is == "level":
        reason = "each threshold is calibrated on a part of the run, a choice that no paired test takes into account"
    return sample(reason, a[both], b[both])
