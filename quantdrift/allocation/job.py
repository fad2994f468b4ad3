"""From a spec and data to a finished allocation: what `quantdrift allocate` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantdrift.allocation.for_search import allocate_for_search
from quantdrift.allocation.held_out import Contest, held_out_queries, hold_contest
from quantdrift.allocation.pre_step import left_out
from quantdrift.allocation.rivals import rivals_of
from quantdrift.allocation.stored.record import Allocation
from quantdrift.allocation.stored.record_file import check_place, write_allocation
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import SpecError, UnsupportedError
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.job import open_pair
from quantdrift.measurement.steps import Settings
from quantdrift.progress import Progress
from quantdrift.spec import Spec

__all__ = ["Allocated", "allocate_spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What came out.

    Attributes:
        allocation: as written.
        contest: how it did against its rivals on held-out queries; None if that was not asked for.
    """

    allocation: Allocation
    contest: Contest | None


def allocate_spec(
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    keep: Mapping[str, int] | None = None,
    check: bool = True,
    device: str | None = None,
    revision: str | None = None,
) -> Allocated:
    """Choose the widths of a model's layers and write them down.

    Args:
        spec: model and scheme, which names a criterion.
        dataset: queries and documents; labels play no part.
        out: the file.
        settings: batch size.
        store: where embeddings and sensitivities are kept.
        progress: where progress is shown.
        keep: pattern of layer names to the width that such layers are kept at.
        check: whether to compare it with its rivals on held-out queries.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.

    Raises:
        QuantDriftError: spec, data, model or place cannot be used.
    """
    if spec.scheme.criterion is None:
        text = str(spec)
        raise SpecError(
            f"{text}: no criterion to choose widths by; expected one, e.g. {spec.model}@W3.5+gap",
            text=text,
            start=len(text),
            end=len(text),
        )
    if (stored := spec.scheme.option("allocation")) is not None:
        raise UnsupportedError(
            f"{spec} has the widths of {stored}; expected a scheme whose widths are to be chosen, "
            f"e.g. {spec.model}@W3.5+gap"
        )
    check_place(out)
    opened = open_pair(spec, dataset, places=[], device=device, revision=revision)
    left_out([layer.name for layer in opened.pair.layers], spec.scheme, keep)  # refuses early
    job = opened.job(settings, store, progress)
    reference, _ = job.embed_reference()
    found = allocate_for_search(job, reference, keep=keep)
    write_allocation(out, found.allocation)  # before the check, which takes longer
    if not check:
        return Allocated(allocation=found.allocation, contest=None)
    seed = found.allocation.seed
    held = held_out_queries(len(opened.queries.ids), found.calibration, seed=seed)
    contest = hold_contest(
        opened.pair.layers,
        rivals_of(found.allocation, found.setting),
        opened.queries.part(held),
        opened.documents,
        (np.asarray(reference[0])[held], reference[1]),
        group_size=spec.scheme.group_size,
        similarity=opened.similarity,
        batch_size=settings.batch_size,
        progress=progress,
        query_only=spec.scheme.query_only,
    )
    return Allocated(allocation=found.allocation, contest=contest)
