"""The flow of a measurement: both arms of a pair encode the inputs, and a reading turns the outputs into evidence."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.display import clean
from quantdrift.base.errors import DataError, ServerError, UnsupportedError
from quantdrift.base.progress import Progress, Silent, timed
from quantdrift.base.text import some
from quantdrift.candidate.pair import Pair, QuantizedPair
from quantdrift.evidence import perturbation
from quantdrift.evidence.probe import LinearProbe
from quantdrift.evidence.record import Evidence, Judgements, Noise, Top
from quantdrift.models.inputs import SAMPLED, Encoder, Inputs, Rows, Settings, Vectors, described
from quantdrift.models.model import EmbeddingModel, LoadedModel
from quantdrift.models.server_client import OneInputError
from quantdrift.models.store import CHUNK, CHUNK_ELSEWHERE, EmbeddingStore, digest_of, key_of, store_for
from quantdrift.models.weights import give_back
from quantdrift.scoring.ragged import joined
from quantdrift.scoring.similarity import Similarity, check_embeddings
from quantdrift.scoring.state import ScoreState

PROBE = 2
"""Inputs that are run once to see which layers they reach."""
MARGIN = 4.0
"""Factor by which a score may change more elsewhere than in the sample."""
NOISE_DEPTH = 10
"""Ranks of the reference that are scored again, as numeric noise only swaps neighbours."""
SAMPLED_DEPTH = 2
"""Ranks that are scored again in the sample, to see how far scores move: the two items of a gap."""
FIRST_LOOK = 16
"""Inputs that are answered before one looks whether they are enough, and at first between two looks."""
GROWTH = 4
"""Later there is a look after each further one in so many."""
DUPLICATE_SHARE = 0.1
"""Duplicate share of embeddings at which a run warns."""
FEW = 10
"""Number of inputs below which it does not warn, as a duplicate input then means nothing."""
_COMPARED = 10_000
"""Most embeddings that are compared with each other."""
_STEPS = 1000
"""Embeddings are duplicates if they agree after rounding to this fraction of the largest number, as batches change last
digits."""
_COUNTED = 1000
"""Most texts of a side whose tokens are counted."""
_SPECIAL = 8
"""Special tokens that a tokenizer adds at most."""
_SHOWN = 60
_BLOCK = 512

Arms = Sequence[Any]
"""The outputs of one arm for each side of a reading."""
Qrels = Mapping[str, Mapping[str, int]]
Enough = Callable[[Evidence], bool]
"""Says whether the inputs that were answered are enough, by their evidence, in the order of the answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """The way to read the outputs of both arms: `Search`, `Classes` or `Shortlist`.

    Attributes:
        calibration: inputs to calibrate the candidate on, one set for each tower of a model.
        source: the source of these inputs, for the record.
        qrels: relevance labels.
        dataset: name of the data, if it has one.
        depth: number of ranks in the evidence; all that are kept if None.
        held_out: positions of the inputs that rates are over, which no criterion uses; None leaves out those that
            layers were measured on.
        ids: names of the inputs.
        item_ids: names of the items that inputs rank.
        record: the reading, for run.json.
        notes: sentences about the reading for the output of a run.
        counts: sizes of the data that only the reading knows.
        enough: stops the measurement before its last input; None measures all.
        probe: the linear probe that read the classes, to be kept with the run.
        what: the outputs of the models, in a word.
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
    enough: Enough | None = None
    probe: LinearProbe | None = None
    what: str = "embeddings"

    @property
    def sides(self) -> tuple[Inputs, ...]:
        """The inputs that both arms encode; with `+query`, all but the first stay at the reference."""
        raise NotImplementedError

    @property
    def held(self) -> tuple[Inputs, ...]:
        """The sides that are encoded completely before anything is scored."""
        return self.sides

    def shown(self, side: Inputs) -> str:
        """Return a name for the outputs of a side."""
        return f"{side.role} {self.what}"

    def ready(self, flow: "Flow") -> Self:
        """Return the reading with names and all it needs, such as a probe; refuse early what would fail after hours."""
        raise NotImplementedError

    def of_inputs(self, rows: Rows) -> Self:
        """Return a reading that is ready with some of its inputs alone, in the order given."""
        raise NotImplementedError

    def state(self, flow: "Flow", reference: Arms, candidate: Arms) -> ScoreState:
        """Score the outputs of both arms."""
        raise NotImplementedError

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """Return the rows of each side to encode again for the noise floor of some inputs, increasing."""
        raise NotImplementedError

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Compute the noise floor of these inputs in their first `depth` ranks; `again` has the rows of `rerun`."""
        raise NotImplementedError

    def evidence(self, state: ScoreState, candidate: Arms, noise: Noise | None) -> Evidence:
        """Return the record per input; `candidate` are the outputs that the state came from."""
        return assemble(
            state, input_ids=self.ids, item_ids=self.item_ids, qrels=self.qrels, noise=noise, depth=self.depth
        )


