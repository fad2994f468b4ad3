"""What every measurement does with a pair: stages, embeddings by either arm, calibration.

`steps` puts it together for two sides of a retrieval task, `classification` for labelled inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.calibration.sample import Sample, draw_sample
from quantdrift.engine.inputs import Inputs, Vectors
from quantdrift.engine.pair import Pair, QuantizedPair
from quantdrift.engine.scoring.state import ScoreState
from quantdrift.engine.scoring.streamed import Similarity, check_embeddings, score_embeddings
from quantdrift.engine.sensitivity.allocate import allocate_for_search
from quantdrift.engine.store import CHUNK_ELSEWHERE, EmbeddingStore, digest_of, key_of
from quantdrift.errors import DataError
from quantdrift.evidence import Evidence, Judgements, Noise, Top
from quantdrift.progress import Progress

# --- What every measurement does with a pair: stages, embeddings by either arm, calibration -------

PROBE = 2
"""Inputs that are run once with an eye on which layers they reach."""
MANY = 0.1
"""Share of embeddings that are another's from which on it is said."""
FEW = 10
"""Inputs below which it is not: one that is there twice is no sign then."""
LOOKED_AT = 10_000
"""Embeddings at most that are held against each other."""
SAME = 1000
"""Steps of the largest number below which embeddings are the same: batches change last digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a pair is measured.

    Attributes:
        k: ranks kept of either arm.
        batch_size: inputs per forward pass.
        noise_floor: whether to run the reference a second time.
        seed: of the order in which the noise floor is run.
    """

    k: int = 200
    batch_size: int = 32
    noise_floor: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A pair, and how inputs go through it.

    Attributes:
        pair: the model; in the reference arm between steps.
        settings: how.
        store: where embeddings are kept, and layers that were calibrated.
        progress: where progress is shown.
        seconds: time per stage so far.
        notes: what deserves a word of the embeddings so far, one sentence each.
    """

    pair: Pair
    settings: Settings
    store: EmbeddingStore
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, shown: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a stage of `total` steps and note under `name` how long it took."""
        start = time.perf_counter()
        try:
            with self.progress.stage(shown, total) as tell:
                yield tell
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 3)

    def watch(self, side: Inputs) -> None:
        """Run a few inputs with an eye on which layers they reach, where that can be seen."""
        if side.elsewhere:
            return
        with self.pair.observed():
            side.encode(np.arange(min(PROBE, len(side.ids))), self.settings.batch_size)

    def calibrate(self, draw: Callable[[QuantizedPair], Sample]) -> None:
        """Calibrate the candidate, where it needs that.

        Args:
            draw: what it is calibrated on.
        """
        if not self.pair.needs_calibration:
            return
        assert isinstance(self.pair, QuantizedPair)  # no other candidate is made here
        start = time.perf_counter()
        sample = draw(self.pair)
        self.pair.prepare(sample, root=self.store.root, progress=self.progress)
        self.seconds["calibration"] = round(time.perf_counter() - start, 3)

    def vectors(self, side: Inputs, arm: str, weights: str, what: str | None = None) -> Vectors:
        """All embeddings of one side by the arm that is in place.

        Args:
            side: the inputs.
            arm: "reference" or "candidate", for what is shown.
            weights: digest of that arm's weights.
            what: the stage is called, its role if not given.

        Raises:
            ScoreError: an embedding is not finite.
            RunError: no space to keep embeddings.
        """
        name = f"{arm}: {what or f'{side.role} embeddings'}"
        with self.stage(name, name, len(side.ids)) as tell:
            vectors = self.encoded(side, side.order(), weights, self.settings.batch_size, tell)
            check_embeddings(vectors, arm=arm, what=side.role, ids=side.ids)
        share = 0.0 if name.endswith("logits") else same_share(vectors)
        if share >= MANY and len(vectors) >= FEW:
            self.notes.append(
                f"{arm}: {100 * share:.0f} % of the {what or f'{side.role} embeddings'} are the "
                "very same as another's; either inputs are there twice, or the model does not tell "
                "them apart (its tokenizer may be another model's)"
            )
        return vectors

    def encoded(
        self, side: Inputs, order: NDArray[np.int64], weights: str, batch_size: int, tell: Callable[[int], None]
    ) -> Vectors:
        """All embeddings of one side, put through in an order, from the store where they are."""
        store = self.store if side.key is not None else EmbeddingStore(None)
        return store.get(
            self.key(side, order, weights, batch_size),
            order=order,
            encode=lambda rows: side.encode(rows, batch_size),
            progress=tell,
            chunk=CHUNK_ELSEWHERE if side.elsewhere else None,
        )

    def key(self, side: Inputs, order: NDArray[np.int64], weights: str, batch_size: int) -> str:
        """What the embeddings of one side are kept under: a digest of all that decides them."""
        return key_of(
            weights=weights,
            inputs=side.key,
            role=side.role,
            batch_size=None if side.elsewhere else batch_size,
            order=digest_of(order),
            runtime=None if side.elsewhere else self.pair.runtime,
        )


