"""An evaluation of lm-eval's with a pair: both arms' samples, joined, and the drift in the results.

lm-eval evaluates the candidate as ever. Afterwards the reference's answers go through the tasks' own filters and
`process_results`, and the two lists of samples are compared as those of two finished runs are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import BoundArguments
from itertools import chain
from pathlib import Path
from typing import Any

from lm_eval.api.model import CachingLM

from quantdrift.base.errors import UnsupportedError
from quantdrift.finished.lm_eval_evidence import PairedFilter, pair_samples
from quantdrift.harness import carefully
from quantdrift.runs.folder import now
from quantdrift_lm_eval.results import Compared, add_drift

_tracker: ContextVar[Any] = ContextVar("quantdrift_lm_eval_tracker", default=None)


@contextmanager
def results_at(tracker: Any) -> Iterator[None]:
    """Inside, results go where an EvaluationTracker of lm-eval's saves them; None saves nothing."""
    token = _tracker.set(tracker)
    try:
        yield
    finally:
        _tracker.reset(token)


def default_folder() -> Path | None:
    """The folder `drift` beside lm-eval's result file; None where it saves none."""
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
    raw = {name: list(chain(*(rank[name] for rank in every))) for name in tasks}
    joined: dict[str, dict[str, PairedFilter]] = {}
    for name, samples in raw.items():
        with carefully(name):
            if samples:
                joined[name] = pair_samples(samples, results["samples"][name], task=name)
    compared = Compared(
        tasks=tasks, groups=groups, joined=joined, raw=raw, bootstrap_iters=arguments.get("bootstrap_iters", 100000)
    )
    add_drift(results, compared, pair, recorded, folder=folder, started=started)
    if not asked_for_samples:
        del results["samples"]
    return results


def reference_samples(
    task: Any, answers: Mapping[int, Sequence[Any]], indices: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Samples as lm-eval would log them of the reference, on this rank."""
    requests = task.instances
    mine = []
    for request in requests:
        if id(request) not in answers:
            raise UnsupportedError("a request never came to the model")
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
