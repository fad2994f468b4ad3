"""One flow: both arms of a pair encode the inputs, and readings of that become evidence."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.display import clean
from quantdrift.base.errors import DataError, ServerError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.base.text import some
from quantdrift.candidate.pair import Pair, QuantizedPair
from quantdrift.evidence import perturbation
from quantdrift.evidence.probe import LinearProbe
from quantdrift.evidence.record import Evidence, Judgements, Noise, Top
from quantdrift.models.inputs import Inputs, Rows, Settings, Vectors, described
from quantdrift.models.server_client import OneInputError
from quantdrift.models.store import CHUNK, CHUNK_ELSEWHERE, EmbeddingStore, digest_of, key_of, store_for
from quantdrift.scoring.similarity import Similarity, check_embeddings
from quantdrift.scoring.state import ScoreState

PROBE = 2
"""Inputs that are run once with an eye on which layers they reach."""
SAMPLED = 64
"""Inputs that are always encoded again for the noise floor."""
MARGIN = 4.0
"""How much more than in the sample a score may change elsewhere."""
NOISE_DEPTH = 10
"""Ranks of the reference that are scored again: numeric noise swaps neighbours, not strangers."""
SAMPLED_DEPTH = 2
"""Ranks that are scored again to see how far a score moves: the two that a gap lies between."""
MANY = 0.1
"""Share of embeddings that are another's from which on it is said."""
FEW = 10
"""Inputs below which it is not: one that is there twice is no sign then."""
_LOOKED_AT = 10_000
"""Embeddings at most that are held against each other."""
_SAME = 1000
"""Steps of the largest number below which embeddings are the same: batches change last digits."""
_SHOWN = 60
_BLOCK = 512

Arms = Sequence[Any]
"""What one arm makes of each side of a reading."""
Qrels = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """A reading of the outputs of both arms: `Search`, `Classes` or `Shortlist`.

    Attributes:
        calibration: what the candidate is calibrated on, where it needs that; for each tower of a model there is one.
        source: of these inputs, for the record.
        qrels: relevance labels.
        dataset: name of the data, where it has one.
        depth: ranks in the evidence; as many as are kept if None.
        held_out: positions of the inputs that rates are over, which no criterion looks at; None leaves out those that
            layers were measured on.
        ids: names of what ranks.
        item_ids: names of what is ranked.
        record: how outputs were read, for run.json.
        notes: what a run says of it, one sentence each.
        counts: what a run says of the data that only the reading knows.
        probe: the linear function that read the classes, to be kept with the run.
        what: the models put out, in a word.
    """

    calibration: tuple[Inputs, ...] = ()
    source: str = "corpus"
    qrels: Qrels | None = None
    dataset: str | None = None
    depth: int | None = None
    held_out: Rows | None = None
    ids: Sequence[str] = ()
    item_ids: Sequence[str] = ()
    record: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    probe: LinearProbe | None = None
    what: str = "embeddings"

    @property
    def sides(self) -> tuple[Inputs, ...]:
        """The inputs that either arm encodes; a `+query` scheme leaves all but the first at the reference."""
        raise NotImplementedError

    @property
    def held(self) -> tuple[Inputs, ...]:
        """The sides of which all outputs are held before anything is scored."""
        return self.sides

    def shown(self, side: Inputs) -> str:
        """Say what is made of a side."""
        return f"{side.role} {self.what}"

    def ready(self, flow: "Flow") -> Self:
        """The reading with names and what else it needs, such as a probe; what would fail after hours is refused."""
        raise NotImplementedError

    def state(self, flow: "Flow", reference: Arms, candidate: Arms) -> ScoreState:
        """The scores of both arms."""
        raise NotImplementedError

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """Rows of each side that are encoded again for the noise floor of some inputs, increasing."""
        raise NotImplementedError

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """The noise floor of these inputs in their first `depth` ranks; `again` holds the rows of `rerun`."""
        raise NotImplementedError

    def evidence(self, state: ScoreState, candidate: Arms, noise: Noise | None) -> Evidence:
        """The record per input; `candidate` is what the state came from."""
        del candidate
        return assemble(
            state, input_ids=self.ids, item_ids=self.item_ids, qrels=self.qrels, noise=noise, depth=self.depth
        )


