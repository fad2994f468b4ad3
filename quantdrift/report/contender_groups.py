"""Runs sorted into groups that share one effective scale, and what the model predicts in each.

Source: paper, appendix A, the table of predicted and measured rates by contender count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from quantdrift import perturbation
from quantdrift.errors import UnknownNameError
from quantdrift.progress import Progress, Silent
from quantdrift.report.law_runs import spec_of
from quantdrift.runs import Run, refuse_copies
from quantdrift.theory import ContenderBucket, ContenderPrediction, predicted_by_contender_count
from quantdrift.versus import Versus

__all__ = [
    "ContenderGroup",
    "GroupBy",
    "buckets_with_inputs",
    "contender_findings",
    "contender_groups",
    "lies_within",
]

GroupBy = Literal["scheme", "data", "none"]
"""Which runs share a scale: those of one scheme, those on one corpus, all of them."""

ALL = "all runs"
ENOUGH = 30
"""Inputs from which a bucket is a test; the interval of fewer is wider than most predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderGroup:
    """Runs that share one scale.

    Attributes:
        name: the scheme, the corpus, or "all runs".
        paths: folders of its runs.
        prediction: predicted and measured flip rate per contender count.
        n_list_full: inputs of which every stored rank is a contender, while more items were scored:
            their count is a lower bound, and they may belong in a higher bucket.
        repeated: whether some corpus occurs in several of its runs, so that the same inputs count
            more than once and the intervals are too narrow.
    """

    name: str
    paths: tuple[str, ...]
    prediction: ContenderPrediction
    n_list_full: int
    repeated: bool


def contender_groups(
    runs: Sequence[Run], *, group_by: str = "scheme", progress: Progress | None = None
) -> list[ContenderGroup]:
    """Fit one scale per group, and predict flip rates per contender count.

    Args:
        runs: as found on disk.
        group_by: one of GroupBy.
        progress: where progress is shown; nowhere if not given.

    Returns:
        Groups in order of their first run.

    Raises:
        UnknownNameError: `group_by` is none of GroupBy.
        RunError: a run lies there twice, or one cannot be read.
        TheoryError: no input of a group has an item.

    Source: paper, appendix A ("The predicted curve").
    """
    if group_by not in get_args(GroupBy):
        known = get_args(GroupBy)
        raise UnknownNameError("grouping", group_by, known, hint=f"(--group-by {', '.join(known)})")
    members: dict[str, list[Run]] = {}
    for run in runs:
        names = {
            "scheme": _scheme(run),
            "data": str(run.record["data"]["name"]),
            "none": ALL,
        }
        members.setdefault(names[group_by], []).append(run)
    refuse_copies(runs)
    groups = []
    with (progress or Silent()).stage("one scale per group", len(members)) as tell:
        for name, group in members.items():
            groups.append(_group(name, group))
            tell(1)
    return groups


def _scheme(run: Run) -> str:
    spec = spec_of(run)
    return f"vs {spec.candidate}" if isinstance(spec, Versus) else str(spec.scheme)


def _group(name: str, runs: Sequence[Run]) -> ContenderGroup:
    evidence = [run.exact_evidence("the number of contenders") for run in runs]
    corpora = [(run.record["data"]["name"], run.record["data"].get("fingerprint")) for run in runs]
    return ContenderGroup(
        name=name,
        paths=tuple(str(run.path) for run in runs),
        prediction=predicted_by_contender_count(evidence),
        n_list_full=sum(int(perturbation.contenders_cut_short(one).sum()) for one in evidence),
        repeated=len(set(corpora)) < len(corpora),
    )


def buckets_with_inputs(group: ContenderGroup) -> list[ContenderBucket]:
    """The buckets that hold an input, in order."""
    return [bucket for bucket in group.prediction.buckets if bucket.measured.value is not None]


def lies_within(bucket: ContenderBucket) -> bool | None:
    """Whether the prediction lies in the 95 % interval of the measured rate; None without either.

    For no contenders this is no test: neither the model nor anything else can flip these.
    """
    low, high = bucket.measured.low, bucket.measured.high
    if bucket.predicted is None or low is None or high is None:
        return None
    return low <= bucket.predicted <= high


def contender_findings(groups: Sequence[ContenderGroup]) -> list[str]:
    """What predicted and measured rates say of the model, in plain sentences.

    Counted are buckets with at least 30 inputs: any prediction lies in the interval of a few.
    Those without contenders are not: nothing can flip there, in the model neither.
    """
    tested = [
        (bucket, group)
        for group in groups
        for bucket in buckets_with_inputs(group)
        if bucket.low > 0 and bucket.predicted is not None and bucket.measured.n >= ENOUGH
    ]
    lines = []
    if tested:
        inside = sum(bool(lies_within(bucket)) for bucket, _ in tested)
        over = sum(_is_over(bucket) for bucket, _ in tested)
        lines.append(
            f"Where {ENOUGH} inputs or more have contenders, {inside} of {len(tested)} predictions "
            "lie in the 95 % interval of the measured rate. " + _verdict(inside, over, len(tested))
        )
        fitted = sum(_holds_most_flips(bucket, group) for bucket, group in tested)
        if fitted:
            lines.append(
                f"{fitted} of these rows hold more than half of the flips that their group's scale "
                "was fitted on, so they are close by construction."
            )
    else:
        lines.append(
            f"No prediction for {ENOUGH} inputs or more with contenders, so the model was not put "
            "to the test."
        )
    for group in groups:
        fit = group.prediction.fit
        if fit.scale is None:
            lines.append(f"{group.name}: no scale, because {fit.reason}.")
        elif fit.scale > 1:
            lines.append(
                f"{group.name}: the scale is above 1, farther than any score moved. The model does "
                "NOT fit this group."
            )
    cut = sum(bucket.n_cut_short for group in groups for bucket in group.prediction.buckets)
    if cut:
        lines.append(
            f"For {cut:,} inputs the stored list ends among items that could still overtake; "
            "their prediction is too low. Run again with a larger --k."
        )
    full = sum(group.n_list_full for group in groups)
    if full:
        lines.append(
            f"{full:,} inputs have more contenders than stored ranks, and stand in the bucket of "
            "the last rank stored. Run again with a larger --k to see how many."
        )
    if any(group.repeated for group in groups):
        lines.append(
            "Some groups hold several runs on one corpus: the same inputs count in each, so the "
            "intervals are narrower than they should be."
        )
    return lines


def _is_over(bucket: ContenderBucket) -> bool:
    high = bucket.measured.high
    return bucket.predicted is not None and high is not None and bucket.predicted > high


def _holds_most_flips(bucket: ContenderBucket, group: ContenderGroup) -> bool:
    flips = float(bucket.measured.value or 0) * bucket.measured.n
    return 2 * flips > group.prediction.fit.observed * group.prediction.fit.n


def _verdict(inside: int, over: int, n: int) -> str:
    if inside == n:
        return "The model is in line with everything measured."
    missed = n - inside
    text = f"Of the other {missed}, {over} are too high and {missed - over} too low."
    return text if 2 * inside >= n else text + " The model does NOT describe these runs."