@dataclass(slots=True, kw_only=True)
class Measured:
    """The result of a measurement.

    Attributes:
        evidence: the record per input, without the inputs that layers were measured on, or could be.
        state: the scores of all inputs.
        reading: the reading of the outputs.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not computed.
        left_out: number of inputs left out of the evidence.
        drawn_from: number of inputs from which these were drawn until they were enough; None if none was spared.
        floor: the measurement of the noise floor, as JSON values; None if there was none.
        seconds: time per stage.
        notes: sentences about the embeddings for the output of a run.
    """

    evidence: Evidence
    state: ScoreState
    fingerprint: str
    reading: Reading = field(default_factory=Reading)
    candidate_fingerprint: str | None = None
    left_out: int = 0
    drawn_from: int | None = None
    floor: Mapping[str, Any] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A pair and the steps of measuring it; `seconds` and `notes` grow with every step."""

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
        """Return the reading with all that it needs; refuse early what would fail after hours."""
        reading = reading.ready(self)
        if not self.pair.needs_widths:
            not_calibrated_on(self.pair, reading.ids, reading.dataset)
        return reading

    def calibrate(self, reading: Reading) -> None:
        """Calibrate the candidate's layers on the reading's calibration inputs, if they need it."""
        pair, size, root = self.pair, self.settings.batch_size, self.store.root
        with timed(self.seconds, "calibration") if pair.needs_calibration else nullcontext():
            pair.calibrate(reading.calibration, size, source=reading.source, root=root, progress=self.progress)

    def measure(self, reading: Reading, reference: Arms, fingerprint: str) -> Measured:
        """Encode by the candidate, whose widths are chosen, and read both arms by a reading that is ready.

        `fingerprint` is the digest of the reference's weights, which takes seconds to compute for a large model.
        """
        pair = self.pair
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
        return self._read(reading, state, (reference, candidate), (fingerprint, weights))

    def measure_until(self, reading: Reading, fingerprint: str, enough: Enough) -> Measured:
        """Measure inputs in a random order, some at a time, until they are enough.

        Inputs are the first side of a reading that is ready; the other sides are encoded before. Each look scores all
        inputs that were answered, so that what it sees is the evidence of the run. The store keeps each batch.
        """
        pair, quiet, n = self.pair, replace(self, progress=Silent(), notes=[]), 0
        order = np.random.default_rng(self.settings.seed).permutation(_rows_of_rates(pair, reading))
        everything, reading = len(reading.ids), replace(reading, held_out=None)
        self._watch(reading.of_inputs(order[:PROBE]))
        self.calibrate(reading)
        shown = [reading.shown(side) for side in reading.held]
        others = list(zip(reading.held, shown, strict=True))[1:]
        index = [self.vectors(side, "reference", fingerprint, what) for side, what in others]
        with pair.candidate():
            weights = pair.candidate_fingerprint()
            same = weights == fingerprint and isinstance(pair, QuantizedPair)
            own = [] if same or pair.query_only else others
            index_again = [self.vectors(side, "candidate", weights, what) for side, what in own] or index
        once, again = list[Any](), list[Any]()
        with self.progress.stage("inputs until they are enough", len(order)) as tell:
            while True:
                batch = reading.of_inputs(order[n:][: max(FIRST_LOOK, n // GROWTH)])
                once.append(quiet.vectors(batch.held[0], "reference", fingerprint, shown[0]))
                with pair.candidate():
                    again.append(once[-1] if same else quiet.vectors(batch.held[0], "candidate", weights, shown[0]))
                tell(len(batch.ids))
                n += len(batch.ids)
                part = reading.of_inputs(order[:n])
                arms = [joined(once), *index], [joined(again), *index_again]
                state = part.state(quiet, *arms)
                if n == len(order) or enough(part.evidence(state, arms[1], None)):
                    break
        for arm, outputs in zip(("reference", "candidate"), arms, strict=True):
            self.notes.extend(on_equal(arm, shown[0], outputs[0]))
        measured = self._read(part, state, arms, (fingerprint, weights))
        measured.left_out, measured.drawn_from = everything - len(order), len(order) if n < len(order) else None
        return measured

    def _read(self, reading: Reading, state: ScoreState, arms: tuple[Arms, Arms], weights: tuple[str, str]) -> Measured:
        """Measure the noise floor and make evidence; `weights` are the digests of both arms."""
        pair, (reference, candidate), fingerprint = self.pair, arms, weights[0]
        noise, floor = None, None
        if self.settings.noise_floor:
            noise, floor = self._noise(reading, state, reference, fingerprint)
            if pair.by_batch:
                with pair.candidate():
                    own, _ = self._noise(reading, state.exchanged(), candidate, weights[1])
                floor["candidate"] = {"share": float(own.flips.mean()), "largest": float(own.epsilon.max(initial=0.0))}
        evidence = reading.evidence(state, candidate, noise)
        _refuse_without_effect(pair, evidence)
        rest = _rows_of_rates(pair, reading)
        left_out = len(reading.ids) - len(rest)
        return Measured(
            evidence=evidence.part(rest) if left_out else evidence,
            state=state,
            reading=reading,
            fingerprint=fingerprint,
            candidate_fingerprint=weights[1],
            left_out=left_out,
            floor=floor,
            seconds=self.seconds,
            notes=[*reading.notes, *self.notes, *state.notes],
        )

    def reference(self, reading: Reading, fingerprint: str | None = None) -> Arms:
        """Encode each side by the reference; `fingerprint` is the digest of its weights."""
        fingerprint = fingerprint or self.pair.fingerprint
        self._watch(reading)
        return [self.vectors(side, "reference", fingerprint, reading.shown(side)) for side in reading.held]

    def _watch(self, reading: Reading) -> None:
        """See which layers the first inputs of each side reach; on a server no layer can be watched."""
        for side in reading.sides if self.pair.runtime else ():
            with self.pair.observed():
                self.run(side, np.arange(min(PROBE, len(side.ids))), self.settings.batch_size)

    def _noise(
        self, reading: Reading, state: ScoreState, reference: Arms, weights: str
    ) -> tuple[Noise, dict[str, Any]]:
        """Measure the noise floor: encode a sample again, in other order and batch size, then all inputs within reach.

        The reach is MARGIN times the largest change of a score in the sample. An input whose first two items are
        further apart than twice the reach keeps its first answer. Inputs of the sample can be within reach, too, and
        are then scored again to more ranks. For the candidate's own noise, pass the exchanged state and the candidate's
        outputs.
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
        """Encode some inputs and their first items again, and compute their noise."""
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
        """Show a stage of `total` steps and record its time under `name`."""
        with timed(self.seconds, name), self.progress.stage(shown, total) as tell:
            yield tell

    def vectors(self, side: Inputs, arm: str, weights: str, what: str) -> Any:
        """Encode one side by the arm that is in place, whose weights have the digest `weights`."""
        name, size = f"{arm}: {what}", self.settings.batch_size
        if arm == "candidate":
            size = self.pair.batch_size or size
        with self.stage(name, name, len(side.ids)) as tell:
            vectors = self.encoded(side, side.order(), weights, size, tell)
            check_embeddings(vectors, arm=arm, what=side.role, ids=side.ids)
        self.notes.extend(on_equal(arm, what, vectors))
        if arm == "reference":
            self.notes.extend(on_length(self.pair.encoder, side))
        return vectors

    def encoded(self, side: Inputs, order: Rows, weights: str, batch_size: int, tell: Callable[[int], None]) -> Any:
        """Return the outputs for one side, encoded in an order, or from the store."""
        return self.store.get(
            self.key(side, order, weights, batch_size),
            order=order,
            encode=lambda rows: self.run(side, rows, batch_size),
            progress=tell,
            chunk=CHUNK if self.pair.runtime else CHUNK_ELSEWHERE,
        )

    def run(self, side: Inputs, rows: Rows, batch_size: int) -> Vectors:
        """Run the arm that is in place on some rows of a side; what was freed before does not count on top of it."""
        give_back()
        try:
            return self.pair.encoder.encode(side.at(rows), side.role, batch_size)
        except OneInputError as error:
            row = int(rows[error.number])
            text = " ".join(str(side.items[row]).split())
            start = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            shown = f"{len(side.items[row]):,} characters: {start!r}" if text else "an empty text"
            raise ServerError(f"{error.where}: {side.role} {side.ids[row]!r} ({shown}): {error.reason}") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, such as a tokenizer's pattern without end
                raise
            raise DataError(
                f"the model's tokenizer gave up on one of {len(rows):,} inputs ({clean(str(error))}); expected a "
                "tokenizer.json that can read them. Take the input out, or name another model"
            ) from error

    def key(self, side: Inputs, order: Rows, weights: str, batch_size: int) -> str | None:
        """Return a digest of all that decides the outputs for one side; None if unknown."""
        inputs, runtime = described(self.pair.encoder, side), self.pair.runtime or None
        if inputs is None:
            return None
        size = batch_size if runtime else None  # a server forms its own batches
        return key_of(
            weights=weights, inputs=inputs, role=side.role, batch_size=size, order=digest_of(order), runtime=runtime
        )


