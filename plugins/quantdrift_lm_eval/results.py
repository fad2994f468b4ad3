"""The drift in lm-eval's results: a few rows of its table, values of every sample, and the rest.

What a row says is a mean over documents, so that lm-eval's own formulas give its standard error and put groups
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.metrics import (
    aggregate_subtask_metrics,
    mean,
    mean_stderr,
    pooled_sample_stderr,
    stderr_for_metric,
    unweighted_mean_stderr,
)
from lm_eval.utils import sanitize_list

import quantdrift
from quantdrift.display import clean, complain
from quantdrift.finished.lm_eval_evidence import (
    HIGHER_IS_BETTER,
    PairedFilter,
    PairedSamples,
    details_of,
    medians_of,
    per_document,
    pooled_details,
    scores_of,
)
from quantdrift.harness import carefully
from quantdrift_lm_eval.answers import is_drawn
from quantdrift_lm_eval.model import Recording
from quantdrift_lm_eval.run_folders import write_runs

KEY = "quantdrift"
"""In the results: everything that is no row of the table."""
REFERENCE = "drift_reference_"
NOISE_FLOOR = "drift_noise_floor"
_OF_METRICS = (REFERENCE, "drift_right_to_wrong_", "drift_wrong_to_right_")
_SLOW = ("bleu", "chrf", "chrf++", "ter")
_FEW = 100
"""Bootstrap samples that lm-eval takes of slow metrics."""
_BYPASS = "bypass"
"""Metric of lm-eval's --predict_only, which says nothing of an answer."""
_DRAWN = "answers are drawn (do_sample, or a temperature): run again, the reference draws others"
_LOST = "what the reference answered when it was run again could not be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both arms on all tasks of an evaluation.

    Attributes:
        tasks: lm-eval's, by name.
        groups: lm-eval's, by name.
        joined: the samples of both arms, of the tasks where that went well.
        raw: the reference's samples.
        bootstrap_iters: as lm-eval was told.
    """

    tasks: Mapping[str, Any]
    groups: Mapping[str, Any]
    joined: Mapping[str, PairedSamples]
    raw: Mapping[str, Sequence[Mapping[str, Any]]]
    bootstrap_iters: int | None


def add_drift(
    results: dict[str, Any], compared: Compared, pair: Any, recorded: Recording, *, folder: Path | None, started: str
) -> None:
    """Write the drift into lm-eval's results, and the run folders."""
    told: dict[str, Any] = {}
    for name, samples in compared.joined.items():
        with carefully(name):
            rows = _reference_rows(compared, name)
            details = {}
            for filter_name, paired in samples.filters.items():
                rows |= _rows(paired, filter_name, compared.bootstrap_iters)
                own = details_of(paired, warn=lambda message: complain(clean(message)))
                details[filter_name] = _with_noise_told(own, [paired], [compared.tasks[name]], pair)
            _add_to_samples(results["samples"][name], samples, compared.raw[name])
            results["results"][name] |= rows
            better = results.setdefault("higher_is_better", {}).setdefault(name, {})
            better |= _directions(rows, better)
            told[name] = details
    done = {name: compared.joined[name] for name in told}
    pooled = {}
    for name, group in compared.groups.items():
        members = members_of(group, done)
        with carefully(name):
            add_group_rows(results, group, done, members)
        pooled[name] = {
            filter_name: _with_noise_told(pooled_details(parts), parts, group.get_all_tasks(), pair)
            for filter_name, parts in members.items()
        }
    results[KEY] = {
        "version": quantdrift.__version__,
        "spec": str(pair.spec),
        "bits_per_weight": pair.pair.bits().to_json(),
        "seconds": dict(recorded.seconds),
        "tasks": told,
        "groups": pooled,
    }
    if folder is not None:
        results[KEY]["runs"] = write_runs(pair, recorded, compared.joined, folder=folder, started=started)


def _rows(paired: PairedFilter, filter_name: str, bootstrap_iters: int | None) -> dict[str, float | str]:
    rows: dict[str, float | str] = {}
    for name, values in per_document(paired).items():
        own = values.tolist()
        rows[f"{name},{filter_name}"] = mean(own)
        known = len(own) > 1 and bool(bootstrap_iters)  # 0 asks for no standard errors
        rows[f"{name}_stderr,{filter_name}"] = mean_stderr(own) if known else "N/A"
    medians = medians_of([paired]).items()
    return rows | {f"{name},{filter_name}": found.value for name, found in medians if found.value is not None}


def _with_noise_told(
    details: dict[str, Any], parts: Sequence[PairedFilter], tasks: Iterable[Any], pair: Any
) -> dict[str, Any]:
    """Details with the reason why there is no noise floor, where one was asked for."""
    if not pair.noise_floor or not _lacks_noise_floor(parts):
        return details
    drawn = any(is_drawn(one.request_type, one.args) for task in tasks for one in task.instances)
    kept = {key: value for key, value in details.items() if not key.startswith(NOISE_FLOOR)}
    return {**kept, NOISE_FLOOR: None, "no_noise_floor": _DRAWN if drawn else _LOST}


def _lacks_noise_floor(parts: Sequence[PairedFilter]) -> bool:
    """Whether one of several tasks has answers that were compared, and no noise floor of them."""
    return any(part.evidence is not None and part.evidence.noise is None for part in parts)


