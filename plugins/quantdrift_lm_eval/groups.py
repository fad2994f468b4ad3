"""The drift of a group of tasks, put together as lm-eval puts its own metrics together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.metrics import aggregate_subtask_metrics, pooled_sample_stderr, unweighted_mean_stderr

from quantdrift.finished.lm_eval_evidence import PairedFilter, PairedSamples, medians_of, per_document

NOISE_FLOOR = "drift_noise_floor"
_OF_METRICS = ("drift_reference_", "drift_right_to_wrong_", "drift_wrong_to_right_")


def members_of(group: Any, joined: Mapping[str, PairedSamples]) -> dict[str, list[PairedFilter]]:
    """What is known of a group's tasks, by filter.

    Args:
        group: lm-eval's.
        joined: both arms on every task.
    """
    found: dict[str, list[PairedFilter]] = {}
    for task in group.get_all_tasks():
        if task.task_name in joined:
            for name, paired in joined[task.task_name].filters.items():
                found.setdefault(name, []).append(paired)
    return found


def lacks_noise_floor(parts: Sequence[PairedFilter]) -> bool:
    """Whether one of several tasks has answers that were compared, and no noise floor of them.

    Args:
        parts: both arms after one filter, of every task.
    """
    return any(part.evidence is not None and part.evidence.noise is None for part in parts)


def add_group_rows(results: dict[str, Any], group: Any, joined: Mapping[str, PairedSamples]) -> None:
    """Add a group's rows to lm-eval's results, where lm-eval gives it rows at all.

    Rates are weighted by the size of the tasks unless all metrics of the group are not; medians are
    over all documents. A noise floor of some of the tasks is none of the group.

    Args:
        results: of lm-eval, with the rows of the tasks.
        group: lm-eval's.
        joined: both arms on every task.
    """
    configured = group.aggregate_metric_list
    if not configured or group.name not in results["results"]:
        return
    weights = {one.metric: one.weight_by_size for one in configured}
    tasks = [task.task_name for task in group.get_all_tasks() if task.task_name in joined]
    rows = [results["results"][name] for name in tasks]
    figures = {
        f"{name},{filter_name}"
        for task in tasks
        for filter_name, paired in joined[task].filters.items()
        for name in per_document(paired)
    }
    references = {
        f"drift_reference_{key}" for key in results["results"][group.name] if key.partition(",")[0] in weights
    }
    figures -= {
        f"{NOISE_FLOOR},{filter_name}"
        for filter_name, parts in members_of(group, joined).items()
        if lacks_noise_floor(parts)
    }
    added: dict[str, Any] = {}
    for key in sorted(figures | references):
        name, _, filter_name = key.partition(",")
        own = [row for row in rows if key in row]
        of = next((name.removeprefix(start) for start in _OF_METRICS if name.startswith(start)), "")
        if not own or (of and of not in weights):
            continue
        by_size = weights.get(of, any(weights.values()))
        values, sizes = [row[key] for row in own], [row["sample_len"] for row in own]
        errors = [row.get(f"{name}_stderr,{filter_name}", "N/A") for row in own]
        added[key] = aggregate_subtask_metrics(values, sizes, by_size)
        added[f"{name}_stderr,{filter_name}"] = (
            "N/A"
            if "N/A" in errors
            else pooled_sample_stderr(errors, sizes)
            if by_size
            else unweighted_mean_stderr(errors)
        )
    for filter_name, parts in members_of(group, joined).items():
        for name, estimate in medians_of(parts).items():
            added[f"{name},{filter_name}"] = estimate.value
    for column in ("results", "groups"):
        results.get(column, {}).get(group.name, {}).update(added)
    better = results["higher_is_better"].setdefault(group.name, {})
    for task in tasks:
        for name, direction in results["higher_is_better"].get(task, {}).items():
            if name.startswith("drift_"):
                better.setdefault(name, direction)