def on_equal(arm: str, what: str, vectors: Vectors) -> list[str]:
    """Return a note if many embeddings are duplicates."""
    if not what.endswith("embeddings") or len(vectors) < FEW or (share := same_share(vectors)) < DUPLICATE_SHARE:
        return []
    return [
        f"{arm}: {100 * share:.0f} % of the {what} are duplicates of others; either inputs occur twice, "
        "or the model does not tell them apart (its tokenizer may be another model's)"
    ]


def on_length(encoder: Encoder, side: Inputs) -> list[str]:
    """Return a note if the model does not read all of some texts; of many, only a part is counted."""
    limit = encoder.limit() if isinstance(encoder, LoadedModel) else None
    if limit is None or not len(side.ids):
        return []
    rows = np.unique(np.linspace(0, len(side.ids) - 1, _COUNTED).astype(np.int64))
    texts = [text for text in side.at(rows) if isinstance(text, str)]
    (tokenizer, most), before = limit, encoder.prompt(side.role) if isinstance(encoder, EmbeddingModel) else ""
    # a token is at least a byte, and special tokens are few
    near = [before + text for text in texts if len((before + text).encode()) + _SPECIAL > most]
    tokens = tokenizer(near, truncation=False, padding=False, verbose=False)["input_ids"] if near else []
    if not (longer := sum(len(of_text) > most for of_text in tokens)):
        return []
    plural = "queries" if side.role == "query" else f"{side.role}s"
    share = f"{longer:,} of {len(texts):,} {plural}" + (" that were counted" if len(texts) < len(side.ids) else "")
    return [f"{share} are longer than the {most:,} tokens that the model reads; it does not see the rest of them"]


