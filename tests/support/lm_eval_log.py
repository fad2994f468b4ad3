"""Samples of lm-eval written by hand, as it has them in memory and as they read back from a log."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def question(
    doc_id: int, scores: Sequence[float], target: Any = 0, *, filter_name: str = "none", **more: Any
) -> dict[str, Any]:
    """A question with one choice per score; `acc` follows from a target that is a number."""
    prompt = f"question {doc_id}"
    right = isinstance(target, int) and max(scores) == scores[target]
    metrics = more.pop("metrics", {"acc": float(right)} if isinstance(target, int) else {})
    requests = [(prompt, f" choice {n}") for n in range(len(scores))]
    answers = [(score, False) for score in scores]
    return sample(doc_id, requests, answers, target, metrics, filter_name=filter_name, **more)


def sample(
    doc_id: int,
    requests: Sequence[tuple[Any, ...]],
    answers: Sequence[Any],
    target: Any,
    metrics: Mapping[str, Any],
    *,
    filter_name: str = "none",
    **hashes: str,
) -> dict[str, Any]:
    return {
        "doc_id": doc_id,
        "doc": {"number": doc_id},
        "target": target,
        "arguments": list(requests),
        "resps": [[answer] for answer in answers],
        "filtered_resps": list(answers),
        "filter": filter_name,
        "metrics": list(metrics),
        **{f"{part}_hash": f"{part[0]}{doc_id}" for part in ("doc", "prompt", "target")},
        **hashes,
        **metrics,
    }


def logged(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return samples as the lines of a --log_samples file read back."""
    lines = []
    for sample in samples:
        arguments = {
            f"gen_args_{n}": {f"arg_{m}": part for m, part in enumerate(request)}
            for n, request in enumerate(sample["arguments"])
        }
        answers = {name: strings(sample[name]) for name in ("resps", "filtered_resps")}
        lines.append(
            json.loads(json.dumps({**sample, **answers, "arguments": arguments, "target": str(sample["target"])}))
        )
    return lines


def strings(value: Any) -> Any:
    """Return answers as lm-eval writes them."""
    return [strings(part) for part in value] if isinstance(value, list | tuple) else str(value)
