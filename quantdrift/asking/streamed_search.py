"""A search in a corpus that is read in shards: workers encode and score shards, and the states are merged.

A shard becomes a `ScoreState`, a few numbers for each query whatever the size of the corpus. It is kept until the run
is written, under a digest of all that decides it, so that a run that was killed continues after the last shard.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np
import torch

from quantdrift.asking.opening import Opened, Place, described_data, load_pair, own_ids_record
from quantdrift.base.cache import arrays_in, cache_file, read_cache
from quantdrift.base.display import note
from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.base.progress import Progress, Silent
from quantdrift.base.records import bytes_digest, parse_json
from quantdrift.candidate.calibration.in_order import LayerCandidate
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.candidate.pair import Pair, QuantizedPair, methods_of
from quantdrift.data.retrieval import on_own_ids, own_documents, own_rows
from quantdrift.data.streamed import ByPosition, Score, Shard, StreamedDataset, Workers
from quantdrift.evidence.record import Noise
from quantdrift.measuring.flow import NOISE_DEPTH, Arms, Flow, noise_of_scores, scores_of
from quantdrift.measuring.readings import Search
from quantdrift.models.inputs import Inputs, Rows, Settings, Vectors, text_inputs
from quantdrift.models.model import check_vectors
from quantdrift.models.store import EmbeddingStore, digest_of, keeping, key_of, store_for
from quantdrift.runs.folder import now
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import FIELDS, ScoreState, merge, state_of
from quantdrift.scoring.streamed import score_embeddings
from quantdrift.spec.grammar import Spec, Versus, chooses, options_of

_VERSION = 3
"""Version of the states that are kept; a new version makes older states void."""


def open_streamed(
    name: Spec | Versus,
    dataset: StreamedDataset,
    *,
    settings: Settings,
    store: EmbeddingStore,
    workers: int | None = None,
    keep: bool = False,
    **where: Unpack[Place],
) -> Opened:
    """Load a pair for a corpus in shards; figures do not depend on the workers, where all of them compute alike.

    Args:
        name: the pair.
        dataset: the queries and the corpus.
        settings: how the pair is measured.
        store: keeps the states of shards until the run is written.
        workers: number of workers.
        keep: whether the reference's embeddings of the documents are kept in the store, for the next scheme.
        where: device, which every worker must have, and revision.

    Raises:
        UnsupportedError: this pair cannot be measured in shards.
    """
    check_streamed(name)
    started = now()
    texts = calibration_texts(name.scheme) if isinstance(name, Spec) else None
    device, revision = where.get("device"), where.get("revision")
    opens = partial(load_pair, name, device=device, revision=revision, **settings.loading)
    pair, store = opens(), store_for(store, trusted=settings.trust_remote_code)
    check_vectors(pair.encoder, f"{name}: a corpus in shards is searched")
    closing = ExitStack()
    root = store.root or Path(closing.enter_context(TemporaryDirectory(prefix="quantdrift-shards-")))
    kept = KeptShards(root / "shards")

    def forget(error: type[BaseException] | None, *_: object) -> None:
        for shard in dataset.shards if error is None else ():  # a run that is written needs their states no more
            kept.path(shard).unlink(missing_ok=True)

    closing.push(forget)
    ids, items = (ByPosition(dataset.shards, read) for read in (kept.names, Shard.read))
    documents = _Documents(role="document", ids=ids, items=items, digest={"corpus": dataset.fingerprint})
    search = StreamedSearch(
        queries=text_inputs(dataset.queries, role="query", ids=dataset.query_ids),
        documents=documents,
        similarity=pair.similarity,
        calibration=(documents if texts is None else text_inputs(texts),),
        qrels=dataset.qrels or None,
        dataset=dataset.name,
        record=own_ids_record(dataset),
        data=dataset,
        kept=kept,
        workers=dataset.workers(workers),
        job=partial(Job, opens=opens, root=store.root if keep else None, similarity=pair.similarity),
    )
    counts = {"n_queries": len(dataset.query_ids), "n_documents": dataset.n_documents, "shards": len(dataset.shards)}
    origin, data = {"revision": revision, **pair.identify()}, described_data(dataset, **counts)
    return Opened(name=name, pair=pair, reading=search, model=origin, data=data, started=started, closing=closing)


def check_streamed(name: Spec | Versus) -> None:
    """Refuse a pair that cannot be measured on a corpus in shards."""
    if isinstance(name, Versus):
        if name.on_server:
            raise UnsupportedError(
                f'"{name}": a server is asked by one process, with --concurrency; give it a folder with corpus.jsonl, '
                "and leave --workers out"
            )
        return
    methods_of(name.scheme)
    if chooses(name.scheme):
        raise UnsupportedError(
            f"{name}: {name.scheme.criterion} chooses widths on a corpus in memory. Choose them on a part of the "
            "corpus, with quantdrift allocate, and name the file it writes (MODEL@allocation.json)"
        )
    if options_of(name.scheme, "vectors"):
        raise UnsupportedError(
            f"{name}: stored embeddings and indexes are measured on a corpus in memory; leave +emb=, +dim= and +index= "
            "out, or measure them on a part of the corpus"
        )


# --- states that are kept --------------------------------------------------------------------------


@dataclass(slots=True)
class KeptShards:
    """The states of shards on disk, and the names of their documents.

    Attributes:
        folder: the folder of the states.
        key: digest of all that decides a state beside the documents.
    """

    folder: Path
    key: str = ""

    def path(self, shard: Shard) -> Path:
        """Return the place of a shard's state, whether it is there or not."""
        key = key_of(of=self.key, file=shard.digest, row=shard.row, n=shard.n, start=shard.start)
        return self.folder / key[:2] / f"{key}.npz"

    def write(self, shard: Shard, content: bytes) -> None:
        """Keep the packed state that a worker returned."""
        with keeping(self.folder), cache_file(self.path(shard)) as partial:
            partial.write_bytes(content)

    def names(self, shard: Shard) -> list[str]:
        """Return the names of a shard's documents in order, from its state where that is kept."""
        arrays = read_cache(self.path(shard), arrays_in)
        if arrays is None:
            return [name for name, *_ in shard.read()]
        return list(parse_json(arrays["names"].tobytes()))


