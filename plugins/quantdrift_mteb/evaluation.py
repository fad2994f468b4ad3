"""Evaluate both arms of a pair on a task, and write the drift into mteb's own result."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.timing import TimingStack

from quantdrift.display import clean, complain, say
from quantdrift.engine.inputs import Settings
from quantdrift.engine.measure import with_qrels
from quantdrift.errors import UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.harness import DEPTH, Found, remembered
from quantdrift.metrics.keys import drift_keys, harness_metrics
from quantdrift.runs import now, write_run
from quantdrift.spec import refuse_unchosen
from quantdrift_mteb.families import Compared, Watch
from quantdrift_mteb.pairs import MtebPair, Where
from quantdrift_mteb.search import NAMED

_TOLD = {
    "drift_noise_floor": " (noise floor {:.1f} %)",
    "drift_accuracy": ", accuracy {:.1f} %",
    "drift_gold_lost_at_1": ", relevant first answers lost {:.1f} %",
    "drift_order_flip": ", order reversed in {:.2f} % of the comparisons of two pairs",
}
"""Rates that the line for the terminal tells where they are known."""


@contextmanager
def both_arms(pair: MtebPair, task: Any, cache: Any, meta: Any) -> Iterator[None]:
    """Inside, `task.evaluate(pair, ...)` runs the reference, then the candidate.

    The scores it returns are the candidate's, as mteb computes them, with the drift keys beside.
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
    name = task.metadata.name
    if not isinstance(task, AbsTaskRetrieval):
        if pair.pair.query_only:
            raise UnsupportedError(
                f"+query keeps the index at full precision, but {name} ({task.metadata.type}) has none: it is no "
                "retrieval task. Leave +query out"
            )
        refuse_unchosen(pair.pair, f"{name} ({task.metadata.type}) is none", named=NAMED)
    started, watch = now(), Watch(task)
    put_back = remembered(task, "rng_state", "np_rng")
    with pair.as_arm("reference", task), watch.listening("reference"):
        # predictions and timings in mteb's files are the candidate's
        reference = original(pair, split, **{**kwargs, "prediction_folder": None, "timer": TimingStack()})
    put_back()
    with pair.as_arm("candidate", task), watch.listening("candidate"):
        scores: Mapping[str, dict[str, Any]] = original(pair, split, **kwargs)
    encoding = kwargs["encode_kwargs"]
    size = int(encoding.get("batch_size", 32))
    for subset, subset_scores in scores.items():
        where = (split, subset)
        one = _Subset(pair=pair, task=task, where=where, place=place, started=started, batch_size=size)
        main = _number(reference[subset].get("main_score"))
        keys: dict[str, Any] = {"drift_spec": str(pair.spec), "drift_reference_main_score": main}
        if where in pair.found:
            keys |= one.searched(pair.found[where][1])
        elif where in watch.compared:
            with watch.carefully(where):
                keys |= one.compared(watch.compared[where])
        subset_scores.update(keys)
        if encoding.get("show_progress_bar", True):
            told = clean(f"{pair.spec} on {name} {split}/{subset}")
            say(f"drift of {told}: {_summary(subset_scores)}", error=True)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subset:
    """One split and subset of a task, and where its evidence goes; None keeps none."""

    pair: MtebPair
    task: Any
    where: Where
    place: Path | None
    started: str
    batch_size: int

    def searched(self, found: Found) -> dict[str, Any]:
        """The keys of a search, whose evidence is written."""
        found = replace(found, evidence=with_qrels(found.evidence, _qrels(self.task, *self.where)))
        return mteb_keys(found.evidence) | self._written(found)

    def compared(self, compared: Compared) -> dict[str, Any]:
        """The keys of a task that is no search, whose evidence is written where it has some."""
        if compared.evidence is None:
            return dict(compared.keys)
        found = Found.of(
            self.pair.pair,
            compared.evidence,
            dataset=self.task.metadata.name,
            settings=Settings(k=DEPTH, batch_size=self.batch_size, noise_floor=False),
            reading=compared.reading,
            n_items=compared.n_items,
        )
        keys = mteb_keys(found.evidence, searched=compared.searched)
        return keys | dict(compared.keys) | self._written(found)

    def _written(self, found: Found) -> dict[str, str]:
        """Write the run folder, and say where it is."""
        if self.place is None:
            return {}
        pair, metadata = self.pair, self.task.metadata
        folder = self.place / re.sub(r"[^\w.-]", "_", "-".join(self.where))
        source, revision = pair.source, pair.mteb_model_meta.revision
        record = found.record(
            pair.spec,
            pair.pair,
            model={"canonical": source.canonical, "kind": source.kind, "revision": revision},
            data={
                "name": metadata.name,
                "split": self.where[0],
                "subset": self.where[1],
                "harness": "mteb",
                "revision": metadata.dataset.get("revision"),
            },
            started=self.started,
        )
        warnings = record["data"]["warnings"]
        if getattr(self.task, "skip_first_result", False):
            warnings.append("mteb leaves the first result of this task out; here it counts")
        if len(record["model"]["layers_never_reached"]) == len(pair.pair.layers):
            # something must have been: sparse results cannot be followed back to their weights
            record["model"]["layers_never_reached"] = []
            warnings.append("which layers a forward pass reaches could not be told")
        write_run(folder, evidence=found.evidence, record=record)
        return {"drift_evidence": f"drift/{metadata.name}/{folder.name}"}


def mteb_keys(evidence: Evidence, *, searched: bool = True) -> dict[str, Any]:
    """The figures that go into mteb's result beside its own, None where they are undefined.

    Of a search the candidate's quality figures are left out: mteb's own keys are those. Elsewhere its accuracy is
    there, for mteb's own is of other classifiers or another threshold.
    """
    chosen = [
        metric
        for metric in harness_metrics()
        if not (metric.family.arms and metric.arm == "candidate" and metric.where is None)
        or (str(metric) == "accuracy" and not searched)
    ]
    return {"drift_n_inputs": evidence.n_inputs} | drift_keys(evidence, chosen, warn=complain)


def _summary(scores: Mapping[str, Any]) -> str:
    """One line for the terminal; the rest is in the result."""
    flip = scores.get("drift_flip_at_1")
    if flip is None:
        arms = (_number(scores.get("main_score")), scores["drift_reference_main_score"])
        low, full = ("undefined" if score is None else f"{score:.4f}" for score in arms)
        text = f"main score {low}, at full precision {full}"
    else:
        what = "class" if "drift_accuracy" in scores else "first answer"
        text = f"another {what} for {100 * flip:.1f} % of {scores['drift_n_inputs']:,} inputs"
    for key, told in _TOLD.items():
        if (value := scores.get(key)) is not None:
            text += told.format(100 * value)
    return text


def _qrels(task: Any, split: str, subset: str) -> Mapping[str, Mapping[str, int]]:
    data = task.dataset[subset][split] if subset in task.dataset else task.dataset[split]
    qrels: Mapping[str, Mapping[str, int]] = data["relevant_docs"]
    return qrels


def _number(value: Any) -> float | None:
    """As JSON has it: it knows no NaN."""
    return None if value is None or not math.isfinite(value) else float(value)
