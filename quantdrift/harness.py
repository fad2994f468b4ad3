"""The common part of the harness plugins: both arms of one model run on the same inputs with the same random draws.

A plugin makes `Arms` of a harness's model. Both arms search here: by embedding both sides and streaming the scores
(`search_embedded`), or by two whole searches that score the same items (`search_lists`). The plugin turns the `Outcome`
into the harness's results and a run folder.
"""

import copy
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.asking.run import describe_run, measure, on_models
from quantdrift.base.display import clean, complain, note
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.base.text import as_typed
from quantdrift.builtin.cross_encoder.work import raw_scores
from quantdrift.candidate.calibration.sample import draw_sample
from quantdrift.candidate.pair import Arm, QuantizedPair
from quantdrift.candidate.refusals import refuse_batches, refuse_deployment
from quantdrift.data.retrieval import own_rows
from quantdrift.evidence.record import Evidence
from quantdrift.measuring.flow import (
    NOISE_DEPTH,
    Measured,
    assemble,
    noise_of_scores,
    not_calibrated_on,
    other_batch_size,
)
from quantdrift.measuring.readings import Search, calibration_queries
from quantdrift.models.files.checkpoint import refuse_quantized
from quantdrift.models.inputs import Inputs, Rows, Settings, Vectors
from quantdrift.models.layers import modules_of
from quantdrift.models.store import default_store
from quantdrift.runs.folder import Run
from quantdrift.scheme import Scheme
from quantdrift.scoring.deployed import as_ranked
from quantdrift.scoring.similarity import Similarity, prepare, scores_from_products
from quantdrift.scoring.streamed import score_ragged
from quantdrift.show.run import as_text, run_output

DEPTH = 200
"""Ranks kept in the evidence; harnesses themselves rank more."""
PROBE = 2
"""Inputs that are run once to see which layers they reach."""

Results = dict[str, dict[str, float]]
"""Query id to item id to score, as harnesses have them."""


def weights_of(model: Any, scheme: Scheme, name: str, *, notes: Sequence[str] = ()) -> QuantizedPair:
    """Return the reference and candidate weights of a harness's model; `notes` are those of loading."""
    modules = modules_of(model)
    if not modules:
        raise UnsupportedError(
            f"{name} holds no torch module, so there is nothing to quantize; a pair needs a model that runs here in "
            "torch (not bm25, an API or a served model)"
        )
    refuse_quantized(modules, name)
    pair = QuantizedPair(modules, scheme, name=name)
    pair.notes = tuple(notes)
    tell_notes(pair)
    return pair


def tell_notes(pair: QuantizedPair) -> None:
    """Print the notes on a model, which a harness shows nowhere; they stand in run.json too, where one is written."""
    for text in on_models(pair):
        note(text)


def refuse_without_search(pair: QuantizedPair, why: str, *, named: str) -> None:
    """Refuse a scheme that needs a search over embeddings; `why` says that there is none."""
    refuse_deployment(pair.scheme, why)
    refuse_batches(pair.scheme, "here the harness makes the batches")
    if pair.query_only:
        raise UnsupportedError(f"+query keeps the index of a search at full precision, and {why}. Leave +query out")
    if pair.needs_widths:
        raise UnsupportedError(
            f"the criterion {pair.scheme.criterion} chooses the layers' widths on a search over embeddings, and "
            f"{why}. Choose widths with quantdrift allocate and name the file: {named}"
        )


class Arms:
    """The weights of a harness's model, with one arm in place at a time; by default the candidate."""

    def __init__(self, pair: QuantizedPair) -> None:
        self.pair = pair
        self.arm: Arm = "candidate"
        self.session = False  # whether the arms are compared now
        self._candidate: ExitStack | None = None

    @contextmanager
    def answering(self, arm: Arm) -> Iterator[None]:
        """Let an arm answer; afterwards the reference's weights are in place."""
        before = self.arm, self.session
        self.restore()
        self.arm, self.session = arm, True
        try:
            yield
        finally:
            self.restore()
            self.arm, self.session = before

    def put_in_place(self, *, indexed: bool = False) -> None:
        """Put in place the arm's weights for queries, or for indexed documents."""
        if self.arm == "reference" or (indexed and self.pair.query_only):
            self.restore()
        elif self._candidate is None:
            with ExitStack() as stack:
                stack.enter_context(self.pair.candidate())
                self._candidate = stack.pop_all()

    def restore(self) -> None:
        """Put the reference's weights back."""
        if self._candidate is not None:
            self._candidate.close()
            self._candidate = None


