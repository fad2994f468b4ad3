"""Small finished runs, written by hand in every format."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.lm_eval_log import logged
from support.lm_eval_log import question as in_memory

Lists = Mapping[str, Mapping[str, float]]

A: Lists = {"q1": {"d1": 0.9, "d2": 0.8, "d3": 0.5}, "q2": {"d2": 0.7, "d3": 0.4, "d4": 0.3}}
"""A reference: q1 leads by 0.1, q2 by 0.3."""

B: Lists = {"q1": {"d2": 0.85, "d1": 0.80, "d3": 0.5}, "q2": {"d2": 0.75, "d3": 0.4, "d5": 0.35}}
"""A candidate: q1 flips, q2 does not; epsilon of the items in both is 0.1 and 0.05."""


def write_trec(path: Path, lists: Lists, *, zero_ranks: bool = False) -> Path:
    lines = []
    for query, ranking in lists.items():
        ranked = sorted(ranking.items(), key=lambda pair: -pair[1])
        for rank, (item, score) in enumerate(ranked, start=1):
            lines.append(f"{query} Q0 {item} {0 if zero_ranks else rank} {score!r} tag\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_mteb(path: Path, predictions: Any, *, model: str = "some/model") -> Path:
    meta = {"model_name": model, "revision": "1"}
    return write_json(path, {"mteb_model_meta": meta, "default": {"test": predictions}})


def question(doc_id: int, scores: Sequence[float], *, gold: int = 0, **changes: Any) -> Any:
    """A sample of a question with choices, as --log_samples writes it."""
    return logged([in_memory(doc_id, scores, gold)])[0] | changes


DATE = "2026-01-02T03-04-05.678901"


def write_samples(folder: Path, task: str, samples: Sequence[Any], *, date: str = DATE) -> Path:
    """A folder as lm-eval leaves it, but for the results."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    (folder / f"samples_{task}_{date}.jsonl").write_text(text, encoding="utf-8")
    return folder
