"""The reference's samples of a task: its answers through the task's own filters and metrics."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from quantdrift.errors import UnsupportedError


def all_answered(task: Any, answers: Mapping[int, Sequence[Any]]) -> bool:
    """Whether every request of a task has an answer, on this rank.

    Args:
        task: lm-eval's, which has been evaluated.
        answers: id of a request to its answers.
    """
    return all(id(request) in answers for request in task.instances)


def reference_samples(
    task: Any, answers: Mapping[int, Sequence[Any]], indices: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Samples as lm-eval would log them of the reference, on this rank.

    Args:
        task: lm-eval's, which has been evaluated.
        answers: id of each of its requests to the reference's answers.
        indices: the documents that --samples asks for; None for all.

    Raises:
        UnsupportedError: a request was not answered.
    """
    requests = task.instances
    mine = []
    for request in requests:
        if id(request) not in answers:
            raise UnsupportedError("a request never came to the model")
        own = copy.copy(request)
        own.resps, own.filtered_resps = list(answers[id(request)]), {}
        mine.append(own)
    task._instances = mine
    try:
        task.apply_filters()
    finally:
        task._instances = requests
    by_document: dict[int, list[Any]] = {}
    for own in mine:
        by_document.setdefault(own.doc_id, []).append(own)
    for parts in by_document.values():
        parts.sort(key=lambda part: part.idx)
    samples = []
    for name in mine[0].filtered_resps:
        for number, parts in by_document.items():
            filtered = [part.filtered_resps[name] for part in parts]
            metrics = task.process_results(parts[0].doc, filtered)
            samples.append(
                {
                    "doc_id": indices[number] if indices else number,
                    "target": task.doc_to_target(parts[0].doc),
                    "arguments": [part.args for part in parts],
                    "filtered_resps": filtered,
                    "filter": name,
                    "metrics": list(metrics),
                    **metrics,
                }
            )
    return samples
