"""What a group of runs comes to, in sentences below its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quantdrift.trust.rescoring import K, Restoring
from quantdrift.trust.sweep import (
    RoutedGroup,
    RoutedRun,
    RouteSettings,
    allocate_command,
    break_even_share,
    mean_rescoring,
)


def sentences_of(group: RoutedGroup, settings: RouteSettings) -> list[str]:
    """How to read the tables of a group of runs of one spec, what they say, and what to do."""
    n, run = len(group.runs), group.runs[0]
    command = allocate_command(group.spec, classes=group.logits)
    lines = _of_classes(group, settings) if group.logits else _of_search(group, settings)
    subject, share = ("Relative cost", "routed") if group.logits else ("Cost of encoding queries", "rescored")
    stated = (
        f"{subject} is 1 / {settings.speed_up:g} + {share} share; the speed-up of {settings.speed_up:g} is stated, "
        f"not measured; with it {'routing' if group.logits else 'rescoring'} breaks even at "
        f"{_percent(break_even_share(settings.speed_up))} {share}."
    )
    if n > 1:
        counts = Counter(one.advice.fix for one in group.runs)
        told = ", ".join(f"{fix} for {counts[fix]}" for fix in ("route", "allocate", "nothing") if counts[fix])
        lines += [stated, f"Recommended, of {n} runs: {told}."]
        if counts["allocate"] and command is not None:
            lines.append(f"To allocate: {command}.")
    else:
        lines += [line for line in (_operating(run, settings),) if line]
        lines += [stated, *run.advice.sentences(command)]
    return lines if group.logits else lines + _instead(group.runs)


def _of_classes(group: RoutedGroup, settings: RouteSettings) -> list[str]:
    """How to read the tables of routing."""
    lines, scores = [], [curve.score for curve in group.runs[0].curves]
    if len(group.runs) > 1:
        lines.append("±: standard deviation over the runs. In brackets: runs that the share is defined for.")
    elif settings.n_splits > 1:
        lines.append(f"±: standard deviation over {settings.n_splits} random splits.")
    if len(scores) > 1 and all(run.two_classes for run in group.runs):
        named = f"{', '.join(scores[:-1])} and {scores[-1]}"
        lines.append(f"With two classes {named} order the inputs alike: their rows are the same.")
    reasons = {point.accuracy.reason for point in group.points if point.accuracy.reason}
    return lines + [f"No share of lost accuracy: {reason}." for reason in sorted(reasons)]


def _of_search(group: RoutedGroup, settings: RouteSettings) -> list[str]:
    """How to read the table of rescoring."""
    named = sorted({run.similarity for run in group.runs if run.similarity is not None})
    compared = "The similarity is not recorded: rescore with the one that the model was run with."
    if named:
        compared = f"Embeddings were compared by {' and '.join(named)}: the similarity to rescore with."
    absent = [name for name in settings.scores if name != "gap"]
    lines = [
        "Thresholds are percentiles of the candidate gap on these very queries; ceiling: the reference's first item is "
        "among the candidate's first k.",
        "Cost of encoding queries: with both models, full precision alone is 100 %; documents compared, per query: "
        "stored embeddings of full precision, none is encoded.",
        compared,
    ]
    if absent:
        lines.insert(
            0, f"{' and '.join(absent)} do not apply: scores are similarities, whose softmax is no probability."
        )
    reasons = {entry.reason for entry in group.runs[0].rescoring if entry.reason}
    return lines + [f"No metric of quality: {reason}." for reason in sorted(reasons)]


def _operating(run: RoutedRun, settings: RouteSettings) -> str | None:
    """What the least that is asked again gives back."""
    point = run.operating
    if point is None:
        return None
    dear = ", more than full precision alone" if point["cost"] > 1 else ""
    if run.restoring is not None:
        return (
            f"{_restores(run.restoring, settings)} That needs a second encoding of those queries and full-precision "
            f"vectors of the documents. Cost of encoding queries: {_percent(point['cost'])} of full precision{dear}."
        )
    least = {"gap": "gap", "msp": "probability", "entropy": "certainty (most entropy)"}[point["score"]]
    return (
        f"On these inputs routing the {_percent(point['routed'])} with the least {least} catches "
        f"{_percent(point['changes'])} of the changed answers, at {_percent(point['cost'])} of the cost of full "
        f"precision{dear}."
    )


def _restores(point: Restoring, settings: RouteSettings) -> str:
    told = (
        f"Rescoring the first {point.k} for the {_percent(point.routed)} of the queries with the least gap restores "
        f"{_percent(point.restored)} of the changed first answers; for all queries {_percent(point.ceiling)}."
    )
    if point.counts == "restored":
        return told
    return (
        f"{told} To restore {_percent(settings.recover)} is out of reach, so this threshold is for "
        f"as many caught: it rescores {_percent(point.caught)} of them, restored or not."
    )


def _instead(runs: Sequence[RoutedRun]) -> list[str]:
    """Rescoring as what routing is in a search, or in place of an allocation."""
    asked = {run.advice.fix for run in runs}
    # the depth that all of them have
    at = min((run.restoring.k for run in runs if run.restoring is not None), default=K)
    ceilings = [entry.ceiling for entry in mean_rescoring([run.rescoring for run in runs]) if entry.k == at]
    if "allocate" in asked and ceilings and ceilings[-1] is not None:
        return [
            f"Instead of allocating, the first results can be rescored, as in the table: with k = {at} for all "
            f"queries, {_percent(ceilings[-1])} of the changed first answers are restored (quantdrift.RescoredSearch)."
        ]
    return ["In retrieval that is rescoring, as in the table: quantdrift.RescoredSearch."] if "route" in asked else []


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
