"""Self-retrieval: every input searches the others of its own part, itself left out.

It is no deployed system but a control: the embeddings are those that classes are read from, so only
how they are read differs. Source: paper, appendix "Image self-retrieval", and its table of the
contrast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from quantdrift.datasets.labelled import ClassificationDataset
from quantdrift.engine.classes import LabelledJob, OneSide, by_probe, measure_classes
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.readers import Reader, as_encoder, check_scheme, load_reader
from quantdrift.engine.run import describe_labelled, describe_run, labelled_job, now, probe_labels
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.search import NOISE_DEPTH, Settings, assemble, compare_rankings, not_calibrated_on
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import DataError, RunError, UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.progress import Progress
from quantdrift.runs import Run, check_place, write_run
from quantdrift.spec import Spec, chooses

# --- Self-retrieval: every input searches the others of its own part, itself left out -------------

SIMILARITY = Similarity.COSINE
LEAST = 3
"""Inputs: itself, a first and a runner-up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbours:
    """What self-retrieval gave.

    Attributes:
        evidence: the per-input record, without inputs that layers were measured on.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        left_out: number of inputs that layers were measured on.
        seconds: time per stage.
        notes: what deserves a word of the embeddings, one sentence each.
    """

    evidence: Evidence
    fingerprint: str
    left_out: int
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    candidate_fingerprint: str | None = None


def check_size(n: int, name: str) -> None:
    """Refuse data of which no input has a first neighbour and a runner-up.

    Args:
        n: inputs.
        name: of the data.

    Raises:
        DataError: there are fewer than three.
    """
    if n < LEAST:
        raise DataError(
            f"{name} has {n} inputs to search among; expected at least {LEAST}, so that each has a "
            "nearest neighbour and a runner-up"
        )


def measure_neighbours(job: LabelledJob, side: OneSide) -> Neighbours:
    """The evidence of nearest neighbours by cosine, every input ranking all others.

    Args:
        job: what the embeddings came from.
        side: embeddings of the evaluated inputs by both arms.

    Raises:
        DataError: there are too few inputs.
        ScoreError: a score is not finite.
    """
    ids = job.test.ids
    check_size(len(ids), str(job.dataset))
    with job.stage("self-retrieval", "ranking the neighbours", len(ids)) as tell:
        state = score_embeddings(
            side.reference,
            side.candidate,
            side.reference,
            side.candidate,
            similarity=SIMILARITY,
            k=job.settings.k,
            excluded=np.arange(len(ids)),
            device=job.pair.device if job.pair.device.type == "cuda" else "cpu",
            progress=tell,
        )
    noise = None
    if side.again is not None:
        noise = compare_rankings(
            (side.reference, side.reference),
            (side.again, side.again),
            state.reference_top()[0][:, :NOISE_DEPTH],
            SIMILARITY,
        )
    evidence = assemble(state, input_ids=ids, item_ids=ids, noise=noise)
    rest = not_calibrated_on(job.pair, ids, job.dataset)
    left_out = len(ids) - len(rest)
    return Neighbours(
        evidence=evidence.part(rest) if left_out else evidence,
        fingerprint=side.fingerprint,
        candidate_fingerprint=side.candidate_fingerprint,
        left_out=left_out,
        seconds=dict(job.seconds),
        notes=tuple(job.notes),
    )


# --- contrast -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the two runs of a contrast are written.

    Attributes:
        classification: folder of the reading by classes.
        retrieval: folder of the reading by neighbours.
    """

    classification: Path
    retrieval: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The two runs of one spec on one dataset.

    Attributes:
        spec: model and scheme, canonical.
        data: name of the data.
        classification: the run that ranks classes.
        retrieval: the run that ranks the other inputs.
    """

    spec: str
    data: str
    classification: Run
    retrieval: Run


