"""What a group of runs comes to, in sentences below its tables."""

from __future__ import annotations

from quantdrift.trust.sweep import (
    K,
    Restoring,
    RoutedGroup,
    RoutedRun,
    RouteSettings,
    allocate_command,
    break_even_share,
    mean_rescoring,
)


def sentences_of(group: RoutedGroup, settings: RouteSettings) -> list[str]:
    """How to read the tables of a group, what they say, and what to do.

    Args:
        group: runs of one spec.
        settings: how they were looked at.
    """
    lines, n = [], len(group.runs)
    if group.logits:
        if n > 1:
            lines.append("±: standard deviation over the runs. In brackets: runs that the share is defined for.")
        elif settings.n_splits > 1:
            lines.append(f"±: standard deviation over {settings.n_splits} random splits.")
        if len(run_scores := group.runs[0].curves) > 1 and all(r.two_classes for r in group.runs):
            named = [curve.score for curve in run_scores]
            lines.append(
                f"With two classes {', '.join(named[:-1])} and {named[-1]} order the inputs alike: "
                "their rows are the same."
            )
        reasons = {point.accuracy.reason for point in group.points if point.accuracy.reason}
        lines += [f"No share of lost accuracy: {reason}." for reason in sorted(reasons)]
    else:
        lines += _about_rescoring(group, settings)
    if n > 1:
        return lines + _of_many(group, settings)
    run = group.runs[0]
    lines += _about_routing(run, settings) if group.logits else _about_search(run, settings)
    lines += run.advice.sentences(allocate_command(group.spec, classes=group.logits))
    if not group.logits:
        lines += _instead([run])
    return lines


def _about_routing(run: RoutedRun, settings: RouteSettings) -> list[str]:
    point = run.operating
    if point is None:
        return []
    dear = ", more than full precision alone" if point["cost"] > 1 else ""
    return [
        f"On these inputs routing the {_percent(point['routed'])} with the least "
        f"{_named(point['score'])} catches {_percent(point['changes'])} of the changed answers, at "
        f"{_percent(point['cost'])} of the cost of full precision{dear}. "
        + _stated("Relative cost", "routed", settings)
    ]


def _about_search(run: RoutedRun, settings: RouteSettings) -> list[str]:
    point = run.restoring
    if point is None:
        return []
    return [
        _restores(point, settings),
        "That needs a second encoding of those queries and full-precision vectors of the "
        f"documents; it encodes no document. Cost of encoding queries: {_percent(point.cost)} of "
        f"full precision{', more than full precision alone' if point.cost > 1 else ''}. "
        + _stated("It", "rescored", settings),
    ]


def _restores(point: Restoring, settings: RouteSettings) -> str:
    told = (
        f"Rescoring the first {point.k} for the {_percent(point.routed)} of the queries with the "
        f"least gap restores {_percent(point.restored)} of the changed first answers; for all "
        f"queries {_percent(point.ceiling)}."
    )
    if point.counts == "restored":
        return told
    return (
        f"{told} To restore {_percent(settings.recover)} is out of reach, so this threshold is for "
        f"as many caught: it rescores {_percent(point.caught)} of them, restored or not."
    )


def _stated(what: str, share: str, settings: RouteSettings) -> str:
    doing = {"routed": "routing", "rescored": "rescoring"}[share]
    return (
        f"{what} is 1 / {settings.speed_up:g} + {share} share; the speed-up of "
        f"{settings.speed_up:g} is stated, not measured; with it {doing} breaks even at "
        f"{_percent(break_even_share(settings.speed_up))} {share}."
    )


def _instead(runs: list[RoutedRun]) -> list[str]:
    """Rescoring as what routing is in a search, or in place of an allocation."""
    asked = {run.advice.fix for run in runs}
    if "allocate" in asked:
        # the depth that all of them have
        at = min((run.restoring.k for run in runs if run.restoring is not None), default=K)
        entries = [
            entry
            for entry in mean_rescoring([run.rescoring for run in runs])
            if entry.k == at and entry.ceiling is not None
        ]
        if entries:
            return [
                "Instead of allocating, the first results can be rescored, as in the table: with "
                f"k = {at} for all queries, {_percent(entries[-1].ceiling)} of the changed first "
                "answers are restored (quantdrift.RescoredSearch)."
            ]
    if "route" in asked:
        return ["In retrieval that is rescoring, as in the table: quantdrift.RescoredSearch."]
    return []


def _of_many(group: RoutedGroup, settings: RouteSettings) -> list[str]:
    fixes = [run.advice.fix for run in group.runs]
    counts = {fix: fixes.count(fix) for fix in ("route", "allocate", "nothing") if fix in fixes}
    told = ", ".join(f"{fix} for {count}" for fix, count in counts.items())
    what = ("Relative cost", "routed") if group.logits else ("Cost of encoding queries", "rescored")
    lines = [_stated(*what, settings), f"Recommended, of {len(fixes)} runs: {told}."]
    command = allocate_command(group.spec, classes=group.logits)
    if "allocate" in counts and command is not None:
        lines.append(f"To allocate: {command}.")
    return lines if group.logits else lines + _instead(list(group.runs))


def _about_rescoring(group: RoutedGroup, settings: RouteSettings) -> list[str]:
    named = sorted({run.similarity for run in group.runs if run.similarity is not None})
    compared = (
        f"Embeddings were compared by {' and '.join(named)}: the similarity to rescore with."
        if named
        else "The similarity is not recorded: rescore with the one that the model was run with."
    )
    lines = [
        "Thresholds are percentiles of the candidate gap on these very queries; ceiling: the "
        "reference's first item is among the candidate's first k.",
        "Cost of encoding queries: with both models, full precision alone is 100 %; documents "
        "compared, per query: stored embeddings of full precision, none is encoded.",
        compared,
    ]
    absent = [name for name in settings.scores if name != "gap"]
    if absent:
        lines.insert(
            0, f"{' and '.join(absent)} do not apply: scores are similarities, whose softmax is no probability."
        )
    reasons = {entry.reason for entry in group.runs[0].rescoring if entry.reason}
    return lines + [f"No metric of quality: {reason}." for reason in sorted(reasons)]


def _named(score: str) -> str:
    return {"gap": "gap", "msp": "probability", "entropy": "certainty (most entropy)"}[score]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