@dataclass(slots=True, kw_only=True)
class Measured:
    """The result of a measurement.

    Attributes:
        evidence: the per-input record, without inputs that layers were measured on, or could be.
        state: the scores of all inputs.
        reading: what the outputs were read as.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        left_out: number of these inputs.
        floor: how the noise floor was measured, as JSON values; None if it was not.
        seconds: time per stage.
        notes: what deserves a word of the embeddings, one sentence each.
    """

    evidence: Evidence
    state: ScoreState
    fingerprint: str
    reading: Reading = field(default_factory=Reading)
    candidate_fingerprint: str | None = None
    left_out: int = 0
    floor: Mapping[str, Any] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A pair, and how inputs go through it; `seconds` and `notes` grow with every step."""

    pair: Pair
    settings: Settings
    store: EmbeddingStore
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Keep nothing of a model with code of its own."""
        object.__setattr__(self, "store", store_for(self.store, trusted=self.settings.trust_remote_code))

    def ready(self, reading: Reading) -> Reading:
        """The reading with all that it needs; what would fail after hours is refused."""
        reading = reading.ready(self)
        if not self.pair.needs_widths:
            not_calibrated_on(self.pair, reading.ids, reading.dataset)
        return reading

    def calibrate(self, reading: Reading) -> None:
        """Make the candidate's layers on what a reading has for that, where they need it."""
        size, root = self.settings.batch_size, self.store.root
        self.pair.calibrate(reading.calibration, size, source=reading.source, root=root, progress=self.progress)

    def measure(self, reading: Reading, reference: Arms, fingerprint: str) -> Measured:
        """The candidate, whose widths are chosen, encodes; and a reading, which is ready, reads both arms.

        `fingerprint` is the digest of the reference's weights, which takes seconds of a large model.
        """
        pair = self.pair
        with self.timed("calibration", pair.needs_calibration):
            self.calibrate(reading)
        with pair.candidate():
            weights = pair.candidate_fingerprint()
            candidate = [
                reference[number]
                if (number and pair.query_only) or (weights == fingerprint and isinstance(pair, QuantizedPair))
                else self.vectors(side, "candidate", weights, reading.shown(side))
                for number, side in enumerate(reading.held)
            ]
        state = reading.state(self, reference, candidate)
        noise, floor = None, None
        if self.settings.noise_floor:
            noise, floor = self._noise(reading, state, reference, fingerprint)
            if pair.by_batch:
                with pair.candidate():
                    own, _ = self._noise(reading, state.exchanged(), candidate, weights)
                floor["candidate"] = {"share": float(own.flips.mean()), "largest": float(own.epsilon.max(initial=0.0))}
        evidence = reading.evidence(state, candidate, noise)
        _refuse_without_effect(pair, evidence)
        rest = not_calibrated_on(pair, reading.ids, reading.dataset)
        rest = rest if reading.held_out is None else np.intersect1d(rest, reading.held_out)
        left_out = len(reading.ids) - len(rest)
        return Measured(
            evidence=evidence.part(rest) if left_out else evidence,
            state=state,
            reading=reading,
            fingerprint=fingerprint,
            candidate_fingerprint=weights,
            left_out=left_out,
            floor=floor,
            seconds=self.seconds,
            notes=[*reading.notes, *self.notes, *state.notes],
        )

    def reference(self, reading: Reading, fingerprint: str | None = None) -> Arms:
        """Encode each side by the reference, whose weights have that digest."""
        fingerprint = fingerprint or self.pair.fingerprint
        if self.pair.runtime:  # on a server no layer can be watched
            for side in reading.sides:
                with self.pair.observed():
                    self.run(side, np.arange(min(PROBE, len(side.ids))), self.settings.batch_size)
        return [self.vectors(side, "reference", fingerprint, reading.shown(side)) for side in reading.held]

    def _noise(
        self, reading: Reading, state: ScoreState, reference: Arms, weights: str
    ) -> tuple[Noise, dict[str, Any]]:
        """Encode some inputs again, in another order and batch size, and then all whose first answer that could change.

        Of the candidate with the state exchanged, `reference` being what the candidate made.

        An input whose first two items are further apart than twice the reach keeps its first answer. The reach is
        MARGIN times the largest change of a score that the sample showed. It shows that on few items, so inputs of the
        sample are among those that are looked at closer.
        """
        rng = np.random.default_rng(self.settings.seed)
        n = len(state.reference_top()[0])
        rows = np.sort(rng.permutation(n)[:SAMPLED]).astype(np.int64)
        noise = self._again(reading, state, reference, weights, rows=rows, depth=SAMPLED_DEPTH)
        reach = MARGIN * float(noise.epsilon.max(initial=0.0))
        near = np.flatnonzero(_gaps(state) <= 2 * reach).astype(np.int64)
        flips, epsilon = np.zeros(n, dtype=np.bool_), np.full(n, noise.epsilon.max(initial=0.0), dtype=np.float32)
        flips[rows], epsilon[rows] = noise.flips, noise.epsilon
        if len(near):
            noise = self._again(reading, state, reference, weights, rows=near, depth=NOISE_DEPTH)
            flips[near], epsilon[near] = noise.flips, noise.epsilon
        largest = float(epsilon.max(initial=0.0))
        record = {"sampled": len(rows), "within_reach": len(near), "reach": reach, "largest": largest}
        return Noise(flips=flips, epsilon=epsilon), record

    def _again(
        self, reading: Reading, state: ScoreState, reference: Arms, weights: str, *, rows: Rows, depth: int
    ) -> Noise:
        """The noise of some inputs: they and their first items are encoded again."""
        rng = np.random.default_rng(self.settings.seed)
        size = other_batch_size(self.settings.batch_size)
        wanted = reading.rerun(state, rows, depth)
        # with +query the index is fixed, so it has no noise
        fixed = range(1, len(reference)) if self.pair.query_only else ()
        again = []
        n = sum(len(needed) for number, needed in enumerate(wanted) if number not in fixed)
        with self.stage("noise floor", "noise floor", n) as tell:
            for number, (side, needed) in enumerate(zip(reading.sides, wanted, strict=True)):
                if number in fixed:
                    again.append(reference[number][needed])
                else:
                    again.append(self.encoded(side.part(needed), rng.permutation(len(needed)), weights, size, tell))
        return reading.noise(state, reference, again, rows, depth)

    @contextmanager
    def stage(self, name: str, shown: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a stage of `total` steps and note under `name` how long it took."""
        with self.timed(name), self.progress.stage(shown, total) as tell:
            yield tell

    @contextmanager
    def timed(self, name: str, needed: bool = True) -> Iterator[None]:
        """Note under `name` how long it took."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if needed:
                self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 3)

    def vectors(self, side: Inputs, arm: str, weights: str, what: str) -> Any:
        """Encode one side by the arm that is in place; `weights` is its digest."""
        name, size = f"{arm}: {what}", self.settings.batch_size
        if arm == "candidate":
            size = self.pair.batch_size or size
        with self.stage(name, name, len(side.ids)) as tell:
            vectors = self.encoded(side, side.order(), weights, size, tell)
            check_embeddings(vectors, arm=arm, what=side.role, ids=side.ids)
        self.notes.extend(on_equal(arm, what, vectors) if what.endswith("embeddings") else ())
        return vectors

    def encoded(self, side: Inputs, order: Rows, weights: str, batch_size: int, tell: Callable[[int], None]) -> Any:
        """The outputs for one side, put through in an order, from the store where they are."""
        return self.store.get(
            self.key(side, order, weights, batch_size),
            order=order,
            encode=lambda rows: self.run(side, rows, batch_size),
            progress=tell,
            chunk=CHUNK if self.pair.runtime else CHUNK_ELSEWHERE,
        )

    def run(self, side: Inputs, rows: Rows, batch_size: int) -> Vectors:
        """The outputs for some rows, by the arm that is in place."""
        try:
            return self.pair.encoder.encode(side.at(rows), side.role, batch_size)
        except OneInputError as error:
            row = int(rows[error.number])
            text = " ".join(str(side.items[row]).split())
            start = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            shown = f"{len(side.items[row]):,} characters: {start!r}" if text else "an empty text"
            raise ServerError(f"{error.where}: {side.role} {side.ids[row]!r} ({shown}): {error.reason}") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # Rust's, such as a tokenizer's pattern that does not end
                raise
            raise DataError(
                f"the model's tokenizer gave up on one of {len(rows):,} inputs ({clean(str(error))}); expected a "
                "tokenizer.json that can read them. Take the input out, or name another model"
            ) from error

    def key(self, side: Inputs, order: Rows, weights: str, batch_size: int) -> str | None:
        """A digest of all that decides the outputs for one side; None if that cannot be told."""
        inputs, runtime = described(self.pair.encoder, side), self.pair.runtime or None
        if inputs is None:
            return None
        size = batch_size if runtime else None  # a server makes batches of its own
        return key_of(
            weights=weights, inputs=inputs, role=side.role, batch_size=size, order=digest_of(order), runtime=runtime
        )


