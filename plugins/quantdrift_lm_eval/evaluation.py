"""Evaluates a pair in lm-eval: joins the samples of both arms, and adds the drift to the results.

lm-eval evaluates the candidate as usual. Afterwards the reference's answers go through the tasks' own filters and
`process_results`, and both lists of samples are compared like those of two finished runs. A row of the results is a
mean over documents, so lm-eval's own formulas give its standard error and aggregate groups.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from inspect import BoundArguments
from itertools import chain
from pathlib import Path
from typing import Any

from lm_eval.api.metrics import mean, mean_stderr
from lm_eval.api.model import CachingLM
from lm_eval.config.group import AggMetricConfig
from lm_eval.evaluator_utils import _compute_task_aggregations
from lm_eval.utils import sanitize_list

import quantdrift
from quantdrift.base.display import clean, complain, say
from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.finished import lm_eval_evidence as compared
from quantdrift.finished.lm_eval_evidence import HIGHER_IS_BETTER, PairedFilter
from quantdrift.harness import Outcome, carefully, screen_of
from quantdrift.models.inputs import Settings
from quantdrift.runs.folder import Run, now, read_run, write_run
from quantdrift.statistics.estimates import finite

KEY = "quantdrift"
"""Key of the results for everything but rows of the table."""
REFERENCE = "drift_reference_"
_OF_METRICS = (REFERENCE, "drift_right_to_wrong_", "drift_wrong_to_right_")
_BYPASS = "bypass"
"""Metric of lm-eval's --predict_only, which rates no answer."""