def _reference_rows(compared: Compared, name: str) -> dict[str, Any]:
    """The reference's own value of every metric of a task, as lm-eval would compute it."""
    aggregation, iters = compared.tasks[name].aggregation(), compared.bootstrap_iters
    values: dict[tuple[str, str], list[Any]] = {}
    for sample in compared.raw[name]:
        for metric in _metrics_of(sample):
            values.setdefault((metric, sample["filter"]), []).append(sample[metric])
    rows: dict[str, Any] = {}
    for (metric, filter_name), own in values.items():
        function = aggregation.get(metric, mean)
        rows[f"{REFERENCE}{metric},{filter_name}"] = function(own)
        times = 0 if not isinstance(iters, int) else min(iters, _FEW) if metric in _SLOW else iters
        error = stderr_for_metric(function, times)
        rows[f"{REFERENCE}{metric}_stderr,{filter_name}"] = error(own) if error is not None and len(own) > 1 else "N/A"
    return rows


def _directions(row: Mapping[str, Any], stock: Mapping[str, Any]) -> dict[str, Any]:
    """Which way is better, of every row that is ours and has one."""
    directions = {}
    for name in (key.partition(",")[0] for key in row):
        if name.startswith(REFERENCE):
            if (metric := name.removeprefix(REFERENCE)) in stock:
                directions[name] = stock[metric]
        elif not name.endswith("_stderr"):
            for known, better in HIGHER_IS_BETTER.items():
                if better is not None and (name == known or (known.endswith("_") and name.startswith(known))):
                    directions[name] = better
    return directions


def _add_to_samples(samples: Sequence[dict[str, Any]], joined: PairedSamples, raw: Sequence[Mapping[str, Any]]) -> None:
    """The figures of every document, and what the reference answered, beside the candidate's."""
    before = {(one["filter"], one["doc_id"]): one for one in raw}
    figures: dict[tuple[str, int], dict[str, Any]] = {}
    for filter_name, paired in joined.filters.items():
        columns = per_document(paired) | scores_of(paired)
        for row, doc_id in enumerate(paired.doc_ids):
            figures[filter_name, doc_id] = {name: _number(column[row]) for name, column in columns.items()}
    for sample in samples:
        where = (sample["filter"], sample["doc_id"])
        reference = before[where]
        own = figures[where] | {REFERENCE + name: reference[name] for name in _metrics_of(reference)}
        sample["metrics"] = [*sample["metrics"], *own]
        sample.update(own)
        sample[f"{REFERENCE}filtered_resps"] = sanitize_list(reference["filtered_resps"])


def _metrics_of(sample: Mapping[str, Any]) -> list[str]:
    return [name for name in sample["metrics"] if name != _BYPASS]


def _number(value: Any) -> float | None:
    """As JSON has it: it knows no infinity, which a separation can be."""
    return float(value) if np.isfinite(value) else None


# --- groups, put together as lm-eval puts its own metrics together --------------------------------


def members_of(group: Any, joined: Mapping[str, PairedSamples]) -> dict[str, list[PairedFilter]]:
    """What is known of a group's tasks, by filter."""
    found: dict[str, list[PairedFilter]] = {}
    for task in group.get_all_tasks():
        if task.task_name in joined:
            for name, paired in joined[task.task_name].filters.items():
                found.setdefault(name, []).append(paired)
    return found


def add_group_rows(
    results: dict[str, Any],
    group: Any,
    joined: Mapping[str, PairedSamples],
    members: Mapping[str, Sequence[PairedFilter]],
) -> None:
    """Add a group's rows to lm-eval's results, where lm-eval gives it rows at all.

    Rates are weighted by the size of the tasks unless all metrics of the group are not; medians are over all
    documents. A noise floor of some of the tasks is none of the group.
    """
    configured = group.aggregate_metric_list
    if not configured or group.name not in results["results"]:
        return
    weights = {one.metric: one.weight_by_size for one in configured}
    tasks = [task.task_name for task in group.get_all_tasks() if task.task_name in joined]
    rows = [results["results"][name] for name in tasks]
    figures = {f"{REFERENCE}{key}" for key in results["results"][group.name] if key.partition(",")[0] in weights}
    for filter_name, parts in members.items():
        figures |= {f"{name},{filter_name}" for part in parts for name in per_document(part)}
        if _lacks_noise_floor(parts):
            figures.discard(f"{NOISE_FLOOR},{filter_name}")
    added: dict[str, Any] = {}
    for key in sorted(figures):
        name, _, filter_name = key.partition(",")
        own = [row for row in rows if key in row]
        of = next((name.removeprefix(start) for start in _OF_METRICS if name.startswith(start)), "")
        if not own or (of and of not in weights):
            continue
        by_size = weights.get(of, any(weights.values()))
        values, sizes = [row[key] for row in own], [row["sample_len"] for row in own]
        errors = [row.get(f"{name}_stderr,{filter_name}", "N/A") for row in own]
        error: Any = "N/A"
        if "N/A" not in errors:
            error = pooled_sample_stderr(errors, sizes) if by_size else unweighted_mean_stderr(errors)
        added |= {key: aggregate_subtask_metrics(values, sizes, by_size), f"{name}_stderr,{filter_name}": error}
    for filter_name, parts in members.items():
        added |= {f"{name},{filter_name}": estimate.value for name, estimate in medians_of(parts).items()}
    for column in ("results", "groups"):
        results.get(column, {}).get(group.name, {}).update(added)
    better = results["higher_is_better"].setdefault(group.name, {})
    for task in tasks:
        for name, direction in results["higher_is_better"].get(task, {}).items():
            if name.startswith("drift_"):
                better.setdefault(name, direction)
