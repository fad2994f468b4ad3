"""A search in a corpus that is read in shards: every worker encodes and scores its own, and the states are merged.

What a shard gives is a `ScoreState`, a few numbers a query whatever the corpus' size. It is kept until the run is
written, under a digest of all that decides it, so that a run that was killed goes on behind the last shard.
"""

from __future__ import annotations

import io
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quantdrift.base.cache import arrays_in, cache_file, read_cache
from quantdrift.base.display import note
from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.base.progress import Progress, Silent
from quantdrift.base.records import bytes_digest
from quantdrift.data.shards import Documents, Shard, ShardedDataset
from quantdrift.engine.calibration.in_order import LayerCandidate
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.flow import NOISE_DEPTH, Arms, Flow, noise_of_scores, scores_of
from quantdrift.engine.inputs import Inputs, Rows, Settings, Vectors, text_inputs
from quantdrift.engine.opening import Opened, load_pair
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.readings import Search
from quantdrift.engine.run import measured_run
from quantdrift.engine.scoring.state import FIELDS, ScoreState, merge, state_of
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.store import EmbeddingStore, keeping, key_of
from quantdrift.engine.workers import Scorer, Workers, threads_of
from quantdrift.evidence.record import Noise
from quantdrift.runs.folder import Run, check_place, now
from quantdrift.spec.allocation import Allocation
from quantdrift.spec.grammar import Spec, Versus, chooses, is_endpoint

_VERSION = 1
"""Of what is kept of a shard; a change in what it means makes kept ones void."""


def run_shards(
    name: Spec | Versus,
    dataset: ShardedDataset,
    *,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    workers: Workers,
    keep: bool = False,
    device: str | None = None,
    revision: str | None = None,
    **more: Any,
) -> Run:
    """Measure a pair on a corpus in shards and write the run.

    The figures do not depend on who works through the shards, to the last bit where all of them compute alike.

    Args:
        name: the pair.
        dataset: what it searches.
        out: the run folder.
        settings: how it is measured.
        store: where states of shards are kept until the run is written, and embeddings if they are.
        progress: where progress is shown.
        workers: who works.
        keep: whether the reference's embeddings of the documents are kept, for the next scheme.
        device: where models run; every worker has to have it.
        revision: of a model on the hub.
        more: goes into the run's record.

    Raises:
        UnsupportedError: this cannot be done in shards.
        DataError: a document is broken.
        RunError: workers died, or have another model.
    """
    refuse_in_shards(name)
    check_place(out.absolute())
    started = now()
    texts = calibration_texts(name.scheme) if isinstance(name, Spec) else None
    pair = load_pair(name, device=device, revision=revision, dtype=settings.dtype)
    with ExitStack() as stack:
        kept = stack.enter_context(_kept_in(store.root))
        documents = _Streamed.of(dataset)
        search = ShardedSearch(
            queries=text_inputs(dataset.queries, role="query", ids=dataset.query_ids),
            documents=documents,
            similarity=pair.similarity,
            calibration=(documents if texts is None else text_inputs(texts),),
            qrels=dataset.qrels or None,
            dataset=dataset.name,
            shards=dataset.shards,
            kept=kept,
            workers=workers,
            told={"name": name, "device": device, "revision": revision, "keep": keep},
        )
        opened = Opened(
            name=name,
            pair=pair,
            reading=search,
            model={"revision": revision, **pair.identify()},
            data={
                "name": dataset.name,
                "split": dataset.split,
                "fingerprint": dataset.fingerprint,
                "warnings": [*dataset.warnings],
                "path": dataset.path,
                "n_queries": len(dataset.query_ids),
                "n_documents": dataset.n_documents,
                "shards": len(dataset.shards),
            },
            started=started,
        )
        found = measured_run(opened, out=out, settings=settings, store=store, progress=progress, **more)
        kept.clear()
        return found


