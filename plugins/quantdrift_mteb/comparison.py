"""The evaluation of both arms on one task, and the folder that its evidence goes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.run import Outcome, describe_run
from quantdrift.engine.search import Settings, not_calibrated_on
from quantdrift.evidence import Evidence
from quantdrift.runs import write_run
from quantdrift_mteb.search import Found
from quantdrift_mteb.watching import Compared


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The evaluation of both arms on one task: what its searches have found so far.

    Attributes:
        task: the mteb task.
        found: by split and subset.
    """

    task: Any
    found: dict[tuple[str, str], Found] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was compared without a search, as a run records it.

    Attributes:
        evidence: the per-input record, without inputs that layers were measured on.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        left_out: number of inputs that layers were measured on.
        seconds: time per stage; mteb's own file has them.
    """

    evidence: Evidence
    fingerprint: str
    left_out: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    candidate_fingerprint: str | None = None


def kept_of(pair: QuantizedPair, compared: Compared, name: str) -> Kept | None:
    """The evidence of a comparison that counts, None where it has none.

    Args:
        pair: the model's weights, the reference's in place.
        compared: both arms.
        name: of the task.

    Raises:
        DataError: layers were measured on every input.
    """
    evidence = compared.evidence
    if evidence is None:
        return None
    ids = evidence.input_ids.tolist()
    rest = not_calibrated_on(pair, ids, name)
    return Kept(
        evidence=evidence if len(rest) == len(ids) else evidence.part(rest),
        fingerprint=pair.fingerprint,
        left_out=len(ids) - len(rest),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run folder goes, and what it is of.

    Attributes:
        folder: to write.
        split: of the task.
        subset: of the task.
        started: when, ISO 8601.
    """

    folder: Path
    split: str
    subset: str
    started: str


def write_evidence_of(
    model: Any,
    task: Any,
    measured: Outcome,
    place: Place,
    *,
    settings: Settings,
    n_items: int,
    similarity: str | None = None,
    reading: Mapping[str, Any] | None = None,
) -> None:
    """Write the run folder of one split and subset.

    Args:
        model: the pair as mteb has it, an MtebPair.
        task: mteb's.
        measured: what came out.
        place: where it goes.
        settings: how it was measured.
        n_items: documents of the corpus, or classes.
        similarity: how embeddings were compared, where they were.
        reading: how logits were had, where they were.

    Raises:
        RunError: it cannot be written.
    """
    record = describe_run(
        model.spec,
        model.pair,
        measured,
        settings,
        model={
            "canonical": model.source.canonical,
            "kind": model.source.kind,
            "revision": model.mteb_model_meta.revision,
        },
        data={
            "name": task.metadata.name,
            "split": place.split,
            "subset": place.subset,
            "harness": "mteb",
            "revision": task.metadata.dataset.get("revision"),
            "n_queries": measured.evidence.n_inputs + measured.left_out,
            "n_documents": n_items,
            "warnings": [],
        },
        similarity=similarity,
        reading=reading,
        started=place.started,
    )
    warnings = record["data"]["warnings"]
    if getattr(task, "skip_first_result", False):
        warnings.append("mteb leaves the first result of this task out; here it counts")
    if len(record["model"]["layers_never_reached"]) == len(model.pair.layers):
        # something must have been: sparse results cannot be followed back to their weights
        record["model"]["layers_never_reached"] = []
        warnings.append("which layers a forward pass reaches could not be told")
    write_run(place.folder, evidence=measured.evidence, record=record)
