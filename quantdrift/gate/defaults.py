"""The rules that hold if nobody gives others, and what a baseline holds for later ones."""

from __future__ import annotations

from quantdrift.gate.rule import NOISE, Rule, parse_rule
from quantdrift.gate.target import Target
from quantdrift.metrics import Metric, parse_metric

__all__ = ["default_rules", "stored_metrics"]

SEARCH = ("flip@1 no worse by 0.03", "gold_lost@10 no worse by 0.05", "ndcg@10 no worse by 0.03")
CLASSES = ("flip@1 no worse by 0.03", "accuracy no worse by 0.03")
NO_LABELS = ("flip@1 no worse by 0.03",)
"""docs/gate.md has their false alarms and their power. Without any difference 99 inputs show "no
worse by 0.03", and 59 "by 0.05": gold_lost@10 is defined for those of 100 that found something."""

_STORED = ("flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10", "ndcg@10", "recall@10", "mrr@10")
_STORED_CLASSES = ("flip@1", "gold_lost@1", "accuracy")


def default_rules(target: Target) -> list[Rule]:
    """The rules for a run that nobody gave rules for.

    Args:
        target: what is judged: whether it has labels and ranks, and whether its inputs have one
            right answer.
    """
    if all(evidence.judgements is None for evidence in target.evidence):
        return [parse_rule(text) for text in NO_LABELS]
    rules = [parse_rule(text) for text in (CLASSES if _one_answer(target) else SEARCH)]
    # a run can be made again with more ranks, and says so; lists of others end where they end
    listed = all(not evidence.exact for evidence in target.evidence)
    return [rule for rule in rules if not listed or _is_stored(rule.metric, target)]


def stored_metrics(target: Target) -> list[Metric]:
    """The metrics whose outcomes a baseline holds in any case.

    Args:
        target: the run.
    """
    names = _STORED_CLASSES if _one_answer(target) else _STORED
    metrics = [parse_metric(name) for name in names]
    return [*(metric for metric in metrics if _is_stored(metric, target)), NOISE]


def _is_stored(metric: Metric, target: Target) -> bool:
    depth = min((each.depth for each in target.evidence if each.cut_short), default=None)
    return depth is None or metric.cutoff + metric.family.ranks_beyond <= depth


def _one_answer(target: Target) -> bool:
    """Whether inputs have one right answer, or answers without ranks: a class, a choice, a text."""
    return target.classes or all(each.deltas == "none" for each in target.evidence)
