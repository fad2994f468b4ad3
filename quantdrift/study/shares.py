"""The share of each stage of a deployment in the changed answers.

A study has a cell for every combination of the stages of one scheme. With v(S) the change of an input's value by the
stages S alone, the share of a stage is its Shapley value: the mean of v(S + stage) - v(S) over all orders of the
stages. The shares add up to the change by the whole deployment, exactly and for every input.

Source: Shapley (1953), A value for n-person games.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import StudyError
from quantdrift.evidence.record import Evidence
from quantdrift.kinds.stage import STAGES
from quantdrift.metrics import Metric, parse_metric
from quantdrift.runs.verdict import Verdict, advised, verdict
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import only, stages_of
from quantdrift.statistics.estimates import Estimate, as_json, mean_estimate, undefined
from quantdrift.study.folder import StudyFolder

METRICS = ("flip@1", "gold_lost@10", "change.ndcg@10")
Values = NDArray[np.float64]
Stages = frozenset[str]


def combinations_of(scheme: Scheme) -> list[Scheme]:
    """The scheme with every combination of its stages, the fewest first.

    Raises:
        StudyError: the scheme has only one stage.
    """
    stages = stages_of(scheme)
    if len(stages) < 2:  # noqa: PLR2004 -- a share needs another stage
        raise StudyError(
            f"{scheme} has the stage {stages[0]} alone; expected two or more, such as W4+emb=int8+index=HNSW32"
        )
    if scheme.query_only and any(STAGES[name].kind == "model" for name in stages):
        raise StudyError(f"{scheme}: with +query a stage of the model cannot be measured alone; leave +query out")
    schemes = [only(scheme, subset) for subset in _subsets(stages)]
    return [part for part in schemes if part is not None]


def _subsets(stages: Sequence[str]) -> Iterable[tuple[str, ...]]:
    return chain.from_iterable(combinations(stages, size) for size in range(len(stages) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The changes by one stage, in the metric's unit.

    Attributes:
        name: name of the stage.
        alone: the change by this stage alone.
        so_far: the change by this stage and all before it.
        share: its Shapley value.
    """

    name: str
    alone: Estimate
    so_far: Estimate
    share: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """The change of one metric by stages.

    Attributes:
        metric: the metric.
        stages: the stages in the order of a deployment.
        total: the change by all of them.
        interaction: `total` minus the sum of the changes by each alone; below 0 if several change the same inputs.
        n: inputs for which the metric is defined.
    """

    metric: Metric
    stages: tuple[Stage, ...]
    total: Estimate
    interaction: Estimate
    n: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**as_json(self), "metric": str(self.metric)}


def waterfall(values: Mapping[Stages, Values], order: Sequence[str], metric: Metric) -> Waterfall:
    """Compute the shares of a change.

    Args:
        values: each non-empty combination of stages to the changes of the same inputs, float64 [n_inputs]; NaN where
            undefined.
        order: the stages in the order of a deployment.
        metric: the metric.
    """
    defined = reduce(np.logical_and, [~np.isnan(changes) for changes in values.values()])
    n, size = int(defined.sum()), len(order)
    values_of: dict[Stages, Values] = {frozenset(): np.zeros(n)}
    values_of |= {stages: changes[defined] for stages, changes in values.items()}

    def estimate(changes: Values) -> Estimate:
        return mean_estimate(changes) if n else undefined(metric.family.undefined_when)

    stages = []
    for number, name in enumerate(order):
        share = np.zeros(n)
        for others in map(frozenset, _subsets([other for other in order if other != name])):
            weight = factorial(len(others)) * factorial(size - len(others) - 1) / factorial(size)
            share += weight * (values_of[others | {name}] - values_of[others])
        stages.append(
            Stage(
                name=name,
                alone=estimate(values_of[frozenset({name})]),
                so_far=estimate(values_of[frozenset(order[: number + 1])]),
                share=estimate(share),
            )
        )
    whole = values_of[frozenset(order)]
    return Waterfall(
        metric=metric,
        stages=tuple(stages),
        total=estimate(whole),
        interaction=estimate(whole - sum(values_of[frozenset({name})] for name in order)),
        n=n,
    )


def waterfalls_of(folder: StudyFolder) -> list[Waterfall]:
    """The waterfall of each metric, from the finished cells of a study.

    Raises:
        StudyError: it is another kind of study, or a cell is missing.
    """
    if folder.record.kind != "waterfall":
        raise StudyError(f"expected a folder that quantdrift waterfall wrote; got {folder.path}")
    evidence: dict[Stages, Evidence] = {}
    for cell in folder.cells:
        if (run := folder.run(cell)) is None:
            raise StudyError(
                f"{folder.path}: {cell.spec} is {folder.state(cell)}, and shares need all combinations; run the same "
                "command again"
            )
        evidence[frozenset(stages_of(cell.spec.scheme))] = run.evidence()
    order = stages_of(folder.cells[-1].spec.scheme)
    if len(evidence) != 2 ** len(order) - 1:
        raise StudyError(f"{folder.path} lacks combinations of {', '.join(order)}; make it again")
    shared = sorted(set.intersection(*({*part.input_ids.tolist()} for part in evidence.values())))
    metrics = [parse_metric(name) for name in METRICS]
    if next(iter(evidence.values())).judgements is None:
        metrics = [metric for metric in metrics if not metric.family.needs_labels]
    # the inputs of all cells, in one order
    parts = {stages: part.part(part.rows_of(shared)) for stages, part in evidence.items()}
    return [
        waterfall({stages: metric.per_input(part) for stages, part in parts.items()}, order, metric)
        for metric in metrics
    ]


def judged_whole(record: Mapping[str, Any], first: Waterfall) -> Verdict:
    """The verdict on the whole deployment, with advice on the stage that changes most."""
    largest = max(first.stages, key=lambda stage: stage.share.value or 0.0).name
    return advised(verdict(record), record, largest)


def in_words(waterfalls: Sequence[Waterfall], *, named: str, brief: bool = False) -> list[str]:
    """The shares of the top-1 changes as sentences; in brief an interaction is told only where it is shown."""
    first = waterfalls[0]
    if first.total.value is None:
        return [f"No shares can be computed: {first.total.reason}."]
    total = first.total.value
    if not total:
        return [f"No answer of {first.n:,} differs between full precision and {named}."]
    share = {stage.name: 100 * (stage.share.value or 0) for stage in first.stages}
    ranked = ", ".join(f"{name} {share[name]:+.1f}" for name in sorted(share, key=lambda name: -share[name]))
    restored = "; a stage below 0 restores answers" if min(share.values()) < 0 else ""
    interaction = first.interaction
    value, low, high = (100 * (end or 0) for end in (interaction.value, interaction.low, interaction.high))
    meaning = "no interaction is shown"
    if low > 0 or high < 0:
        meaning = "the stages change the same inputs" if high < 0 else "together the stages change more"
    alone = " + ".join(f"{100 * (stage.alone.value or 0):.1f}" for stage in first.stages)
    by_stage = (
        f"{100 * total:.1f} % of the top-1 answers change from full precision to {named}. By stage, in points that add "
        f"up to it: {ranked}{restored}."
    )
    together = (
        f"Each stage alone: {alone} = {100 * total - value:.1f} %; the interaction is {value:+.1f} points ({low:+.1f} "
        f"to {high:+.1f}): {meaning}."
    )
    return [by_stage] if brief and low <= 0 <= high else [by_stage, together]