def refuse_in_shards(name: Spec | Versus) -> None:
    """Refuse a pair that cannot be measured on a corpus in shards."""
    if isinstance(name, Versus):
        if any(is_endpoint(one) for one in (name.reference, name.candidate)):
            raise UnsupportedError(
                f'"{name}": a server is asked by one process, with --concurrency; give it a folder with corpus.jsonl, '
                "and leave --engine and --workers out"
            )
        return
    methods_of(name.scheme)
    if chooses(name.scheme):
        raise UnsupportedError(
            f"{name}: {name.scheme.criterion} chooses widths on a corpus in memory. Choose them on a part of the "
            "corpus, with quantdrift allocate, and name the file it writes (MODEL@allocation.json)"
        )
    if name.scheme.options_of("vectors"):
        raise UnsupportedError(
            f"{name}: stored embeddings and indexes are measured on a corpus in memory; leave +emb=, +dim= and +index= "
            "out, or measure them on a part of the corpus"
        )


# --- what is kept of a shard ----------------------------------------------------------------------


@dataclass(slots=True)
class KeptShards:
    """States of shards on disk, and the names of their documents.

    Attributes:
        folder: where they are.
        key: of all that decides them beside the documents.
        n_queries: in each.
        k: ranks in each.
        used: the files that this run has read or written.
    """

    folder: Path
    key: str = ""
    n_queries: int = 0
    k: int = 0
    used: set[Path] = field(default_factory=set)

    def _path(self, shard: Shard) -> Path:
        own = key_of(of=self.key, file=shard.digest, row=shard.row, n=shard.n, start=shard.start)
        return self.folder / own[:2] / f"{own}.npz"

    def state(self, shard: Shard) -> ScoreState | None:
        """The state of a shard; None if it is not there."""
        found = read_cache(path := self._path(shard), lambda content: self.decoded(shard, content))
        if found is not None:
            self.used.add(path)
        return found

    def decoded(self, shard: Shard, content: memoryview) -> ScoreState:
        """The state in what a worker gave; ValueError if it is that of something else."""
        arrays = arrays_in(content)
        of_query = {"delta_min": np.float32, "delta_max": np.float32, "n_items": np.int64}
        for name in FIELDS:
            shape = (self.n_queries,) if name in of_query else (self.n_queries, self.k)
            dtype = of_query.get(name, np.int64 if name.endswith("keys") else np.float32)
            if arrays[name].shape != shape or arrays[name].dtype != dtype:
                raise ValueError(f"{name}: {arrays[name].dtype} of shape {arrays[name].shape}")
        if arrays["ends"].shape != (shard.n,):
            raise ValueError(f"names of {len(arrays['ends'])} documents and not of {shard.n}")
        return state_of(*(torch.from_numpy(arrays[name]) for name in FIELDS))

    def write(self, shard: Shard, content: bytes) -> None:
        """Keep what a worker gave."""
        path = self._path(shard)
        self.used.add(path)
        with keeping(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            with cache_file(path) as partial:
                partial.write_bytes(content)

    def names(self, shard: Shard) -> list[str]:
        """Names of a shard's documents, in their order."""
        arrays = read_cache(self._path(shard), arrays_in)
        if arrays is None:
            return shard.read()[0]
        raw, ends = arrays["names"].tobytes(), arrays["ends"].tolist()
        return [raw[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]

    def clear(self) -> None:
        """Remove the states: the run has all that comes of them."""
        for path in self.used:
            path.unlink(missing_ok=True)


@contextmanager
def _kept_in(root: Path | None) -> Iterator[KeptShards]:
    """Where states lie: in the cache, or in a temporary folder."""
    if root is not None:
        yield KeptShards(root / "shards")
        return
    with tempfile.TemporaryDirectory(prefix="quantdrift-shards-") as folder:
        yield KeptShards(Path(folder))


def _packed(state: ScoreState, names: Sequence[str]) -> bytes:
    raw = [name.encode() for name in names]
    file = io.BytesIO()
    np.savez(
        file,
        names=np.frombuffer(b"".join(raw), dtype=np.uint8),
        ends=np.cumsum([len(one) for one in raw], dtype=np.int64),
        **{name: getattr(state, name).cpu().numpy() for name in FIELDS},
    )
    return file.getvalue()


# --- what a worker does ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a worker is told.

    Attributes:
        name: of the pair.
        device: where it runs.
        revision: of a model on the hub.
        settings: how inputs are put through.
        root: where the reference's embeddings of documents are kept; None keeps none.
        similarity: how embeddings become scores.
        queries: embeddings of the queries by reference and candidate.
        weights: digests of reference and candidate.
        runtime: what decides embeddings beside weights and inputs.
        layers: the candidate's calibrated layers, where there are any.
        query_only: whether documents are the reference's in both arms.
        threads: of torch; None leaves them.
    """

    name: Spec | Versus
    device: str | None
    revision: str | None
    settings: Settings
    root: Path | None
    similarity: Similarity
    queries: tuple[Vectors, Vectors]
    weights: tuple[str, str]
    runtime: Mapping[str, str]
    layers: Sequence[LayerCandidate] | None
    query_only: bool
    threads: int | None

    def scorer(self, number: int) -> Scorer:
        """That of a worker, which loads the models.

        Raises:
            RunError: this machine has another model, or other libraries.
        """
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        device, cards = self.device, torch.cuda.device_count()
        if cards > 1 and device in {None, "cuda"}:
            device = f"cuda:{number % cards}"
        pair = load_pair(self.name, device=device, revision=self.revision, dtype=self.settings.dtype)
        if self.layers is not None and isinstance(pair, QuantizedPair):
            pair.take(self.layers)
        here = (pair.fingerprint, dict(pair.runtime))
        if here != (self.weights[0], dict(self.runtime)):
            raise RunError(
                f"a worker has not what this process has: weights and libraries are {here}, and were to be "
                f"{(self.weights[0], dict(self.runtime))}; give every machine the same model, packages and --device"
            )
        return _ShardScorer(self, Flow(pair=pair, settings=self.settings, store=self.store, progress=Silent()))

    @property
    def store(self) -> EmbeddingStore:
        """Where embeddings of documents are kept."""
        return EmbeddingStore(self.root)


@dataclass(frozen=True, slots=True)
class _ShardScorer:
    """A model that is loaded, for one job."""

    job: Job
    flow: Flow

    def score(self, shard: Shard) -> bytes:
        """Encode a shard's documents with both arms and score them."""
        job, (names, texts) = self.job, shard.read()
        side = text_inputs(texts, role="document", ids=names)
        first = second = self.flow.vectors(side, "reference", job.weights[0], "document embeddings")
        if not (job.query_only or job.weights[0] == job.weights[1]):
            with self.flow.pair.candidate():
                if (own := self.flow.pair.candidate_fingerprint()) != job.weights[1]:
                    raise RunError(
                        f"a worker makes another candidate of {job.name} ({own}, and not {job.weights[1]}); give every "
                        "machine the same kind of processor and the same packages"
                    )
                flow = replace(self.flow, store=EmbeddingStore(None))  # no other run has this candidate
                second = flow.vectors(side, "candidate", job.weights[1], "document embeddings")
        device = self.flow.pair.device
        state = score_embeddings(
            *job.queries,
            first,
            second,
            similarity=job.similarity,
            k=job.settings.k,
            offset=shard.start,
            device=device if device.type == "cuda" else "cpu",
        )
        return _packed(state, names)


class _Ticks:
    """Progress of one process in the bar of the whole corpus."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.tell = tell

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Steps of what counts, embeddings of documents."""
        del total
        yield self.tell if name.endswith("document embeddings") else lambda _: None


# --- the reading ----------------------------------------------------------------------------------


class _Names(Sequence[str]):
    """Names of documents by position; those of one shard are in memory at a time."""

    def __init__(self, shards: Sequence[Shard], names_of: Callable[[Shard], list[str]]) -> None:
        self._shards, self._names_of = shards, names_of
        self._starts = [shard.start for shard in shards]
        self._number, self._last = -1, list[str]()

    def __len__(self) -> int:
        return self._shards[-1].start + self._shards[-1].n

    def __getitem__(self, at: Any) -> Any:
        number = bisect_right(self._starts, at) - 1
        if number != self._number:
            self._number, self._last = number, self._names_of(self._shards[number])
        return self._last[at - self._starts[number]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Streamed(Inputs):
    """The documents of a corpus in shards, of which a few are taken at a time."""

    documents: Documents

    @classmethod
    def of(cls, dataset: ShardedDataset) -> _Streamed:
        """Those of a corpus."""
        return cls(
            role="document",
            ids=_Names(dataset.shards, lambda shard: shard.read()[0]),
            items=(),
            digest={"corpus": dataset.fingerprint},
            documents=Documents(dataset.shards),
        )

    def at(self, rows: Rows) -> Any:
        """The texts of some rows."""
        return self.documents.of(rows)[1]

    def part(self, rows: Rows) -> Inputs:
        """Some of the documents, in memory."""
        names, texts = self.documents.of(rows)
        return text_inputs(texts, role=self.role, ids=names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardedSearch(Search):
    """A search in a corpus in shards, of which no embedding is held.

    Attributes:
        shards: of the corpus.
        kept: their states.
        workers: who encodes and scores them.
        told: what workers are told beside what a flow knows.
    """

    shards: Sequence[Shard]
    kept: KeptShards
    workers: Workers
    told: Mapping[str, Any]

    @property
    def held(self) -> tuple[Inputs, ...]:
        """The queries alone."""
        return (self.queries,)

    def allocate(self, flow: Flow, pair: QuantizedPair, reference: Arms) -> Allocation:
        """Never: such schemes are refused."""
        raise NotImplementedError

    def state(self, flow: Flow, reference: Arms, candidate: Arms) -> ScoreState:
        """Every query against the documents of every shard."""
        pair, job = flow.pair, self._job(flow, reference[0], candidate[0])
        models = [pair.encoder] if isinstance(pair, QuantizedPair) else [pair.reference, pair.candidate_model]
        self.kept.key = key_of(
            version=_VERSION,
            weights=job.weights,
            runtime=dict(job.runtime),
            reads=[model.key("document") for model in models],
            queries=[bytes_digest(np.ascontiguousarray(one).data.cast("B")) for one in job.queries],
            similarity=str(job.similarity),
            settings=[job.settings.k, job.settings.batch_size],
        )
        self.kept.n_queries, self.kept.k = len(self.queries.ids), job.settings.k
        arms = 1 if job.query_only or job.weights[0] == job.weights[1] else 2
        merged: ScoreState | None = None
        todo = []
        shown = "encoding and scoring the corpus"
        with flow.stage("documents", shown, arms * sum(shard.n for shard in self.shards)) as tell:
            for shard in self.shards:
                if (state := self.kept.state(shard)) is None:
                    todo.append(shard)
                    continue
                merged = state if merged is None else merge(merged, state)
                tell(arms * shard.n)
            if len(todo) < len(self.shards):
                done = len(self.shards) - len(todo)
                note(f"{done} of {len(self.shards)} shards are there from a run that was interrupted")
            alone = self.workers.engine == "local" and (self.workers.n or 1) == 1
            own = Flow(pair=pair, settings=flow.settings, store=job.store, progress=_Ticks(tell))
            for shard, content in self.workers.run(job.scorer, todo, lambda: _ShardScorer(job, own)):
                self.kept.write(shard, content)
                state = self.kept.decoded(shard, memoryview(content))
                merged = state if merged is None else merge(merged, state)
                if not alone:
                    tell(arms * shard.n)
        assert merged is not None  # a corpus has a shard
        return merged

    def _job(self, flow: Flow, reference: Vectors, candidate: Vectors) -> Job:
        pair = flow.pair
        with pair.candidate():
            second = pair.candidate_fingerprint()
        local = self.workers.engine == "local" and (self.workers.n or 1) > 1
        return Job(
            name=self.told["name"],
            device=self.told["device"],
            revision=self.told["revision"],
            settings=flow.settings,
            root=flow.store.root if self.told["keep"] else None,
            similarity=self.similarity,
            queries=(np.array(reference), np.array(candidate)),
            weights=(pair.fingerprint, second),
            runtime=dict(pair.runtime),
            layers=pair.made_layers if isinstance(pair, QuantizedPair) else None,
            query_only=pair.query_only,
            threads=threads_of(self.workers.n or 1) if local else None,
        )

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Whether the first of the contenders is the same; `once` is what the pass over the corpus scored."""
        positions, scores, _ = (part[rows, :depth] for part in state.reference_top())
        wanted = self.rerun(state, rows, depth)
        at = np.where(positions >= 0, np.searchsorted(wanted[1], positions), 0)
        repeated = scores_of(again[0], again[1][at], self.similarity)
        return noise_of_scores(np.nan_to_num(scores.astype(np.float64)), repeated, positions)

    def evidence(self, state: ScoreState, candidate: Arms, noise: Noise | None) -> Any:
        """The record per query, with names as the states have them."""
        named = replace(self, item_ids=_Names(self.shards, self.kept.names))
        # not super(): a dataclass with slots is another class than this one
        return Search.evidence(named, state, candidate, noise)