def _packed(state: ScoreState, names: Sequence[str]) -> bytes:
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: getattr(state, name).cpu().numpy() for name in FIELDS}
    np.savez(file, names=np.frombuffer(json.dumps(names).encode(), dtype=np.uint8), **arrays)
    return file.getvalue()


def _state_in(content: memoryview) -> ScoreState:
    arrays = arrays_in(content)
    return state_of(*(torch.from_numpy(arrays[name]) for name in FIELDS))


# --- the work of a worker --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that a worker needs.

    Attributes:
        opens: loads the pair, on a device if one is named.
        settings: how inputs go through the model.
        root: folder for the reference's embeddings of documents; None keeps none.
        similarity: how embeddings become scores.
        queries: embeddings of the queries by reference and candidate.
        asked: ids and texts of the queries, whose own documents are left out; None where these count.
        weights: digests of the weights that encode documents, of reference and candidate.
        runtime: what decides embeddings beside weights and inputs.
        layers: the candidate's calibrated layers, if any.
    """

    opens: partial[Pair]
    settings: Settings
    root: Path | None
    similarity: Similarity
    queries: tuple[Vectors, Vectors]
    asked: tuple[Sequence[str], Sequence[str]] | None
    weights: tuple[str, str]
    runtime: Mapping[str, str]
    layers: Sequence[LayerCandidate] | None

    @property
    def passes(self) -> int:
        """Number of times that a document is encoded."""
        return len(set(self.weights))

    def scorer(self, *, number: int = 0, threads: int | None = None) -> Score:
        """Load the models in a worker: the one of this number on its machine, with so many threads of torch.

        Raises:
            RunError: this machine has another model, or other libraries.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        cards = torch.cuda.device_count()
        several = cards > 1 and self.opens.keywords["device"] in {None, "cuda"}
        pair = self.opens(**({"device": f"cuda:{number % cards}"} if several else {}))
        if self.layers is not None and isinstance(pair, QuantizedPair):
            pair.take(self.layers)
        here, wanted = (pair.fingerprint, dict(pair.runtime)), (self.weights[0], dict(self.runtime))
        if here != wanted:
            raise RunError(
                f"a worker has other weights or libraries than this process: {here}, expected {wanted}; give every "
                "machine the same model, packages and --device"
            )
        return partial(score_shard, self, self.flow(pair, Silent()))

    def flow(self, pair: Pair, progress: Progress) -> Flow:
        """Return the flow of documents through a pair that is loaded."""
        return Flow(pair=pair, settings=self.settings, store=EmbeddingStore(self.root), progress=progress)


def score_shard(job: Job, flow: Flow, shard: Shard) -> bytes:
    """Encode a shard's documents with both arms of a pair that is loaded, and score them."""
    names, *both = zip(*shard.read(), strict=True)
    texts = both[0]
    own = None if job.asked is None else own_documents(*job.asked, names, *both)
    side = text_inputs(texts, role="document", ids=names)
    first = second = flow.vectors(side, "reference", job.weights[0], "document embeddings")
    if job.passes > 1:
        with flow.pair.candidate():
            if (here := flow.pair.candidate_fingerprint()) != job.weights[1]:
                raise RunError(
                    f"a worker makes another candidate ({here}, expected {job.weights[1]}); give every machine the "
                    "same kind of processor and the same packages"
                )
            unkept = replace(flow, store=EmbeddingStore(None))  # no other run has this candidate
            second = unkept.vectors(side, "candidate", job.weights[1], "document embeddings")
    device = flow.pair.device
    state = score_embeddings(
        *job.queries,
        first,
        second,
        similarity=job.similarity,
        k=job.settings.k,
        excluded=own_rows(job.asked[0], names, own, shard.start) if job.asked and own else None,
        offset=shard.start,
        device=device if device.type == "cuda" else "cpu",
    )
    return _packed(state, names)


