"""An evaluation of lm-eval's with a pair: both arms' samples, joined, and the drift in the results.

lm-eval evaluates the candidate as ever. Afterwards the reference's answers go through the tasks'
own filters and `process_results`, and the two lists of samples are compared as those of two
finished runs are.
"""

from __future__ import annotations

from inspect import BoundArguments
from itertools import chain
from typing import Any

from lm_eval.api.model import CachingLM

from quantdrift.engine.run import now
from quantdrift.finished.lm_eval_evidence import PairedSamples, pair_samples, with_noise
from quantdrift_lm_eval.careful import carefully
from quantdrift_lm_eval.place import default_folder
from quantdrift_lm_eval.replay import all_answered, reference_samples
from quantdrift_lm_eval.results import Compared, add_drift


def evaluate_pair(original: Any, given: BoundArguments) -> Any:
    """Run lm-eval's evaluation of a pair, and add the drift to its results.

    Args:
        original: lm-eval's `evaluate`.
        given: its arguments; the model is a pair, or lm-eval's cache around one.

    Returns:
        What `original` returns: the results on the first rank, None on the others.
    """
    arguments = given.arguments
    lm = arguments["lm"]
    pair, cache = (lm.lm, lm.dbdict) if isinstance(lm, CachingLM) else (lm, None)
    asked_for_samples = arguments.get("log_samples", True)
    groups, tasks = _selected(arguments["task_dict"])
    indices = arguments.get("samples") or {}
    started, folder = now(), pair.evidence or default_folder()
    with pair.recording(tasks, cache, digest=folder is not None) as recorded:
        # the cache is ours to ask: lm-eval's would give one arm's answers to the other
        arguments |= {"lm": pair, "log_samples": True}
        results = original(*given.args, **given.kwargs)
        own: dict[str, tuple[list[Any], list[Any]]] = {}
        for name, task in tasks.items():
            own[name] = ([], [])
            with carefully(name):
                samples = reference_samples(task, recorded.answers, indices.get(name))
                again = []
                if all_answered(task, recorded.again):
                    again = reference_samples(task, recorded.again, indices.get(name))
                own[name] = (samples, again)
    every = pair.gather_object(own, dst=0)
    if results is None:
        return None
    joined: dict[str, PairedSamples] = {}
    raw: dict[str, list[Any]] = {}
    for name in tasks:
        with carefully(name):
            before, again = (list(chain(*(rank[name][n] for rank in every))) for n in range(2))
            if not before:
                continue
            raw[name] = before
            joined[name] = pair_samples(before, results["samples"][name], task=name)
            if len(again) == len(before):  # every rank has run all of its part again
                joined[name] = with_noise(joined[name], pair_samples(before, again, task=name))
    compared = Compared(
        tasks=tasks, groups=groups, joined=joined, raw=raw, bootstrap_iters=arguments.get("bootstrap_iters", 100000)
    )
    add_drift(results, compared, pair, recorded, folder=folder, started=started)
    if not asked_for_samples:
        del results["samples"]
    return results


def _selected(task_dict: Any) -> Any:
    """Groups and tasks by name, also of the nested dict that older callers give."""
    if "tasks" in task_dict:
        return task_dict.get("groups", {}), task_dict["tasks"]
    from lm_eval.evaluator_utils import _handle_back_comp  # noqa: PLC0415 -- going away with these callers

    return _handle_back_comp(task_dict)
