"""Evaluate both arms of a pair on a task, and write the drift into mteb's own result."""

from __future__ import annotations

import copy
import datetime
import math
import random
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.timing import TimingStack

from quantdrift.errors import UnsupportedError
from quantdrift.measurement.assembly import with_qrels
from quantdrift.measurement.job import describe_run
from quantdrift.runs import write_run
from quantdrift_mteb.choice import refuse_unchosen
from quantdrift_mteb.keys import mteb_keys
from quantdrift_mteb.pairs import Comparison, MtebPair
from quantdrift_mteb.search import Found

__all__ = ["both_arms"]


@contextmanager
def both_arms(pair: MtebPair, task: Any, cache: Any, meta: Any) -> Iterator[None]:
    """Inside, `task.evaluate(pair, ...)` runs the reference, then the candidate.

    The scores it returns are the candidate's, as mteb computes them, with the drift keys beside.

    Args:
        pair: the model.
        task: an mteb task.
        cache: mteb's result cache, beside whose files the evidence goes; None keeps no evidence.
        meta: the pair's metadata.
    """
    if "evaluate" in vars(task):  # mteb calls itself when it tracks emissions: once is enough
        yield
        return
    place = None
    if cache is not None:
        result = Path(cache.get_task_result_path(task.metadata.name, meta))
        place = result.parent / "drift" / task.metadata.name
    original = task.evaluate

    def evaluate(model: Any, split: str = "test", **kwargs: Any) -> Any:
        if model is not pair:
            return original(model, split, **kwargs)
        return _evaluate(pair, task, original, place, split=split, kwargs=kwargs)

    task.evaluate = evaluate
    try:
        yield
    finally:
        del task.evaluate


def _evaluate(
    pair: MtebPair,
    task: Any,
    original: Any,
    place: Path | None,
    *,
    split: str,
    kwargs: dict[str, Any],
) -> Mapping[str, dict[str, Any]]:
    if pair.pair.scheme.query_only and not isinstance(task, AbsTaskRetrieval):
        raise UnsupportedError(
            f"+query keeps the index at full precision, but {task.metadata.name} "
            f"({task.metadata.type}) has none: it is no retrieval task. Leave +query out"
        )
    if not isinstance(task, AbsTaskRetrieval):
        refuse_unchosen(pair.pair, f"{task.metadata.name} ({task.metadata.type}) is none")
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    comparison = Comparison(task=task)
    before = _random_state(task)
    with pair.as_arm("reference", comparison):
        # predictions and timings in mteb's files are the candidate's
        quiet = {**kwargs, "prediction_folder": None, "timer": TimingStack()}
        reference = original(pair, split, **quiet)
    _set_random_state(task, before)
    with pair.as_arm("candidate", comparison):
        scores: Mapping[str, dict[str, Any]] = original(pair, split, **kwargs)
    for subset, subset_scores in scores.items():
        found = comparison.found.get((split, subset))
        keys: dict[str, Any] = {
            "drift_spec": str(pair.spec),
            "drift_reference_main_score": _number(reference[subset].get("main_score")),
        }
        if found is not None:
            found.measured.evidence = with_qrels(
                found.measured.evidence, _qrels(task, split, subset)
            )
            keys |= mteb_keys(found.measured.evidence)
            if place is not None:
                folder = place / re.sub(r"[^\w.-]", "_", f"{split}-{subset}")
                _write(pair, task, found, folder, split=split, subset=subset, started=started)
                keys["drift_evidence"] = f"drift/{task.metadata.name}/{folder.name}"
        subset_scores.update(keys)
        if kwargs["encode_kwargs"].get("show_progress_bar", True):
            where = f"{task.metadata.name} {split}/{subset}"
            print(f"quantdrift: {pair.spec} on {where}: {_summary(subset_scores)}", file=sys.stderr)
    return scores


def _summary(scores: Mapping[str, Any]) -> str:
    """One line for the terminal; the rest is in the result."""
    flip, floor = scores.get("drift_flip_at_1"), scores.get("drift_noise_floor")
    if flip is None:
        arms = (scores["drift_reference_main_score"], _number(scores.get("main_score")))
        shown = ["undefined" if score is None else f"{score:.4f}" for score in arms]
        return f"main score {shown[1]}, at full precision {shown[0]}"
    text = f"another first answer for {100 * flip:.1f} % of {scores['drift_n_inputs']:,} inputs"
    if floor is not None:
        text += f" (noise floor {100 * floor:.1f} %)"
    if scores.get("drift_gold_lost_at_1") is not None:
        text += f", relevant first answers lost {100 * scores['drift_gold_lost_at_1']:.1f} %"
    return text


def _write(
    pair: MtebPair,
    task: Any,
    found: Found,
    folder: Path,
    *,
    split: str,
    subset: str,
    started: str,
) -> None:
    measured = found.measured
    record = describe_run(
        pair.spec,
        pair.pair,
        measured,
        found.settings,
        model={
            "canonical": pair.source.canonical,
            "kind": pair.source.kind,
            "revision": pair.mteb_model_meta.revision,
        },
        data={
            "name": task.metadata.name,
            "split": split,
            "subset": subset,
            "harness": "mteb",
            "revision": task.metadata.dataset.get("revision"),
            "n_queries": measured.evidence.n_inputs + measured.left_out,
            "n_documents": found.n_documents,
            "warnings": [],
        },
        similarity=found.similarity,
        started=started,
    )
    warnings = record["data"]["warnings"]
    if getattr(task, "skip_first_result", False):
        warnings.append("mteb leaves the first result of this task out; here it counts")
    if len(record["model"]["layers_never_reached"]) == len(pair.pair.layers):
        # something must have been: sparse results cannot be followed back to their weights
        record["model"]["layers_never_reached"] = []
        warnings.append("which layers a forward pass reaches could not be told")
    write_run(folder, evidence=measured.evidence, record=record)


def _qrels(task: Any, split: str, subset: str) -> Mapping[str, Mapping[str, int]]:
    dataset = task.dataset
    data = dataset[subset][split] if subset in dataset else dataset[split]
    qrels: Mapping[str, Mapping[str, int]] = data["relevant_docs"]
    return qrels


def _number(value: Any) -> float | None:
    """As JSON has it: it knows no NaN."""
    return None if value is None or not math.isfinite(value) else float(value)


def _random_state(task: Any) -> dict[str, Any]:
    """Everything random that a task may draw from: the arms must see the same draws."""
    own = {
        name: copy.deepcopy(getattr(task, name))
        for name in ("rng_state", "np_rng")
        if hasattr(task, name)
    }
    return {
        "own": own,
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random_state(task: Any, state: dict[str, Any]) -> None:
    for name, value in state["own"].items():
        setattr(task, name, value)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