@dataclass(slots=True, kw_only=True)
class Outcome(Measured):
    """Both arms on one search or task of a harness.

    Attributes:
        state: the scores of all inputs; None where the harness keeps them.
        settings: settings of the measurement.
        read_as: origin of the scores, for the record.
        n_items: number of items that each input ranks.
        results: an arm's results in the harness's form, made anew at each call, as harnesses change them.
    """

    state: Any = None
    settings: Settings
    read_as: Mapping[str, Any]
    n_items: int
    results: Callable[[Arm], Results] = lambda _: {}

    @classmethod
    def of(cls, pair: QuantizedPair, evidence: Evidence, *, dataset: str | None = None, **more: Any) -> Self:
        """Return an outcome without the inputs that layers were calibrated on; the reference's weights are in place."""
        rest = not_calibrated_on(pair, evidence.input_ids.tolist(), dataset)
        left_out = evidence.n_inputs - len(rest)
        part = evidence.part(rest) if left_out else evidence
        return cls(evidence=part, fingerprint=pair.fingerprint, left_out=left_out, **more)

    def record(
        self, spec: Any, pair: QuantizedPair, *, data: Mapping[str, Any], model: Mapping[str, Any], started: str
    ) -> dict[str, Any]:
        """Return the record for run.json."""
        size = {"n_queries": self.evidence.n_inputs + self.left_out, "n_documents": self.n_items}
        return describe_run(
            spec,
            pair,
            self,
            self.settings,
            model=model,
            data={"warnings": [], **size, **data},
            reading=self.read_as,
            started=started,
        )


# --- sides of a harness's data ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of a harness's data, by number, and the function that runs rows in batches of a size."""

    inputs: Inputs
    run: Callable[[Rows, int], Any]

    @classmethod
    def of(cls, role: str, ids: Sequence[str], run: Callable[[Rows, int], Any], key: Any, lengths: Any = None) -> Self:
        """Make a side; `key` is all that decides outputs beside weights, None if unknown."""
        lengths = None if lengths is None else np.array(lengths, dtype=np.int64)
        return cls(Inputs(role=role, ids=ids, items=range(len(ids)), digest=key, lengths=lengths), run)


class Sides:
    """A harness's model as an encoder of rows, with a side for each role."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = {side.inputs.role: side for side in sides}

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> Vectors:
        """Encode rows by number."""
        vectors: Vectors = self._sides[role].run(np.array(list(items), dtype=np.int64), batch_size)
        return vectors

    def key(self, role: str) -> Mapping[str, Any]:
        """Return nothing: the inputs' digest describes the model."""
        return {}


# --- searches -------------------------------------------------------------------------------------


def search_embedded(
    pair: QuantizedPair,
    queries: Side,
    documents: Side,
    *,
    similarity: Similarity,
    top_k: int,
    batch_size: int,
    progress: Progress,
    leaves_out: str,
    calibration: Side | None,
    two_towers: bool = False,
    dataset: str | None = None,
    read: Callable[[Search], Search] = lambda search: search,
) -> Outcome:
    """Embed both sides with both arms and stream the scores; with `two_towers` one is calibrated on queries.

    `leaves_out` names a harness that leaves out documents of the query's own id; "" counts them. `read` adapts the
    search to outputs other than one vector an input.
    """
    settings = Settings(k=max(DEPTH, top_k), batch_size=batch_size)
    ids = queries.inputs.ids, documents.inputs.ids
    same = set(ids[0]).intersection(ids[1]) if leaves_out else set()
    pair.encoder = Sides([queries, documents, *([] if calibration is None else [calibration])])
    also, held_out = calibration_queries(pair, queries.inputs) if two_towers else ([], None)
    reading = Search(
        queries=queries.inputs,
        documents=documents.inputs,
        similarity=similarity,
        excluded=own_rows(*ids, same) if same else None,
        notes=_on_same_ids(len(same), leaves_out),
        depth=DEPTH,
        calibration=((calibration or documents).inputs, *also),
        held_out=held_out,
        dataset=dataset,
    )
    measured = measure(pair, read(reading), settings=settings, store=default_store(), progress=progress)

    def results(arm: Arm) -> Results:
        state = measured.state
        places, values = state.reference_top()[:2] if arm == "reference" else state.candidate_top()[::2]
        top = places[:, :top_k], values[:, :top_k] if state.told is None else as_ranked(values[:, :top_k])
        ranks = zip(queries.inputs.ids, *(part.tolist() for part in top), strict=True)
        ranked: Results = {}
        for query, positions, scores in ranks:
            listed = ranked[query] = {}
            for place, score in zip(positions, scores, strict=True):
                if place >= 0:
                    # of documents with the same id the best counts
                    listed.setdefault(documents.inputs.ids[place], score)
        return ranked

    return Outcome(
        **{part.name: getattr(measured, part.name) for part in fields(Measured)},
        settings=settings,
        read_as=measured.reading.record,
        n_items=len(documents.inputs.ids),
        results=results,
    )