def run_contrast(
    specs: Sequence[Spec],
    datasets: Sequence[ClassificationDataset],
    *,
    place: Callable[[Spec, ClassificationDataset], Places],
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    announce: Callable[[str], None] = lambda _: None,
    device: str | None = None,
    revision: str | None = None,
) -> list[Contrast]:
    """Read every spec both ways on every dataset and write the runs, two of each.

    A model is loaded once, and its reference embeddings are computed once for all its schemes.

    Args:
        specs: models and schemes.
        datasets: labelled inputs.
        place: where the runs of a spec on a dataset go.
        settings: how to measure.
        store: where embeddings and probes are kept; one that keeps nothing keeps them for the time
            of this call.
        progress: where progress is shown.
        announce: told which spec is next, on which data.
        device: where models run; the best there is if not given.
        revision: of hub models.

    Returns:
        In the order of the datasets, and within each of the specs.

    Raises:
        QuantDriftError: anything that keeps a run from being made; runs that were finished stay.
    """
    specs = list(dict.fromkeys(specs))
    places = _places(specs, datasets, place)
    for dataset in datasets:
        check_size(len(dataset.test.ids), dataset.name)
        for spec in specs:
            check_scheme(spec, dataset.kind)
            _refuse_criterion(spec)
    found = {}
    with ExitStack() as stack:
        if store.root is None:
            folder = TemporaryDirectory(prefix="quantdrift-", ignore_cleanup_errors=True)
            store = EmbeddingStore(Path(stack.enter_context(folder)))
        for model in dict.fromkeys(spec.model for spec in specs):
            schemes = [spec for spec in specs if spec.model == model]
            for kind in dict.fromkeys(dataset.kind for dataset in datasets):
                reader = load_reader(schemes[0], kind, device=device, revision=revision)
                for number, dataset in enumerate(datasets):
                    if dataset.kind != kind:
                        continue
                    for spec in schemes:
                        announce(f"{spec} on {dataset.name}")
                        found[number, spec] = _one(
                            reader,
                            spec,
                            dataset,
                            places[number, spec],
                            settings=settings,
                            store=store,
                            progress=progress,
                        )
    return [found[number, spec] for number in range(len(datasets)) for spec in specs]


def _one(
    reader: Reader,
    spec: Spec,
    dataset: ClassificationDataset,
    places: Places,
    *,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
) -> Contrast:
    started = now()
    encoder, head = (reader, None) if reader.classes is None else as_encoder(reader)
    job = labelled_job(encoder, spec, dataset, settings=settings, store=store, progress=progress)
    if head is None:
        reading = by_probe(job.probe(probe_labels(dataset, spec.model)))
    else:
        assert isinstance(job.pair, QuantizedPair)  # a reader makes no other
        reading = head.reading(job.pair)
    side = job.run()
    classified = measure_classes(job, side, reading, labels=dataset.test.labels)
    neighbours = measure_neighbours(job, side)
    described = describe_labelled(dataset, len(reading.classes), classified.notes)
    searched = {
        "name": f"{dataset.name}-self",
        "kind": "self-retrieval",
        "inputs": described["inputs"],
        "split": dataset.split,
        "fingerprint": described["fingerprint"],
        "n_queries": described["n_inputs"],
        "n_documents": described["n_inputs"],
        "warnings": [f"every input searches the others of {dataset.name}, itself left out"],
        "path": described["path"],
    }
    runs = []
    for path, measured, data, probe, more in (
        (places.classification, classified, described, reading.probe, {"reading": reading.record}),
        (
            places.retrieval,
            neighbours,
            searched,
            None,
            {"reading": {"reading": "self-retrieval"}, "similarity": str(SIMILARITY)},
        ),
    ):
        record = describe_run(
            spec, job.pair, measured, settings, model=reader.model, data=data, started=started, **more
        )
        runs.append(write_run(path, evidence=measured.evidence, record=record, probe=probe))
    return Contrast(spec=str(spec), data=dataset.name, classification=runs[0], retrieval=runs[1])


def _refuse_criterion(spec: Spec) -> None:
    """Widths are chosen by the gaps of one reading, and a contrast has two."""
    scheme = spec.scheme
    if chooses(scheme):
        raise UnsupportedError(
            f"{spec}: {scheme.criterion} chooses widths by the gaps of classes or by those of a "
            "search, and a contrast reads one candidate both ways; name a stored allocation "
            f"({spec.model}@allocation.json), or one width"
        )


def _places(
    specs: Sequence[Spec],
    datasets: Sequence[ClassificationDataset],
    place: Callable[[Spec, ClassificationDataset], Places],
) -> dict[tuple[int, Spec], Places]:
    """Where everything goes; refused before anything is loaded."""
    found = {(number, spec): place(spec, dataset) for number, dataset in enumerate(datasets) for spec in specs}
    taken: set[Path] = set()
    for places in found.values():
        for path in (places.classification, places.retrieval):
            if path in taken:
                raise RunError(
                    f"two runs would go to {path}: the names of specs and data must tell them "
                    "apart; rename a folder, or contrast them in two commands"
                )
            taken.add(path)
            check_place(path.absolute())
    return found