# --- the reading ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Documents(Inputs):
    """The ids and texts of a corpus in shards, a few of which are read at a time."""

    def at(self, rows: Rows) -> Any:
        """Return the texts of some rows."""
        return self.part(rows).items

    def part(self, rows: Rows) -> Inputs:
        """Return some of the documents in memory; each shard is read once."""
        documents = {row: self.items[row] for row in np.unique(rows).tolist()}
        names, texts = ([documents[row][part] for row in rows.tolist()] for part in (0, 1))
        return text_inputs(texts, role=self.role, ids=names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamedSearch(Search):
    """A search in a corpus in shards, without any document's embedding in memory.

    Attributes:
        data: the queries and the shards of the corpus.
        kept: the states of the shards.
        workers: runs the job on the shards; None for this process.
        job: makes the workers' job from what is known once the queries are embedded.
    """

    data: StreamedDataset
    kept: KeptShards
    workers: Workers | None
    job: Callable[..., Job]

    @property
    def held(self) -> tuple[Inputs, ...]:
        """The queries alone are held in memory."""
        return (self.queries,)

    def state(self, flow: Flow, reference: Arms, candidate: Arms) -> ScoreState:
        """Score every query against the documents of every shard."""
        pair = flow.pair
        with pair.candidate():
            candidate_weights = pair.candidate_fingerprint()
        weights = pair.fingerprint  # takes seconds
        job = self.job(
            settings=flow.settings,
            queries=(np.array(reference[0]), np.array(candidate[0])),
            asked=None if self.data.keep_own_ids else (self.queries.ids, self.queries.items),
            weights=(weights, weights if pair.query_only else candidate_weights),
            runtime=dict(pair.runtime),
            layers=pair.made.layers if isinstance(pair, QuantizedPair) and pair.made else None,
        )
        models = [pair.encoder] if isinstance(pair, QuantizedPair) else [pair.reference, pair.candidate_model]
        self.kept.key = key_of(
            version=_VERSION,
            weights=job.weights,
            runtime=dict(job.runtime),
            reads=[model.key("document") for model in models],
            queries=[bytes_digest(np.ascontiguousarray(vectors).data.cast("B")) for vectors in job.queries],
            similarity=str(job.similarity),
            settings=[job.settings.k, job.settings.batch_size],
            asked=job.asked and digest_of(text for part in job.asked for text in part),
        )
        shown = "encoding and scoring the corpus"
        with flow.stage("documents", shown, job.passes * self.data.n_documents) as tell:
            state = reduce(merge, self._states(flow, job, tell))
        left_out = np.flatnonzero(state.n_items.cpu().numpy() < self.data.n_documents)
        said = on_own_ids([self.queries.ids[row] for row in left_out.tolist()], self.qrels or {})
        return replace(state, notes=(said,) if said else ())

    def _states(self, flow: Flow, job: Job, tell: Callable[[int], None]) -> Iterator[ScoreState]:
        """Yield the states of the shards: first those kept from an interrupted run, then those scored now."""
        todo = []
        for shard in self.data.shards:
            if (state := read_cache(self.kept.path(shard), _state_in)) is None:
                todo.append(shard)
            else:
                tell(job.passes * shard.n)
                yield state
        if n_kept := len(self.data.shards) - len(todo):
            note(f"{n_kept} of {len(self.data.shards)} shards are kept from a run that was interrupted")
        progress: Any = SimpleNamespace(stage=lambda *_: nullcontext(tell))  # in the bar of the whole corpus
        here = partial(score_shard, job, job.flow(flow.pair, progress))
        alone = ((shard, here(shard)) for shard in todo)
        for shard, content in alone if self.workers is None else self.workers(job.scorer, todo):
            self.kept.write(shard, content)
            if self.workers is not None:
                tell(job.passes * shard.n)
            yield _state_in(memoryview(content))

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Compare the first of the contenders in two passes; the state has the scores of the first pass."""
        positions, scores, _ = (part[rows, :depth] for part in state.reference_top())
        wanted = self.rerun(state, rows, depth)
        at = np.where(positions >= 0, np.searchsorted(wanted[1], positions), 0)
        repeated = scores_of(again[0], again[1][at], self.similarity)
        return noise_of_scores(np.nan_to_num(scores.astype(np.float64)), repeated, positions)
