"""Run folders of an evaluation: one for every task and filter, as every other run is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantdrift.display import clean, complain
from quantdrift.engine.inputs import Settings
from quantdrift.errors import RunError
from quantdrift.finished.lm_eval_evidence import PairedSamples
from quantdrift.harness import Found
from quantdrift.runs import read_run, write_run
from quantdrift_lm_eval.model import Recording

READING = {
    "multiple_choice": "log-likelihoods of the choices",
    "loglikelihood": "greedy decoding gives the text",
    "generate_until": "generated text",
}
"""What the scores or answers are, by the kind of a task."""


def write_runs(
    pair: Any, recorded: Recording, joined: Mapping[str, PairedSamples], *, folder: Path, started: str
) -> dict[str, dict[str, str]]:
    """Write a run folder of every task and filter that has evidence.

    It replaces an earlier run of the same pair, and no other.
    """
    written: dict[str, dict[str, str]] = {}
    taken: set[Path] = set()
    size = pair.batch_size
    model = {"canonical": pair.spec.model, "kind": pair.backend, "revision": getattr(pair, "revision", None)}
    for name, samples in joined.items():
        task = recorded.tasks[name]
        for filter_name, paired in samples.filters.items():
            evidence = paired.evidence
            if evidence is None:
                continue
            settings = Settings(k=evidence.depth, batch_size=size if isinstance(size, int) else 0, noise_floor=False)
            stem = _safe(name) + (f"-{_safe(filter_name)}" if len(samples.filters) > 1 else "")
            place = folder / _safe(str(pair.spec.scheme)) / stem
            while place in taken or _spec_of(place) not in {None, str(pair.spec)}:  # of another task or model
                place = place.with_name(f"{place.name}-")
            found = Found(
                evidence=evidence,
                fingerprint=pair.fingerprint,
                candidate_fingerprint=recorded.candidate_fingerprint,
                settings=settings,
                reading={"reading": READING[paired.kind], "judged_by": paired.judged_by},
                n_items=int(evidence.n_items.max(initial=0)),
                seconds=recorded.seconds,
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
                record = found.record(pair.spec, pair.pair, data=data, model=model, started=started)
                write_run(place, evidence=evidence, record=record)
            except RunError as error:  # the evaluation itself went well
                complain(clean(f"the evidence is not kept: {error}"))
                continue
            taken.add(place)
            written.setdefault(name, {})[filter_name] = str(place)
    return written


def _spec_of(folder: Path) -> str | None:
    try:
        return str(read_run(folder).record.get("spec"))
    except (OSError, RunError):  # nothing is there, or no run; writing says so
        return None


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+=-]", "_", name)