@dataclass(slots=True, kw_only=True)
class Recording:
    """The reference's answers and the times of stages, while lm-eval evaluates the candidate.

    Attributes:
        tasks: lm-eval's tasks by name.
        needs_digest: whether the candidate's digest is needed.
        answers: id of a request to the reference's answers, in order; requests live as long as their tasks.
        seconds: time by stage.
        candidate_fingerprint: the candidate's digest, once it is taken.
        prepared: whether the candidate is calibrated.
    """

    tasks: Mapping[str, Any]
    needs_digest: bool = False
    answers: dict[int, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    candidate_fingerprint: str | None = None
    prepared: bool = False


_tracker: ContextVar[Any] = ContextVar("quantdrift_lm_eval_tracker", default=None)


@contextmanager
def results_at(tracker: Any) -> Iterator[None]:
    """Note where an EvaluationTracker of lm-eval's saves results; None saves nothing."""
    token = _tracker.set(tracker)
    try:
        yield
    finally:
        _tracker.reset(token)


def default_folder() -> Path | None:
    """Return the folder `drift` beside lm-eval's result file; None if it saves none."""
    output = getattr(_tracker.get(), "output_path", None)
    if not output:
        return None
    path = Path(output)
    if path.suffix == ".json":
        return path.parent / "drift"
    config = getattr(_tracker.get(), "general_config_tracker", None)
    return path / str(getattr(config, "model_name_sanitized", "")) / "drift"


def evaluate_pair(original: Any, given: BoundArguments) -> Any:
    """Run lm-eval's evaluation of a pair, and add the drift to its results."""
    arguments = given.arguments
    lm = arguments["lm"]
    pair = lm.lm if isinstance(lm, CachingLM) else lm
    asked_for_samples = arguments.get("log_samples", True)
    groups, tasks = (arguments["task_dict"].get(part, {}) for part in ("groups", "tasks"))
    indices = arguments.get("samples") or {}
    started, folder = now(), pair.evidence or default_folder()
    with pair.recording(tasks, digest=folder is not None) as recorded:
        arguments |= {"lm": pair, "log_samples": True}
        results = original(*given.args, **given.kwargs)
    answered: dict[str, list[Any]] = {name: [] for name in tasks}
    for name, task in tasks.items():
        with carefully(name):
            answered[name] = reference_samples(task, recorded.answers, indices.get(name))
    every = pair.gather_object(answered, dst=0)
    if results is None:
        return None
    joined: dict[str, dict[str, PairedFilter]] = {}
    details: dict[str, Any] = {}
    for name, task in tasks.items():
        raw = list(chain(*(rank[name] for rank in every)))
        with carefully(name):
            if raw:
                aside = pair.left_out(name, indices.get(name))
                arms = (
                    [sample for sample in arm if sample["doc_id"] not in aside]
                    for arm in (raw, results["samples"][name])
                )
                joined[name] = compared.pair_samples(*arms, task=name)
                iterations = arguments.get("bootstrap_iters", 100000)
                details[name] = add_task_rows(results, task, joined[name], raw, name=name, iterations=iterations)
                details[name] |= {"left_out": sorted(aside)} if aside else {}
    pooled = {}
    for name, group in groups.items():
        members: dict[str, list[PairedFilter]] = {}
        for member in (task.task_name for task in group.get_all_tasks() if task.task_name in details):
            for filter_name, paired in joined[member].items():
                members.setdefault(filter_name, []).append(paired)
        with carefully(name):
            add_group_rows(results, group, members)
        pooled[name] = {filter_name: compared.pooled_details(parts) for filter_name, parts in members.items()}
    results[KEY] = {
        "version": quantdrift.__version__,
        "spec": str(pair.spec),
        "bits_per_weight": pair.pair.bits().to_json(),
        "seconds": dict(recorded.seconds),
        "tasks": details,
        "groups": pooled,
    }
    if folder is not None:
        results[KEY]["runs"] = write_runs(pair, recorded, joined, folder=folder, started=started)
    if not asked_for_samples:
        del results["samples"]
    return results


def reference_samples(
    task: Any, answers: Mapping[int, Sequence[Any]], indices: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Return this rank's samples of the reference, as lm-eval would log them."""
    requests = task.instances
    mine = []
    for request in requests:
        if id(request) not in answers:
            raise UnsupportedError("a request never reached the model")
        answered = copy.copy(request)
        answered.resps, answered.filtered_resps = list(answers[id(request)]), {}
        mine.append(answered)
    task._instances = mine
    try:
        task.apply_filters()
    finally:
        task._instances = requests
    by_document: dict[int, list[Any]] = {}
    for answered in sorted(mine, key=lambda request: request.idx):
        by_document.setdefault(answered.doc_id, []).append(answered)
    samples = []
    for name in mine[0].filtered_resps:
        for number, parts in by_document.items():
            filtered = [part.filtered_resps[name] for part in parts]
            metrics = task.process_results(parts[0].doc, filtered)
            sample = {
                "doc_id": indices[number] if indices else number,
                "target": task.doc_to_target(parts[0].doc),
                "arguments": [part.args for part in parts],
                "filtered_resps": filtered,
                "filter": name,
                "metrics": list(metrics),
            }
            samples.append(sample | metrics)
    return samples


# --- rows of lm-eval's table, and figures of samples -----------------------------------------------


def add_task_rows(
    results: dict[str, Any],
    task: Any,
    joined: Mapping[str, PairedFilter],
    raw: Sequence[Mapping[str, Any]],
    *,
    name: str,
    iterations: int | None,
) -> dict[str, Any]:
    """Add the drift of a task to its rows and samples, and return further details by filter."""
    rows, details = _reference_rows(task, raw, iterations), {}
    for filter_name, paired in joined.items():
        rows |= _rows(paired, filter_name, iterations)
        details[filter_name] = compared.details_of(paired, warn=lambda message: complain(clean(message)))
    _add_to_samples(results["samples"][name], joined, raw)
    results["results"][name] |= rows
    better = results.setdefault("higher_is_better", {}).setdefault(name, {})
    better |= _directions(rows, better)
    return details


def _rows(paired: PairedFilter, filter_name: str, iterations: int | None) -> dict[str, float | str]:
    rows: dict[str, float | str] = {}
    for name, values in compared.per_document(paired).items():
        column = values.tolist()
        rows[f"{name},{filter_name}"] = mean(column)
        has_error = len(column) > 1 and bool(iterations)  # 0 asks for no standard errors
        rows[f"{name}_stderr,{filter_name}"] = mean_stderr(column) if has_error else "N/A"
    medians = compared.medians_of([paired]).items()
    return rows | {f"{name},{filter_name}": median.value for name, median in medians if median.value is not None}


def _reference_rows(task: Any, raw: Sequence[Mapping[str, Any]], iterations: int | None) -> dict[str, Any]:
    """Return the reference's value of every metric of a task, as lm-eval computes it."""
    values: dict[tuple[str, str], list[Any]] = {}
    for sample in raw:
        for metric in _metrics_of(sample):
            values.setdefault((metric, sample["filter"]), []).append(sample[metric])
    rows, _ = _compute_task_aggregations(task, values, iterations)
    return {f"{REFERENCE}{key}": value for key, value in rows.items()}


def _directions(rows: Mapping[str, Any], stock: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether higher is better for each of our rows that has a direction."""
    directions: dict[str, Any] = {}
    for name in {key.partition(",")[0]: None for key in rows if "_stderr," not in key}:
        start = next((prefix for prefix in HIGHER_IS_BETTER if prefix.endswith("_") and name.startswith(prefix)), name)
        own_metric = name.removeprefix(REFERENCE)
        directions[name] = HIGHER_IS_BETTER.get(start) if name == own_metric else stock.get(own_metric)
    return {name: better for name, better in directions.items() if better is not None}


def _add_to_samples(
    samples: Sequence[dict[str, Any]], joined: Mapping[str, PairedFilter], raw: Sequence[Mapping[str, Any]]
) -> None:
    """Add figures and the reference's answer to the candidate's sample of each document."""
    before = {(sample["filter"], sample["doc_id"]): sample for sample in raw}
    figures: dict[tuple[str, int], dict[str, Any]] = {}
    for filter_name, paired in joined.items():
        columns = compared.per_document(paired) | compared.scores_of(paired)
        for row, doc_id in enumerate(paired.doc_ids):
            figures[filter_name, doc_id] = {name: finite(column[row]) for name, column in columns.items()}
    for sample in samples:
        where = (sample["filter"], sample["doc_id"])
        reference = before[where]
        added = figures.get(where, {}) | {REFERENCE + name: reference[name] for name in _metrics_of(reference)}
        sample["metrics"] = [*sample["metrics"], *added]
        sample.update(added)
        sample[f"{REFERENCE}filtered_resps"] = sanitize_list(reference["filtered_resps"])


def _metrics_of(sample: Mapping[str, Any]) -> list[str]:
    return [name for name in sample["metrics"] if name != _BYPASS]


def add_group_rows(results: dict[str, Any], group: Any, members: Mapping[str, Sequence[PairedFilter]]) -> None:
    """Add a group's rows to lm-eval's results, aggregated by lm-eval itself, if lm-eval has rows for the group.

    Rates are weighted by the size of tasks unless no metric of the group is; medians are over all documents.
    """
    if not group.aggregate_metric_list or group.name not in results["results"]:
        return
    weights = {config.metric: config.weight_by_size for config in group.aggregate_metric_list}
    tasks = [task.task_name for task in group.get_all_tasks()]
    better: dict[str, Any] = results["higher_is_better"].setdefault(group.name, {})
    wanted: dict[str, bool] = {}
    for task in tasks:
        for key in results["results"].get(task, {}):
            name, _, filter_name = key.partition(",")
            of = next((name.removeprefix(start) for start in _OF_METRICS if name.startswith(start)), None)
            ours = name.startswith("drift_") and filter_name in members and not name.endswith(("_stderr", "_median"))
            if ours and (of is None or of in weights):
                wanted[name] = weights[of] if of in weights else any(weights.values())
        for name, direction in results["higher_is_better"].get(task, {}).items():
            if name.startswith("drift_"):
                better.setdefault(name, direction)
    configs = [AggMetricConfig(metric=name, weight_by_size=by_size) for name, by_size in wanted.items()]
    rows = replace(group, aggregate_metric_list=configs).aggregate(results["results"])
    added = {key: value for key, value in rows.items() if key.startswith("drift_")}
    for filter_name, parts in members.items():
        added |= {f"{name},{filter_name}": estimate.value for name, estimate in compared.medians_of(parts).items()}
    for column in ("results", "groups"):
        results.get(column, {}).get(group.name, {}).update(added)


# --- run folders, one for each task and filter ------------------------------------------------------

READING = {
    "multiple_choice": "log-likelihoods of the choices",
    "loglikelihood": "greedy decoding gives the text",
    "generate_until": "generated text",
}
"""Meaning of the scores or answers, by kind of task."""


def write_runs(
    pair: Any, recorded: Recording, joined: Mapping[str, Mapping[str, PairedFilter]], *, folder: Path, started: str
) -> dict[str, dict[str, str]]:
    """Write a run folder for every task and filter with evidence; it may replace an earlier run of the same pair."""
    written: dict[str, dict[str, str]] = {}
    taken: set[Path] = set()
    runs: list[Run] = []
    size = pair.batch_size
    model = {"canonical": pair.spec.model, "kind": pair.backend, "revision": getattr(pair, "revision", None)}
    for name, samples in joined.items():
        task = recorded.tasks[name]
        for filter_name, paired in samples.items():
            if (evidence := paired.evidence) is None:
                continue
            settings = Settings(k=evidence.depth, batch_size=size if isinstance(size, int) else 0, noise_floor=False)
            stem = _safe(name) + (f"-{_safe(filter_name)}" if len(samples) > 1 else "")
            place = folder / _safe(str(pair.spec.scheme)) / stem
            while place in taken or _spec_of(place) not in {None, str(pair.spec)}:  # of another task or model
                place = place.with_name(f"{place.name}-")
            outcome = Outcome(
                evidence=evidence,
                fingerprint=pair.fingerprint,
                candidate_fingerprint=recorded.candidate_fingerprint,
                settings=settings,
                read_as={"reading": READING[paired.kind], "judged_by": paired.judged_by},
                n_items=int(evidence.n_items.max(initial=0)),
                seconds=recorded.seconds,
                left_out=len(pair.left_out(name, None)),
            )
            data = {
                "name": task.task_name,
                "split": str(task.config.test_split or task.config.validation_split or ""),
                "subset": filter_name,
                "harness": "lm-eval",
                "revision": str(task.VERSION),
                "n_fewshot": task.config.num_fewshot,
            }
            try:
                record = outcome.record(pair.spec, pair.pair, data=data, model=model, started=started)
                runs.append(write_run(place, evidence=evidence, record=record))
            except RunError as error:  # the evaluation itself went well
                complain(clean(f"the evidence is not kept: {error}"))
                continue
            taken.add(place)
            written.setdefault(name, {})[filter_name] = str(place)
    if runs:
        say(screen_of(runs), error=True)
    return written


def _spec_of(folder: Path) -> str | None:
    try:
        return str(read_run(folder).record.get("spec"))
    except (OSError, RunError):  # there is nothing or no run, which writing reports
        return None


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+=-]", "_", name)