def search_lists(
    arms: Arms,
    run: Callable[[], Results],
    score: Callable[[Mapping[str, list[str]], int], Results],
    *,
    shortlists: Mapping[str, Collection[str]],
    item_ids: Sequence[str],
    harness: str,
    skip_same_id: bool,
    settings: Settings,
    read_as: Mapping[str, Any],
    calibrate: Callable[[], object],
    what: str = "search",
    dataset: str | None = None,
) -> Outcome:
    """Search or rerank once per arm, where both arms score the same items of a query.

    `run` searches as the harness does; `score` scores some items of some queries in batches of a size. A cross-encoder
    gives raw scores during the comparison; the results have its activation.
    """
    filled = ((query, names) for query, names in shortlists.items() if names)
    probe = {query: [*islice(names, PROBE)] for query, names in islice(filled, PROBE)}
    if not probe:
        raise DataError("nothing to rank: the shortlists hold no document")
    clock = [time.perf_counter()]
    with raw_scores(arms.pair.modules, harness) as activated:
        with arms.answering("reference"):
            with arms.pair.observed():
                score(probe, PROBE)
            reference = run()
            clock.append(time.perf_counter())
            calibrate()
            clock.append(time.perf_counter())
        with arms.answering("candidate"):
            candidate = run()
            clock.append(time.perf_counter())
        position = {name: number for number, name in enumerate(item_ids)}
        counted: dict[str, list[str]] = {}
        for query, scores in reference.items():
            if scores.keys() != candidate.get(query, {}).keys():
                raise UnsupportedError(
                    f"the two arms scored other documents for query {query!r}; a pair needs a search that scores the "
                    "same ones"
                )
            if names := sorted((n for n in scores if not (skip_same_id and n == query)), key=position.__getitem__):
                counted[query] = names
        if not counted:
            raise DataError(f"nothing to rank: none of {len(reference)} queries has a document in its results")
        rows = []
        for query, names in counted.items():
            places = np.array([position[name] for name in names], dtype=np.int64)
            full, low = (np.array([arm[query][n] for n in names], dtype=np.float32) for arm in (reference, candidate))
            rows.append((places, full, low))
        state = score_ragged(rows, k=settings.k)
        positions, once, _ = (part[:, :NOISE_DEPTH] for part in state.reference_top())
        contenders = {
            query: [item_ids[place] for place in row if place >= 0]
            for query, row in zip(counted, positions.tolist(), strict=True)
        }
        second = np.zeros(once.shape, dtype=np.float64)
        backwards = {query: names[::-1] for query, names in reversed(contenders.items())}
        rescored = score(backwards, other_batch_size(settings.batch_size))
        for row, (query, names) in enumerate(contenders.items()):
            second[row, : len(names)] = np.array([rescored[query][name] for name in names], dtype=np.float32)
        noise = noise_of_scores(once.astype(np.float64), second, positions)
        clock.append(time.perf_counter())
    n_own = sum(query in scores for query, scores in reference.items()) if skip_same_id else 0
    stages = (f"reference: {what}", "calibration", f"candidate: {what}", "noise floor")
    return Outcome.of(
        arms.pair,
        assemble(state, input_ids=list(counted), item_ids=item_ids, noise=noise, depth=DEPTH),
        dataset=dataset,
        settings=settings,
        read_as=read_as,
        n_items=len(item_ids),
        results=lambda arm: activated(reference if arm == "reference" else candidate),
        seconds=dict(zip(stages, np.diff(clock).round(3).tolist(), strict=True)),
        notes=[*_on_same_ids(n_own, harness)],
    )


