"""The same queries against nested parts of one corpus, from one set of embeddings.

One seeded permutation orders the documents; the part of n documents is its first n, so every part
holds the smaller ones. Scoring is a commutative merge of disjoint parts, so each document is scored
once: what a size adds is scored and merged into the state of the size before. Items keep the
positions they have in the whole corpus, so that ties break as in a plain run.

Source: paper, appendix, "Corpus size, case by case" and the table of corpus sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.run import describe_data, describe_run, open_pair
from quantdrift.engine.scoring.state import ScoreState, at_positions, merge
from quantdrift.engine.search import Arms, Job, Measured, Qrels, Settings, assemble, not_calibrated_on
from quantdrift.engine.store import EmbeddingStore, digest_of, key_of
from quantdrift.errors import DataError
from quantdrift.progress import Progress
from quantdrift.runs import Run, write_run
from quantdrift.spec import Spec

# --- The same queries against nested parts of one corpus, from one set of embeddings --------------

ALL = "all"
LEAST = 50
"""Documents of the smallest default size; below, ranks and intervals say little."""

_EXAMPLE = "e.g. 250,1000,all"


def parse_sizes(text: str, n_documents: int) -> tuple[int, ...]:
    """The sizes a list such as "250,1000,all" names.

    Args:
        text: numbers of documents that rise, at least two; "all" is the whole corpus.
        n_documents: of the whole corpus.

    Raises:
        DataError: a part is neither a number nor "all", or `check_sizes` refuses the sizes.
    """
    sizes = []
    for part in (part.strip() for part in text.split(",")):
        if part != ALL and not (part.isascii() and part.isdigit()):
            raise DataError(
                f"expected numbers of documents or {ALL!r}, separated by commas, {_EXAMPLE}; got {part!r} in {text!r}"
            )
        sizes.append(n_documents if part == ALL else int(part))
    check_sizes(sizes, n_documents)
    return tuple(sizes)


def check_sizes(sizes: Sequence[int], n_documents: int) -> None:
    """Refuse sizes that make no sweep.

    Raises:
        DataError: fewer than two sizes, one below 1 or beyond the corpus, or sizes that do not rise
            (one that occurs twice, or "all" before another).
    """
    shown = ", ".join(map(str, sizes)) or "none"
    if any(size < 1 for size in sizes):
        raise DataError(f"a corpus has at least 1 document; got sizes {shown}")
    beyond = [size for size in sizes if size > n_documents]
    if beyond:
        raise DataError(
            f"the corpus has {n_documents} documents; got size {beyond[0]}. Give sizes up to "
            f"{n_documents}, or {ALL!r} for the whole corpus"
        )
    if any(left >= right for left, right in pairwise(sizes)):
        raise DataError(f"expected sizes that rise, each once, {_EXAMPLE}; got {shown} ({ALL!r} is {n_documents} here)")
    if len(sizes) < 2:  # noqa: PLR2004 -- the smallest and the largest are compared
        raise DataError(f"a sweep compares at least two sizes of the corpus of {n_documents}; got {shown}")


def default_sizes(n_documents: int) -> tuple[int, ...]:
    """An eighth, a quarter and a half of the corpus, to two digits and at least 50, and all of it.

    >>> default_sizes(5183)
    (650, 1300, 2600, 5183)

    Raises:
        DataError: the corpus is too small for two sizes.
    """
    parts = (max(LEAST, int(float(f"{n_documents / share:.1e}"))) for share in (8, 4, 2))
    sizes = (*sorted({size for size in parts if size < n_documents}), n_documents)
    if len(sizes) < 2:  # noqa: PLR2004 -- the smallest and the largest are compared
        raise DataError(
            f"a corpus of {n_documents} documents is too small for the default sizes, of which the "
            f"smallest is {LEAST}: give --sizes, e.g. --sizes {max(1, n_documents // 2)},all"
        )
    check_sizes(sizes, n_documents)
    return sizes


def nested_subsets(n_documents: int, sizes: Sequence[int], *, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Positions of the documents of each size: the first n of one seeded permutation, sorted.

    >>> [subset.tolist() for subset in nested_subsets(5, [2, 5], seed=0)]
    [[2, 4], [0, 1, 2, 3, 4]]

    Args:
        n_documents: of the whole corpus.
        sizes: rising.
        seed: of the permutation.

    Returns:
        Per size int64 [size], increasing; each holds all smaller ones.

    Raises:
        DataError: as `check_sizes`.
    """
    check_sizes(sizes, n_documents)
    order = np.random.default_rng(seed).permutation(n_documents).astype(np.int64)
    return tuple(np.sort(order[:size]) for size in sizes)