def same_share(vectors: Vectors) -> float:
    """Return the share of embeddings [n, dim] that equal an earlier one; of many, only a part is compared.

    >>> same_share(np.array([[1, 0], [0, 1], [1, 0], [1, 0]], dtype=np.float32))
    0.5
    """
    some = vectors[:: -(-len(vectors) // _COMPARED)]
    step = (max(float(np.abs(row).max(initial=0)) for row in some) or 1) / _STEPS
    return 1 - len({np.rint(row / step).astype(np.int16).tobytes() for row in some}) / len(some)


def not_calibrated_on(pair: Pair, ids: Sequence[str], dataset: str | None = None) -> Rows:
    """Return the positions of the inputs that no layer was measured on; rates are over these."""
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


def _rows_of_rates(pair: Pair, reading: Reading) -> Rows:
    """Return the positions of the inputs that rates are over."""
    rest = not_calibrated_on(pair, reading.ids, reading.dataset)
    return rest if reading.held_out is None else np.intersect1d(rest, reading.held_out)


def assemble(
    state: ScoreState,
    *,
    input_ids: Sequence[str],
    item_ids: Sequence[str],
    qrels: Qrels | None = None,
    noise: Noise | None = None,
    depth: int | None = None,
) -> Evidence:
    """Make evidence of a state: ids replace positions, and labels and noise are added."""
    reference, candidate = state.reference_top(), state.candidate_top()
    # at least one, which is empty if nothing was scored (a lone document that is the query itself)
    n_ranks = max(1, min(depth or reference[0].shape[1], int(state.n_items.max())))
    # for an approximate index, also the ranking by exhaustive search
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
    """Return the score gap of the reference's first two items, float64 [n_inputs]; infinite if there is one item."""
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
    """Return a batch size that pads and blocks differently: odd, about half. A batch size of 1 stays, as it is meant.

    >>> other_batch_size(32), other_batch_size(1)
    (17, 1)
    """
    if batch_size == 1:
        return 1
    return batch_size // 2 + 1 if batch_size % 4 == 0 else batch_size + 2


def compare_rankings(
    first: tuple[Vectors, Vectors], second: tuple[Vectors, Vectors], contenders: Rows, similarity: Similarity
) -> Noise:
    """Compute the noise between two runs of one model: whether the best contender changes, and the change of scores.

    Scores are in float64, so that only noise of the model counts, not noise of scoring.
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
    """Compute the noise between two runs' scores of contenders, all [n_queries, depth]; a position of -1 is empty."""
    missing = contenders < 0
    best = [_best(np.where(missing, -np.inf, scores), contenders) for scores in (once, again)]
    epsilon = np.where(missing, 0, np.abs(again - once)).max(axis=1)
    return Noise(flips=best[0] != best[1], epsilon=epsilon.astype(np.float32))


def _best(scores: NDArray[np.float64], ranks: Rows) -> Rows:
    """Return the position of the best contender; ties go to the lower position, as in the ranking."""
    top = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(np.where(top, ranks, np.iinfo(np.int64).max).min(axis=1))


def scores_of(queries: Vectors, documents: Vectors, similarity: Similarity) -> NDArray[np.float64]:
    """Score queries [n, dim] against their own documents [n, depth, dim], float64 [n, depth]."""
    left, right = queries.astype(np.float64), documents.astype(np.float64)
    if similarity is Similarity.EUCLIDEAN:
        return np.asarray(-np.linalg.norm(left[:, None, :] - right, axis=2))
    if similarity is Similarity.COSINE:
        left = left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-30)
        right = right / np.maximum(np.linalg.norm(right, axis=2, keepdims=True), 1e-30)
    return np.asarray(np.einsum("nd,nkd->nk", left, right))