def same_share(vectors: Vectors) -> float:
    """The share of embeddings that are the very same as one before them, 0 to 1.

    >>> same_share(np.array([[1, 0], [0, 1], [1, 0], [1, 0]], dtype=np.float32))
    0.5

    Args:
        vectors: float32 [n, dim]; of many a part is looked at.
    """
    some = np.asarray(vectors[:: -(-len(vectors) // LOOKED_AT)])
    rounded = np.rint(some / (np.abs(some).max(initial=0) or 1) * SAME)
    return 1 - len({row.tobytes() for row in rounded.astype(np.int16)}) / len(some)


# --- noise ----------------------------------------------------------------------------------------

_BLOCK = 512


def other_batch_size(batch_size: int) -> int:
    """A batch size that pads and blocks differently: about half, and odd.

    >>> other_batch_size(32), other_batch_size(1)
    (17, 3)
    """
    return batch_size // 2 + 1 if batch_size > 1 and batch_size % 4 == 0 else batch_size + 2


def compare_rankings(
    first: tuple[Vectors, Vectors],
    second: tuple[Vectors, Vectors],
    contenders: NDArray[np.int64],
    similarity: Similarity,
) -> Noise:
    """Whether the best of the contenders is the same in two runs of one model.

    Scores are taken in float64: what is compared is the model's noise, not that of scoring.

    Args:
        first: query embeddings [n_queries, dim] and document embeddings [n_docs, dim].
        second: the same inputs, embedded again.
        contenders: int64 [n_queries, depth], rows of the document embeddings in order of rank, -1
            where there are fewer.
        similarity: how embeddings are compared.

    Returns:
        The noise floor of every query.
    """
    n_queries = len(contenders)
    flips = np.zeros(n_queries, dtype=np.bool_)
    epsilon = np.zeros(n_queries, dtype=np.float32)
    for at in range(0, n_queries, _BLOCK):
        rows = slice(at, at + _BLOCK)
        ranks = contenders[rows]
        once, again = (
            _scores(queries[rows], documents[ranks.clip(min=0)], similarity) for queries, documents in (first, second)
        )
        part = noise_of_scores(once, again, ranks)
        flips[rows], epsilon[rows] = part.flips, part.epsilon
    return Noise(flips=flips, epsilon=epsilon)


def noise_of_scores(once: NDArray[np.float64], again: NDArray[np.float64], contenders: NDArray[np.int64]) -> Noise:
    """Whether the best of the contenders is the same by the scores of two runs of one model.

    Args:
        once: float64 [n_queries, depth], scores of the contenders.
        again: float64 [n_queries, depth], of the second run.
        contenders: int64 [n_queries, depth], their positions in the corpus, -1 where there are
            fewer; what is scored there does not count.

    Returns:
        The noise floor of every query.
    """
    missing = contenders < 0
    best = [_best(np.where(missing, -np.inf, scores), contenders) for scores in (once, again)]
    epsilon = np.where(missing, 0, np.abs(again - once)).max(axis=1)
    return Noise(flips=best[0] != best[1], epsilon=epsilon.astype(np.float32))


def _best(scores: NDArray[np.float64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of equal scores the lower position wins, as in the ranking itself."""
    top = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(np.where(top, ranks, np.iinfo(np.int64).max).min(axis=1))


def _scores(queries: Vectors, documents: Vectors, similarity: Similarity) -> NDArray[np.float64]:
    """float64 [n, depth] of queries [n, dim] and their own documents [n, depth, dim]."""
    left, right = queries.astype(np.float64), documents.astype(np.float64)
    if similarity is Similarity.EUCLIDEAN:
        return np.asarray(-np.linalg.norm(left[:, None, :] - right, axis=2))
    if similarity is Similarity.COSINE:
        left = left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-30)
        right = right / np.maximum(np.linalg.norm(right, axis=2, keepdims=True), 1e-30)
    return np.asarray(np.einsum("nd,nkd->nk", left, right))


# --- The steps of a measurement: both sides by both arms, their scores, the noise floor -----------

NOISE_DEPTH = 10
"""Ranks of the reference that are embedded again: numeric noise swaps neighbours, not strangers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The embeddings of a pair.

    Attributes:
        reference: of the queries [n_queries, dim] and the documents [n_docs, dim].
        candidate: likewise; with a `+query` scheme its documents are the reference's own object.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
    """

    reference: tuple[Any, Any]
    candidate: tuple[Any, Any]
    fingerprint: str
    candidate_fingerprint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Encoding):
    """The steps of a measurement, for whoever puts them together in another way.

    Attributes:
        pair: the model; in the reference arm between steps.
        queries: what is searched for.
        documents: what is searched.
        similarity: how embeddings become scores.
        settings: how.
        store: where embeddings are kept, and layers that were calibrated.
        progress: where progress is shown.
        calibration: what the candidate is calibrated on, where it needs that; the documents if not
            given.
        excluded: per query one document position that does not count, or -1.
        dataset: name of the data, where it has one.
        seconds: time per stage so far.
    """

    queries: Inputs
    documents: Inputs
    similarity: Similarity
    calibration: Inputs | None = None
    excluded: NDArray[np.int64] | None = None
    dataset: str | None = None

    def embed(self) -> Arms:
        """Both sides by both arms.

        Raises:
            DataError: there are no queries or no documents.
            ScoreError: an embedding is not finite.
            RunError: no space to keep embeddings.
        """
        (queries, documents), fingerprint = self.embed_reference()
        self._choose_widths(queries, documents)
        self._prepare()
        with self.pair.candidate():
            weights = self.pair.candidate_fingerprint()
            low_queries = self.vectors(self.queries.of_candidate, "candidate", weights)
            low_documents = documents
            if not self.pair.query_only:
                low_documents = self.vectors(self.documents.of_candidate, "candidate", weights)
        return Arms(
            reference=(queries, documents),
            candidate=(low_queries, low_documents),
            fingerprint=fingerprint,
            candidate_fingerprint=weights,
        )

    def embed_reference(self) -> tuple[tuple[Vectors, Vectors], str]:
        """Queries and documents by the reference, and the digest of its weights.

        Raises:
            As `embed`.
        """
        sides = (self.queries, self.documents)
        if not all(len(side.ids) for side in sides):
            raise DataError(
                f"nothing to rank: {len(sides[0].ids)} queries and {len(sides[1].ids)} documents; "
                "expected at least one of each"
            )
        fingerprint = self.pair.fingerprint
        for side in sides:
            self.watch(side)
        queries, documents = (self.vectors(side, "reference", fingerprint) for side in sides)
        return (queries, documents), fingerprint

    def _choose_widths(self, queries: Vectors, documents: Vectors) -> None:
        """Give the candidate's layers their widths, where a criterion chooses them."""
        if not (isinstance(self.pair, QuantizedPair) and self.pair.needs_widths):
            return
        start = time.perf_counter()
        allocation = allocate_for_search(self, (queries, documents)).allocation
        widths = allocation.width_of
        chosen = [widths[layer.name] for layer in self.pair.layers]
        self.pair.choose(chosen, by=allocation, for_all_data=False)
        self.seconds["allocation"] = round(time.perf_counter() - start, 3)

    def _prepare(self) -> None:
        inputs = self.documents if self.calibration is None else self.calibration
        self.calibrate(lambda pair: draw_sample(inputs, pair.scheme, self.settings.batch_size))

    def score(self, arms: Arms, *, tell: Callable[[int], None]) -> ScoreState:
        """The state of all queries against the documents that the arms hold.

        Raises:
            ScoreError: a score is not finite.
        """
        (queries, documents), (low_queries, low_documents) = arms.reference, arms.candidate
        return score_embeddings(
            queries,
            low_queries,
            documents,
            low_documents,
            similarity=self.similarity,
            k=self.settings.k,
            excluded=self.excluded,
            device=self.pair.device if self.pair.device.type == "cuda" else "cpu",
            progress=tell,
        )

    def noise(self, state: ScoreState, arms: Arms) -> Noise:
        """Embed again, in another order and batch size, what could be first; compare."""
        rng = np.random.default_rng(self.settings.seed)
        size = other_batch_size(self.settings.batch_size)
        contenders = state.reference_top()[0][:, :NOISE_DEPTH]
        needed = np.unique(contenders[contenders >= 0])
        rerun = [(self.queries, np.arange(len(self.queries.ids)))]
        if not self.pair.query_only:  # the index is fixed there, so it has no noise
            rerun.append((self.documents, needed))
        total = sum(len(rows) for _, rows in rerun)
        queries, documents = arms.reference
        again = []
        with self.stage("noise floor", "noise floor: first documents", total) as tell:
            for side, rows in rerun:
                order = rng.permutation(len(rows))
                again.append(self.encoded(side.part(rows), order, arms.fingerprint, size, tell))
            if len(again) == 1:
                again.append(documents[needed])
            return compare_rankings(
                (queries, documents[needed]),
                (again[0], again[1]),
                np.where(contenders >= 0, np.searchsorted(needed, contenders), -1),
                self.similarity,
            )


# --- From a score state to evidence: positions become ids, labels and noise join ------------------

Qrels = Mapping[str, Mapping[str, int]]


def assemble(
    state: ScoreState,
    *,
    input_ids: Sequence[str],
    item_ids: Sequence[str],
    qrels: Qrels | None = None,
    noise: Noise | None = None,
    depth: int | None = None,
) -> Evidence:
    """Make evidence of a state.

    Args:
        state: scores of every input against every item.
        input_ids: names of the state's rows.
        item_ids: names of all items, by position.
        qrels: input id to item id to grade; inputs without an entry have no judgement. Judged items
            outside the corpus are kept: they count in the ideal ranking.
        noise: the noise floor, where it was measured.
        depth: how many ranks to keep, all of the state's if not given.

    Returns:
        The evidence, holding only the names of items that occur in it.
    """
    reference, candidate = state.reference_top(), state.candidate_top()
    # at least one, empty where nothing was scored (a lone document that is the query itself)
    n_ranks = max(1, min(depth or reference[0].shape[1], int(state.n_items.max())))
    tops = [tuple(part[:, :n_ranks] for part in top) for top in (reference, candidate)]
    occurring = np.unique(np.concatenate([top[0].ravel() for top in tops]))
    occurring = occurring[occurring >= 0]
    names = [item_ids[position] for position in occurring.tolist()]
    judgements = None
    if qrels:
        judgements = Judgements.from_qrels(qrels, input_ids, names)
    made = [
        Top(
            items=np.where(positions >= 0, np.searchsorted(occurring, positions), -1),
            reference_scores=reference_scores,
            candidate_scores=candidate_scores,
        )
        for positions, reference_scores, candidate_scores in tops
    ]
    return Evidence(
        input_ids=np.array(list(input_ids), dtype=object),
        item_ids=np.array(names, dtype=object),
        reference_top=made[0],
        candidate_top=made[1],
        delta_min=state.delta_min.cpu().numpy(),
        delta_max=state.delta_max.cpu().numpy(),
        n_items=state.n_items.cpu().numpy(),
        judgements=judgements,
        noise=noise,
    )


def with_qrels(evidence: Evidence, qrels: Qrels) -> Evidence:
    """The same evidence with relevance labels.

    Args:
        evidence: with or without labels.
        qrels: input id to item id to grade.
    """
    input_ids = [str(name) for name in evidence.input_ids]
    names = [str(name) for name in evidence.item_ids]
    judgements = Judgements.from_qrels(qrels, input_ids, names)
    return replace(evidence, item_ids=np.array(names, dtype=object), judgements=judgements)


# --- The job itself: embed with both arms, score, and measure the noise floor ---------------------


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a measurement gave.

    Attributes:
        evidence: the per-input record, without inputs that layers were measured on.
        state: the scores it came from, of all inputs, k ranks deep.
        seconds: time per stage.
        notes: what deserves a word of the embeddings, one sentence each.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        left_out: number of inputs that layers were measured on.
    """

    evidence: Evidence
    state: ScoreState
    fingerprint: str
    candidate_fingerprint: str | None = None
    left_out: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure_retrieval(
    pair: Pair,
    queries: Inputs,
    documents: Inputs,
    *,
    similarity: Similarity,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    qrels: Qrels | None = None,
    excluded: NDArray[np.int64] | None = None,
    depth: int | None = None,
    calibration: Inputs | None = None,
    dataset: str | None = None,
) -> Measured:
    """Measure what the pair's scheme does to the ranking of every query.

    Args:
        pair: the model; in the reference arm, and left so.
        queries: what is searched for.
        documents: what is searched. With a `+query` scheme they are embedded by the reference only.
        similarity: how embeddings become scores.
        settings: how.
        store: where embeddings are kept.
        progress: where progress is shown.
        qrels: relevance labels.
        excluded: per query one document position that does not count, or -1.
        depth: ranks to keep in the evidence, `settings.k` if not given.
        calibration: what the candidate is calibrated on, where it needs that; the documents if not
            given.
        dataset: name of the data, for what is stored of it.

    Raises:
        DataError: there are no queries or no documents, or all queries are those that a stored
            allocation was measured on.
        ScoreError: an embedding is not finite.
        RunError: no space to keep embeddings.
    """
    if isinstance(pair, QuantizedPair) and not pair.needs_widths:
        not_calibrated_on(pair, queries.ids, dataset)  # refuses before hours go into it
    job = Job(
        pair=pair,
        queries=queries,
        documents=documents,
        similarity=similarity,
        settings=settings,
        store=store,
        progress=progress,
        calibration=calibration,
        excluded=excluded,
        dataset=dataset,
    )
    arms = job.embed()
    with job.stage("scoring", "scoring both arms", len(documents.ids)) as tell:
        state = job.score(arms, tell=tell)
    evidence = assemble(
        state,
        input_ids=queries.ids,
        item_ids=documents.ids,
        qrels=qrels,
        noise=job.noise(state, arms) if settings.noise_floor else None,
        depth=depth,
    )
    rest = not_calibrated_on(pair, queries.ids, dataset)
    return Measured(
        evidence=evidence if len(rest) == len(queries.ids) else evidence.part(rest),
        left_out=len(queries.ids) - len(rest),
        state=state,
        fingerprint=arms.fingerprint,
        candidate_fingerprint=arms.candidate_fingerprint,
        seconds=job.seconds,
        notes=job.notes,
    )


def not_calibrated_on(pair: Pair, ids: Sequence[str], dataset: str | None = None) -> NDArray[np.int64]:
    """Positions of the queries that no layer was measured on; rates are over these.

    Which data an allocation of a file was made on is known by the name of the data, else by those
    of its inputs: if all of them are here, these are left out.

    Args:
        pair: with its widths.
        ids: of all queries.
        dataset: name of the data.

    Raises:
        DataError: layers were measured on every one of them.
    """
    allocation = pair.allocation if isinstance(pair, QuantizedPair) else None
    if allocation is None or not allocation.input_ids:
        return np.arange(len(ids), dtype=np.int64)
    measured = set(allocation.input_ids)
    same = dataset is not None and dataset == allocation.dataset
    if not same and not measured.issubset(ids):
        return np.arange(len(ids), dtype=np.int64)
    rows = [row for row, name in enumerate(ids) if name not in measured]
    if not rows and len(ids):
        raise DataError(
            f"the widths of {allocation.model} were chosen on these {len(ids)} queries, "
            "and rates are over others; expected more queries than the allocation was measured on"
        )
    return np.array(rows, dtype=np.int64)