def _on_same_ids(n: int, harness: str) -> tuple[str, ...]:
    """Note that documents of the query's own id do not count."""
    who = "1 query has" if n == 1 else f"{n:,} queries have"
    return (f"{who} the id of a document, which {harness} leaves out",) if n else ()


# --- calibration ----------------------------------------------------------------------------------


def calibrate(
    pair: QuantizedPair,
    inputs: Callable[[], Side],
    *,
    batch_size: int,
    progress: Progress,
    groups: NDArray[np.int64] | None = None,
    source: str = "corpus",
) -> None:
    """Calibrate the candidate if its scheme needs that; `source` names the origin of the inputs."""
    if pair.needs_calibration:
        side = inputs()
        sample = draw_sample(Sides([side]), [side.inputs], pair.scheme, batch_size, groups=groups, source=source)
        pair.prepare(sample, root=default_store().root, progress=progress)


def runs(run: Callable[[list[int], int], Any], n: int, *, key: Any, lengths: Sequence[int] | None = None) -> Side:
    """Return a side whose rows are run to calibrate layers on their inputs."""
    return Side.of("document", list(map(str, range(n))), lambda rows, size: run(rows.tolist(), size), key, lengths)


# --- around an evaluation ---------------------------------------------------------------------------


def as_vectors(embeddings: Any) -> Vectors:
    """Return embeddings of a harness's model as float32 [n, dim]."""
    if isinstance(embeddings, list) and embeddings and isinstance(embeddings[0], Tensor):
        embeddings = torch.stack(embeddings)
    if isinstance(embeddings, Tensor):
        embeddings = embeddings.detach().float().cpu().numpy()
    return np.asarray(embeddings, dtype=np.float32)


def remembered(holder: Any = None, *names: str) -> Callable[[], None]:
    """Return a function that restores the present state of every random generator, so both arms see the same draws."""
    states = {name: copy.deepcopy(getattr(holder, name)) for name in names if hasattr(holder, name)}
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def put_back() -> None:
        for name, state in states.items():
            setattr(holder, name, state)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return put_back


@contextmanager
def carefully(place: str) -> Iterator[None]:
    """Turn an error into one line, so that it costs the drift of this place and not the evaluation."""
    try:
        yield
    except Exception as error:  # whatever the error, the evaluation itself went well
        complain(clean(f"no drift is measured on {place}: {str(error) or type(error).__name__}"))


def screen_of(runs: Sequence[Run]) -> str:
    """What a harness's command ends with: the screen of its run; of several, a command and a verdict each."""
    if len(runs) == 1:
        return as_text(run_output(runs[0]))
    shows = [(f"quantdrift show {as_typed(run.path)}", run) for run in runs]
    return "\n".join(f"{show}   # {run.record['data']['name']}: {run.verdict.word}" for show, run in shows)


# --- the similarity of a score function -------------------------------------------------------------

_LONGEST = 16_384
"""Longer than any model's embeddings: a cosine of the first 256 numbers is not the cosine."""
_MIXED = ((0.9, 0, 0), (0, 0.4, 0.1), (0.3, 0, -0.5), (0, -0.8, 0), (-0.1, 0.7, 0.6))
"""Weights that mix the left vectors into the right ones: a sine, or a part of the cosine, is not the cosine."""


def similarity_of(score: Callable[[Any, Any], Any], dimension: int | None = None) -> Similarity | None:
    """Identify the similarity of a score function by calling it, as its name can mislead."""
    similarities = {_at(score, length) for length in {_LONGEST, dimension or _LONGEST}}
    return similarities.pop() if len(similarities) == 1 else None


def _at(score: Callable[[Any, Any], Any], dimension: int) -> Similarity | None:
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(3, dimension)) * [[0.5], [1], [2]], rng.normal(size=(5, dimension))
    left, right = (
        torch.from_numpy((part / dimension**0.5).astype(np.float32))
        for part in (drawn[0], np.array(_MIXED) @ drawn[0] + drawn[1] / 2)
    )
    try:
        theirs = torch.as_tensor(score(left.clone(), right.clone())).detach().float().cpu()
    except Exception:  # code of the user, which the harness runs on its own inputs
        return None
    for similarity in Similarity:
        ours = torch.empty(len(left), len(right))
        prepared = [prepare(part, similarity, torch.device("cpu")) for part in (left, right)]
        scores_from_products(prepared[0], prepared[1], similarity, out=ours)
        if theirs.shape == ours.shape and torch.allclose(theirs, ours, atol=1e-5):
            return similarity
    return None