def on_equal(arm: str, what: str, vectors: Vectors) -> list[str]:
    """The note on embeddings of which many are the very same; none where they are few."""
    if len(vectors) < FEW or (share := same_share(vectors)) < MANY:
        return []
    return [
        f"{arm}: {100 * share:.0f} % of the {what} are the very same as another's; either inputs are there "
        "twice, or the model does not tell them apart (its tokenizer may be another model's)"
    ]


def same_share(vectors: Vectors) -> float:
    """The share of embeddings [n, dim] that are the very same as one before them; of many a part is looked at.

    >>> same_share(np.array([[1, 0], [0, 1], [1, 0], [1, 0]], dtype=np.float32))
    0.5
    """
    some = vectors[:: -(-len(vectors) // _LOOKED_AT)]
    step = (max(float(np.abs(row).max(initial=0)) for row in some) or 1) / _SAME
    return 1 - len({np.rint(row / step).astype(np.int16).tobytes() for row in some}) / len(some)


def not_calibrated_on(pair: Pair, ids: Sequence[str], dataset: str | None = None) -> Rows:
    """Positions of the inputs that no layer was measured on; rates are over these."""
    allocation, everything = pair.allocation, np.arange(len(ids), dtype=np.int64)
    measured = set() if allocation is None else set(allocation.input_ids)
    if allocation is None or not measured:
        return everything
    same = dataset is not None and dataset == allocation.dataset
    if not same and not measured.issubset(ids):
        return everything
    rest = everything[[name not in measured for name in ids]]
    if not len(rest) and len(ids):
        raise DataError(
            f"the widths of {allocation.model} were chosen on these {len(ids)} queries, "
            "and rates are over others; expected more queries than the allocation was measured on"
        )
    return rest


def assemble(
    state: ScoreState,
    *,
    input_ids: Sequence[str],
    item_ids: Sequence[str],
    qrels: Qrels | None = None,
    noise: Noise | None = None,
    depth: int | None = None,
) -> Evidence:
    """Evidence of a state: positions become ids; labels and noise join."""
    reference, candidate = state.reference_top(), state.candidate_top()
    # at least one, empty where nothing was scored (a lone document that is the query itself)
    n_ranks = max(1, min(depth or reference[0].shape[1], int(state.n_items.max())))
    # a search of an approximate index tells what exhaustive search would have given
    given = [reference, candidate, *([] if state.exact is None else [state.exact.candidate_top()])]
    tops = [tuple(part[:, :n_ranks] for part in top) for top in given]
    occurring = np.unique(np.concatenate([top[0].ravel() for top in tops]))
    occurring = occurring[occurring >= 0]
    names = [item_ids[position] for position in occurring.tolist()]
    judgements = Judgements.from_qrels(qrels, input_ids, names) if qrels else None  # it may add names
    first, second, *third = (
        Top(
            items=np.where(positions >= 0, np.searchsorted(occurring, positions), -1),
            reference_scores=reference_scores,
            candidate_scores=candidate_scores,
        )
        for positions, reference_scores, candidate_scores in tops
    )
    return Evidence(
        input_ids=np.array(list(input_ids), dtype=object),
        item_ids=np.array(names, dtype=object),
        reference_top=first,
        candidate_top=second,
        delta_min=state.delta_min.cpu().numpy(),
        delta_max=state.delta_max.cpu().numpy(),
        n_items=state.n_items.cpu().numpy(),
        judgements=judgements,
        noise=noise,
        exhaustive_top=third[0] if third else None,
        deltas="listed" if state.listed else "all",
    )


def with_qrels(evidence: Evidence, qrels: Qrels) -> Evidence:
    """Add relevance labels to evidence."""
    names = [str(name) for name in evidence.item_ids]
    judgements = Judgements.from_qrels(qrels, [str(name) for name in evidence.input_ids], names)
    return replace(evidence, item_ids=np.array(names, dtype=object), judgements=judgements)


# --- The noise floor ------------------------------------------------------------------------------


def _gaps(state: ScoreState) -> NDArray[np.float64]:
    """The distance of the reference's first two items, float64 [n_inputs]; infinitely where there is one."""
    positions, scores = state.reference_top()[:2]
    apart = np.full(len(positions), np.inf)
    if positions.shape[1] > 1:
        two = positions[:, 1] >= 0
        apart[two] = scores[two, 0].astype(np.float64) - scores[two, 1]
    return apart


def _refuse_without_effect(pair: Pair, evidence: Evidence) -> None:
    """Refuse a candidate that is the reference: no output depends on a layer that is quantized."""
    if isinstance(pair, QuantizedPair) and pair.layers and not perturbation.epsilon(evidence).any():
        names = pair.never_reached
        if len(names) == len(pair.layers):
            raise UnsupportedError(
                f"no output of {pair.name} depends on what {pair.scheme} quantizes ({some(names)}), so no change "
                "would be measured; expected a model whose outputs are made by linear layers, not by convolutions alone"
            )


def other_batch_size(batch_size: int) -> int:
    """A batch size that pads and blocks differently: about half, and odd. Text by text stays that: it is what is asked.

    >>> other_batch_size(32), other_batch_size(1)
    (17, 1)
    """
    if batch_size == 1:
        return 1
    return batch_size // 2 + 1 if batch_size % 4 == 0 else batch_size + 2


def compare_rankings(
    first: tuple[Vectors, Vectors], second: tuple[Vectors, Vectors], contenders: Rows, similarity: Similarity
) -> Noise:
    """Whether the best of the contenders is the same in two runs of one model.

    Scores are taken in float64: what is compared is the model's noise, not that of scoring.
    """
    n_queries = len(contenders)
    flips = np.zeros(n_queries, dtype=np.bool_)
    epsilon = np.zeros(n_queries, dtype=np.float32)
    for at in range(0, n_queries, _BLOCK):
        rows = slice(at, at + _BLOCK)
        ranks = contenders[rows]
        once, again = (
            scores_of(queries[rows], documents[ranks.clip(min=0)], similarity) for queries, documents in (first, second)
        )
        part = noise_of_scores(once, again, ranks)
        flips[rows], epsilon[rows] = part.flips, part.epsilon
    return Noise(flips=flips, epsilon=epsilon)


def noise_of_scores(once: NDArray[np.float64], again: NDArray[np.float64], contenders: Rows) -> Noise:
    """The noise floor of two runs' scores of contenders, all [n_queries, depth]; positions are -1 where none is."""
    missing = contenders < 0
    best = [_best(np.where(missing, -np.inf, scores), contenders) for scores in (once, again)]
    epsilon = np.where(missing, 0, np.abs(again - once)).max(axis=1)
    return Noise(flips=best[0] != best[1], epsilon=epsilon.astype(np.float32))


def _best(scores: NDArray[np.float64], ranks: Rows) -> Rows:
    """Position of the best contender; of equal scores the lower position wins, as in the ranking itself."""
    top = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(np.where(top, ranks, np.iinfo(np.int64).max).min(axis=1))


def scores_of(queries: Vectors, documents: Vectors, similarity: Similarity) -> NDArray[np.float64]:
    """float64 [n, depth] of queries [n, dim] and their own documents [n, depth, dim]."""
    left, right = queries.astype(np.float64), documents.astype(np.float64)
    if similarity is Similarity.EUCLIDEAN:
        return np.asarray(-np.linalg.norm(left[:, None, :] - right, axis=2))
    if similarity is Similarity.COSINE:
        left = left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-30)
        right = right / np.maximum(np.linalg.norm(right, axis=2, keepdims=True), 1e-30)
    return np.asarray(np.einsum("nd,nkd->nk", left, right))
