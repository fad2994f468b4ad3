"""Run folders of an evaluation: one for every task and filter, as every other run is kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.engine.run import describe_run
from quantdrift.engine.search import Settings
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.finished.lm_eval_evidence import PairedFilter
from quantdrift.runs import read_run, write_run
from quantdrift_lm_eval.careful import warn
from quantdrift_lm_eval.recording import Recording

if TYPE_CHECKING:
    from quantdrift_lm_eval.results import Compared

READING = {
    "multiple_choice": "log-likelihoods of the choices",
    "loglikelihood": "greedy decoding gives the text",
    "generate_until": "generated text",
}
"""What the scores or answers are, by the kind of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where run folders go.

    Attributes:
        folder: that holds them.
        started: when, ISO 8601.
    """

    folder: Path
    started: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    evidence: Evidence
    fingerprint: str
    candidate_fingerprint: str | None
    left_out: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


def write_runs(pair: Any, recorded: Recording, compared: Compared, place: Place) -> dict[str, dict[str, str]]:
    """Write a run folder of every task and filter that has evidence.

    It replaces an earlier run of the same pair, and no other.

    Args:
        pair: the model, a QuantizedPairLM.
        recorded: what was noted of the evaluation.
        compared: both arms.
        place: where they go.

    Returns:
        Task to filter to folder.
    """
    written: dict[str, dict[str, str]] = {}
    for task, samples in compared.joined.items():
        for name, paired in samples.filters.items():
            if paired.evidence is None:
                continue
            parts = [_safe(str(pair.spec.scheme)), _safe(task)]
            if len(samples.filters) > 1:
                parts[-1] += f"-{_safe(name)}"
            taken = {path for paths in written.values() for path in paths.values()}
            folder = _free(place.folder.joinpath(*parts), str(pair.spec), taken)
            record = _record(pair, recorded, compared.tasks[task], name, paired, started=place.started)
            try:
                write_run(folder, evidence=paired.evidence, record=record)
            except RunError as error:  # the evaluation itself went well
                warn(f"the evidence is not kept: {error}")
                continue
            written.setdefault(task, {})[name] = str(folder)
    return written


def _free(folder: Path, spec: str, taken: Collection[str]) -> Path:
    """The folder, or one beside it where this one is of another task or of another model."""
    while str(folder) in taken or _spec_of(folder) not in {None, spec}:
        folder = folder.with_name(f"{folder.name}-")
    return folder


def _spec_of(folder: Path) -> str | None:
    try:
        return str(read_run(folder).record.get("spec"))
    except (OSError, RunError):  # nothing is there, or no run; writing says so
        return None


def _record(
    pair: Any, recorded: Recording, task: Any, filter_name: str, paired: PairedFilter, *, started: str
) -> dict[str, Any]:
    evidence = paired.evidence
    assert evidence is not None
    size = pair.batch_size
    config = task.config
    return describe_run(
        pair.spec,
        pair.pair,
        _Measured(
            evidence=evidence,
            fingerprint=pair.fingerprint,
            candidate_fingerprint=recorded.candidate_fingerprint,
            seconds=recorded.seconds,
        ),
        Settings(
            k=evidence.depth, batch_size=size if isinstance(size, int) else 0, noise_floor=evidence.noise is not None
        ),
        model={"canonical": pair.spec.model, "kind": pair.backend, "revision": getattr(pair, "revision", None)},
        data={
            "name": task.task_name,
            "split": str(config.test_split or config.validation_split or ""),
            "subset": filter_name,
            "harness": "lm-eval",
            "revision": str(task.VERSION),
            "n_fewshot": config.num_fewshot,
            "n_queries": evidence.n_inputs,
            "n_documents": int(evidence.n_items.max(initial=0)),
            "warnings": [],
        },
        reading={"reading": READING[paired.kind], "judged_by": paired.judged_by},
        started=started,
    )


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+=-]", "_", name)
