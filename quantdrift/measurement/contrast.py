"""One encoder, one quantization, the same embeddings: read as classes, and read as a ranking.

Only the reading differs, so the difference is no matter of checkpoint, data or objective.
Source: paper, table of the contrast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from quantdrift.allocation.unchosen import chooses
from quantdrift.datasets.labelled import ClassificationDataset
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.measurement.class_readings import by_probe
from quantdrift.measurement.classification import measure_classes
from quantdrift.measurement.classification_job import (
    describe_labelled,
    labelled_job,
    probe_labels,
)
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.encoding import Settings
from quantdrift.measurement.head_inputs import as_encoder
from quantdrift.measurement.neighbours import (
    SIMILARITY,
    check_size,
    measure_neighbours,
)
from quantdrift.measurement.readers import Reader, check_scheme, load_reader
from quantdrift.measurement.record import describe_run, now
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.runs import Run, check_place, write_run
from quantdrift.spec import Spec

__all__ = ["Contrast", "Places", "run_contrast"]


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
            spec,
            job.pair,
            measured,
            settings,
            model=reader.model,
            data=data,
            started=started,
            **more,
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
    found = {
        (number, spec): place(spec, dataset)
        for number, dataset in enumerate(datasets)
        for spec in specs
    }
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
