"""Evaluate both arms of a pair on a task, and write the drift into mteb's own result."""

from __future__ import annotations

import copy
import datetime
import math
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.timing import TimingStack

from quantdrift.display import clean, say
from quantdrift.engine.search import Settings, with_qrels
from quantdrift.errors import UnsupportedError
from quantdrift_mteb.choice import refuse_unchosen
from quantdrift_mteb.comparison import Comparison, Place, kept_of, write_evidence_of
from quantdrift_mteb.families import listener_for
from quantdrift_mteb.keys import mteb_keys
from quantdrift_mteb.pairs import MtebPair
from quantdrift_mteb.search import DEPTH, Found
from quantdrift_mteb.watching import Compared, Watch, watched


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
    pair: MtebPair, task: Any, original: Any, place: Path | None, *, split: str, kwargs: dict[str, Any]
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
    watch = Watch(task, listener_for(task))
    before = _random_state(task)
    with pair.as_arm("reference", comparison), watched(watch, "reference"):
        # predictions and timings in mteb's files are the candidate's
        quiet = {**kwargs, "prediction_folder": None, "timer": TimingStack()}
        reference = original(pair, split, **quiet)
    _set_random_state(task, before)
    with pair.as_arm("candidate", comparison), watched(watch, "candidate"):
        scores: Mapping[str, dict[str, Any]] = original(pair, split, **kwargs)
    shown = kwargs["encode_kwargs"].get("show_progress_bar", True)
    batch_size = int(kwargs["encode_kwargs"].get("batch_size", 32))
    for subset, subset_scores in scores.items():
        keys: dict[str, Any] = {
            "drift_spec": str(pair.spec),
            "drift_reference_main_score": _number(reference[subset].get("main_score")),
        }
        folder = None
        if place is not None:
            folder = Place(
                folder=place / re.sub(r"[^\w.-]", "_", f"{split}-{subset}"), split=split, subset=subset, started=started
            )
        where = (split, subset)
        if (found := comparison.found.get(where)) is not None:
            keys |= _searched(pair, task, found, folder, where)
        elif (compared := watch.compared.get(where)) is not None:
            with watch.carefully(where):
                keys |= _compared(pair, task, compared, folder, batch_size)
        subset_scores.update(keys)
        if shown:
            told = f"{pair.spec} on {task.metadata.name} {split}/{subset}"
            say(f"drift of {clean(told)}: {_summary(subset_scores)}", error=True)
    return scores


def _searched(pair: MtebPair, task: Any, found: Found, place: Place | None, where: tuple[str, str]) -> dict[str, Any]:
    """The keys of a search, whose evidence is written."""
    measured = found.measured
    measured.evidence = with_qrels(measured.evidence, _qrels(task, *where))
    keys = mteb_keys(measured.evidence)
    if place is not None:
        write_evidence_of(
            pair, task, measured, place, settings=found.settings, similarity=found.similarity, n_items=found.n_documents
        )
        keys["drift_evidence"] = f"drift/{task.metadata.name}/{place.folder.name}"
    return keys


def _compared(pair: MtebPair, task: Any, compared: Compared, place: Place | None, batch_size: int) -> dict[str, Any]:
    """The keys of a task that is no search, whose evidence is written where it has some."""
    keys = dict(compared.keys)
    kept = kept_of(pair.pair, compared, task.metadata.name)
    if kept is None:
        return keys
    keys = mteb_keys(kept.evidence, searched=compared.searched) | keys
    if place is not None:
        settings = Settings(k=DEPTH, batch_size=batch_size, noise_floor=False)
        write_evidence_of(
            pair, task, kept, place, settings=settings, reading=compared.reading, n_items=compared.n_items
        )
        keys["drift_evidence"] = f"drift/{task.metadata.name}/{place.folder.name}"
    return keys


def _summary(scores: Mapping[str, Any]) -> str:
    """One line for the terminal; the rest is in the result."""
    flip, order = scores.get("drift_flip_at_1"), scores.get("drift_order_flip")
    if flip is None:
        arms = (scores["drift_reference_main_score"], _number(scores.get("main_score")))
        shown = ["undefined" if score is None else f"{score:.4f}" for score in arms]
        text = f"main score {shown[1]}, at full precision {shown[0]}"
    else:
        what = "class" if "drift_accuracy" in scores else "first answer"
        text = f"another {what} for {100 * flip:.1f} % of {scores['drift_n_inputs']:,} inputs"
    if scores.get("drift_noise_floor") is not None:
        text += f" (noise floor {100 * scores['drift_noise_floor']:.1f} %)"
    if scores.get("drift_accuracy") is not None:
        low, full = (100 * scores[f"drift_{arm}accuracy"] for arm in ("", "reference_"))
        text += f", accuracy {low:.1f} %, at full precision {full:.1f} %"
    elif scores.get("drift_gold_lost_at_1") is not None:
        text += f", relevant first answers lost {100 * scores['drift_gold_lost_at_1']:.1f} %"
    if order is not None:
        text += f", order reversed in {100 * order:.2f} % of the comparisons of two pairs"
    return text


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
    own = {name: copy.deepcopy(getattr(task, name)) for name in ("rng_state", "np_rng") if hasattr(task, name)}
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