def measure_sizes(job: Job, subsets: Sequence[NDArray[np.int64]], *, qrels: Qrels | None = None) -> list[Measured]:
    """Measure a pair at every size; embeds and scores each document once.

    The whole corpus is embedded, whatever the sizes: its embeddings are those of a plain run, and
    shared with it. The noise floor, where it is asked for, is that of the largest size.

    Args:
        job: the pair, the queries and the whole corpus.
        subsets: positions of the documents of each size, nested, as `nested_subsets` gives them.
        qrels: relevance labels; judged documents outside a subset stay judged, as in a plain run.

    Returns:
        One measurement per size, each that of a plain run over these documents alone.

    Raises:
        DataError: there are no queries or no documents.
        ScoreError: an embedding or a score is not finite.
        RunError: no space to keep embeddings.
    """
    arms = job.embed()
    states: list[ScoreState] = []
    with job.stage("scoring", "scoring both arms", len(subsets[-1])) as tell:
        for before, subset in pairwise((np.empty(0, dtype=np.int64), *subsets)):
            new = np.setdiff1d(subset, before, assume_unique=True)  # keeps their order
            state = at_positions(job.score(_part(arms, new), tell=tell), new)
            states.append(merge(states[-1], state) if states else state)
    noise = job.noise(states[-1], arms) if job.settings.noise_floor else None
    rest = not_calibrated_on(job.pair, job.queries.ids, job.dataset)
    return [
        Measured(
            evidence=assemble(
                state,
                input_ids=job.queries.ids,
                item_ids=job.documents.ids,
                qrels=qrels,
                noise=noise if state is states[-1] else None,
            ).part(rest),
            left_out=len(job.queries.ids) - len(rest),
            state=state,
            fingerprint=arms.fingerprint,
            candidate_fingerprint=arms.candidate_fingerprint,
            seconds=job.seconds,
            notes=job.notes,
        )
        for state in states
    ]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of an array, taken a tile at a time, so that a memory map stays on disk."""

    array: Any
    rows: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        return self.array[self.rows[at]]


def _part(arms: Arms, rows: NDArray[np.int64]) -> Arms:
    reference = _Rows(arms.reference[1], rows)
    # one object for both arms is how scoring knows that the index is not quantized
    shared = arms.candidate[1] is arms.reference[1]
    candidate = reference if shared else _Rows(arms.candidate[1], rows)
    return replace(arms, reference=(arms.reference[0], reference), candidate=(arms.candidate[0], candidate))


# --- Run a spec on nested parts of a dataset's corpus, one ordinary run folder for each size ------


def run_sizes(
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    out: Path,
    sizes: Sequence[int],
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> list[Run]:
    """Measure a pair at every corpus size and write a run for each.

    Args:
        spec: model and scheme.
        dataset: queries, the whole corpus and, where there are any, relevance labels.
        out: folder that the runs are written into, `docs-00250` and so on.
        sizes: numbers of documents, rising.
        settings: how to measure; its seed is also that of the subsets, and its noise floor is
            measured at the largest size only.
        store: where embeddings are kept.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.

    Returns:
        The finished runs, smallest first. At the size of the whole corpus evidence and data
        fingerprint are those of `run_spec`.

    Raises:
        QuantDriftError: anything that keeps the runs from being made. They are written when all are
            measured, each in one step, so what is there is whole.
    """
    n_documents = len(dataset.document_ids)
    subsets = nested_subsets(n_documents, sizes, seed=settings.seed)
    places = [out / folder_of(size, n_documents) for size in sizes]
    opened = open_pair(spec, dataset, places=places, device=device, revision=revision)
    job = opened.job(settings, store, progress)
    runs = []
    for place, subset, measured in zip(
        places, subsets, measure_sizes(job, subsets, qrels=dataset.qrels or None), strict=True
    ):
        record = describe_run(
            spec,
            opened.pair,
            measured,
            settings,
            model=opened.model,
            data=_describe_part(dataset, subset, settings.seed),
            similarity=str(opened.similarity),
            started=opened.started,
        )
        record["settings"]["noise_floor"] = measured.evidence.noise is not None
        runs.append(write_run(place, evidence=measured.evidence, record=record))
    return runs


def folder_of(size: int, n_documents: int) -> str:
    """The name of a size's run folder; names sort as sizes do.

    >>> folder_of(250, 1400)
    'docs-00250'
    """
    return f"docs-{size:0{max(5, len(str(n_documents)))}}"


def relevant_inside(dataset: RetrievalDataset, subset: NDArray[np.int64]) -> dict[str, int]:
    """Number of queries by how many of their relevant documents are in a part of the corpus.

    Counted are relevant documents that the whole corpus holds; a query without any does not count.

    Args:
        dataset: queries, the whole corpus and its labels.
        subset: positions of the documents of the part.

    Returns:
        Counts by "all", "some" and "none".
    """
    known = set(dataset.document_ids)
    inside = {dataset.document_ids[position] for position in subset.tolist()}
    counts = {"all": 0, "some": 0, "none": 0}
    for query in dataset.query_ids:
        relevant = _relevant(dataset.qrels, query) & known
        if relevant:
            there = len(relevant & inside)
            share = "all" if there == len(relevant) else "some" if there else "none"
            counts[share] += 1
    return counts


def _relevant(qrels: Qrels, query: str) -> set[str]:
    return {document for document, grade in qrels.get(query, {}).items() if grade > 0}


def _describe_part(dataset: RetrievalDataset, subset: NDArray[np.int64], seed: int) -> dict[str, Any]:
    """What run.json says of a part of a corpus; parts differ in fingerprint as corpora do."""
    data = describe_data(dataset)
    whole, n_documents = data["fingerprint"], data["n_documents"]
    data["corpus_size"] = {
        "seed": seed,
        "n": len(subset),
        "of": n_documents,
        "corpus": data["name"],
        "corpus_fingerprint": whole,
        "relevant_inside": relevant_inside(dataset, subset) if dataset.qrels else None,
    }
    data["n_documents"] = len(subset)
    if len(subset) < n_documents:
        data["name"] = f"{dataset.name}, {len(subset)} documents"
        # which documents, not how they were drawn: the same seed may draw others elsewhere
        data["fingerprint"] = key_of(corpus=whole, documents=digest_of(subset))
    return data
