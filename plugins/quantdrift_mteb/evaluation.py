"""Evaluates both arms of a pair on a task, and writes the drift into mteb's own result."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.timing import TimingStack

from quantdrift.asking.ask import Ask
from quantdrift.asking.forecast import forecast, is_off
from quantdrift.base.display import clean, complain, say
from quantdrift.base.errors import UnsupportedError
from quantdrift.evidence.record import Evidence
from quantdrift.harness import DEPTH, Outcome, carefully, refuse_without_search, remembered, screen_of
from quantdrift.measuring.flow import with_qrels
from quantdrift.metrics.keys import drift_keys, harness_metrics
from quantdrift.models.inputs import Settings
from quantdrift.models.store import default_store
from quantdrift.runs.folder import Run, now, write_run
from quantdrift.statistics.estimates import finite
from quantdrift_mteb.families import Recorder
from quantdrift_mteb.pairs import MtebPair, Where
from quantdrift_mteb.search import NAMED


@contextmanager
def both_arms(pair: MtebPair, task: Any, cache: Any, meta: Any) -> Iterator[None]:
    """Let `task.evaluate(pair, ...)` run the reference, then the candidate.

    It returns the candidate's scores, as mteb computes them, and the drift keys.
    """
    if "evaluate" in vars(task):  # mteb evaluates inside itself when it tracks emissions
        yield
        return
    place = None
    if cache is not None:
        place = Path(cache.get_task_result_path(task.metadata.name, meta)).with_name("drift") / task.metadata.name
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
        refuse_without_search(pair.pair, f"{name} ({task.metadata.type}) is none", named=NAMED)
    _foretell(pair, task, split, kwargs["encode_kwargs"])
    started, watch = now(), Recorder(task)
    put_back = remembered(task, "rng_state", "np_rng")
    with pair.as_arm("reference", task), watch.listening("reference"):
        # predictions and timings in mteb's files are those of the candidate
        reference = original(pair, split, **{**kwargs, "prediction_folder": None, "timer": TimingStack()})
    put_back()
    with pair.as_arm("candidate", task), watch.listening("candidate"):
        scores: Mapping[str, dict[str, Any]] = original(pair, split, **kwargs)
    encoding = kwargs["encode_kwargs"]
    settings = Settings(k=DEPTH, batch_size=int(encoding.get("batch_size", 32)), noise_floor=False)
    runs: list[Run] = []
    shown = encoding.get("show_progress_bar", True)
    for subset, subset_scores in scores.items():
        where = (split, subset)
        main = finite(reference[subset].get("main_score"))
        keys: dict[str, Any] = {"drift_spec": str(pair.spec), "drift_reference_main_score": main}
        run: Run | None = None
        if where in pair.found:
            outcome = pair.found[where][1]
            outcome = replace(outcome, evidence=with_qrels(outcome.evidence, _qrels(task, *where)))
            run = _written(pair, task, where, outcome, place=place, started=started)
            keys |= mteb_keys(outcome.evidence)
        else:
            with carefully(f"{name} {split}/{subset}"):
                compared = watch.compared(where)
                if compared.evidence is not None:
                    outcome = Outcome.of(
                        pair.pair,
                        compared.evidence,
                        dataset=name,
                        settings=settings,
                        read_as=compared.reading,
                        n_items=int(compared.evidence.n_items.max()),
                    )
                    keys |= mteb_keys(outcome.evidence, searched=False)
                    run = _written(pair, task, where, outcome, place=place, started=started)
                keys |= compared.keys
        if run is not None:
            runs.append(run)
            keys["drift_evidence"] = f"drift/{name}/{run.path.name}"
        subset_scores.update(keys)
        if run is None and shown:
            what, score = clean(f"{pair.spec} on {name} {split}/{subset}"), subset_scores.get("main_score")
            say(f"{what}: main score {score}, at full precision {main}", error=True)
    if runs and shown:
        say(screen_of(runs), error=True)
    return scores


def _foretell(pair: MtebPair, task: Any, split: str, encoding: Mapping[str, Any]) -> None:
    """Say what is done and, for a search, what it takes; refuse what cannot fit."""
    name, settings = task.metadata.name, Settings(batch_size=int(encoding.get("batch_size", 32)))
    lines = [f"{pair.spec} on {name} {split}: full precision first, then the candidate, then what changed"]
    for subset in task.hf_subsets if isinstance(task, AbsTaskRetrieval) and not is_off() else ():
        with suppress(UnsupportedError, AttributeError, KeyError):  # unknown sizes, or data of another form
            data, ask = _data(task, split, subset), Ask(pair=pair.spec, data=[name])
            texts = tuple(data[role]["text"] for role in ("queries", "corpus") if "text" in data[role].column_names)
            if not data.get("top_ranked") and len(texts) > 1:
                how: Any = {"settings": settings, "store": default_store(), "device": str(pair.pair.device)}
                told = forecast(ask, texts=texts, loaded=True, **how)
                lines += [told.about, *told.room[:1]]
    for line in lines if encoding.get("show_progress_bar", True) else ():
        say(f"quantdrift: {clean(line)}", error=True)


def _written(
    pair: MtebPair, task: Any, where: Where, outcome: Outcome, *, place: Path | None, started: str
) -> Run | None:
    """Write the run folder, where mteb keeps results."""
    if place is None:
        return None
    metadata = task.metadata
    folder = place / re.sub(r"[^\w.-]", "_", "-".join(where))
    source, revision = pair.source, pair.mteb_model_meta.revision
    model = {"canonical": source.canonical, "kind": source.kind, "revision": revision}
    data = {"name": metadata.name, "split": where[0], "subset": where[1], "harness": "mteb"}
    data["revision"] = metadata.dataset.get("revision")
    record = outcome.record(pair.spec, pair.pair, model=model, data=data, started=started)
    if getattr(task, "skip_first_result", False):
        record["data"]["warnings"].append("mteb leaves the first result of this task out; here it counts")
    return write_run(folder, evidence=outcome.evidence, record=record)


def mteb_keys(evidence: Evidence, *, searched: bool = True) -> dict[str, Any]:
    """Return the figures for mteb's result, None for undefined ones.

    The candidate's quality figures in a search are mteb's own keys and left out. Other tasks have its accuracy, as
    mteb's accuracy is that of other classifiers or another threshold.
    """
    chosen = [
        metric
        for metric in harness_metrics()
        if not (metric.family.arms and metric.arm == "candidate" and metric.where is None)
        or (str(metric) == "accuracy" and not searched)
    ]
    return {"drift_n_inputs": evidence.n_inputs} | drift_keys(evidence, chosen, warn=complain)


def _qrels(task: Any, split: str, subset: str) -> Mapping[str, Mapping[str, int]]:
    qrels: Mapping[str, Mapping[str, int]] = _data(task, split, subset)["relevant_docs"]
    return qrels


def _data(task: Any, split: str, subset: str) -> Any:
    return task.dataset[subset][split] if subset in task.dataset else task.dataset[split]
