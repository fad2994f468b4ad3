"""What the outputs of both arms are read as: a search, classes, or the order of shortlists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.cache import cache_file, read_cache
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.candidate.pair import Pair, QuantizedPair
from quantdrift.data.labelled import match_labels
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence.probe import LinearProbe
from quantdrift.evidence.record import Evidence, Noise
from quantdrift.measuring.flow import NOISE_DEPTH, Arms, Flow, Reading, assemble, compare_rankings, noise_of_scores
from quantdrift.measuring.problem import GapProblem, classification_problem, draw_queries, retrieval_problem
from quantdrift.models.inputs import Inputs, Rows, Vectors
from quantdrift.models.store import digest_of, keeping, key_of
from quantdrift.scoring.deployed import score_deployed
from quantdrift.scoring.ragged import Ragged
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import ScoreState, at_positions
from quantdrift.scoring.streamed import score_embeddings, score_matrix, score_ragged
from quantdrift.spec.grammar import options_of
from quantdrift.statistics.conformal import softmax_confidence

Both = tuple[Any, Any]
"""What the reference and the candidate make of one side."""

# --- Search ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Search(Reading):
    """Every query ranks the documents by the similarity of embeddings.

    Attributes:
        queries: what is searched for.
        documents: what is searched; the queries themselves if None.
        similarity: how embeddings become scores.
        excluded: per query one document position that does not count, or -1.
        rows: positions of the documents that it scores, increasing; all if None.
    """

    queries: Inputs
    documents: Inputs | None
    similarity: Similarity
    excluded: Rows | None = None
    rows: Rows | None = None

    @property
    def of(self) -> str:
        """What it compares, as stages name it."""
        return "vectors"

    @property
    def sides(self) -> tuple[Inputs, ...]:
        """Queries, and documents where they are others."""
        return (self.queries,) if self.documents is None else (self.queries, self.documents)

    def problem(self, flow: Flow, reference: Arms, chosen: Rows, n_contenders: int = 1) -> GapProblem:
        """The gaps that layers are measured on, of the queries at the positions `chosen`."""
        return retrieval_problem(
            flow.pair.encoder,
            self.queries,
            self.sides[-1],
            reference,
            similarity=self.similarity,
            chosen=chosen,
            batch_size=flow.settings.batch_size,
            n_contenders=n_contenders,
            excluded=self.excluded,
            query_only=flow.pair.query_only,
        )

    def ready(self, flow: Flow) -> Self:
        """Add names, and the similarity for the record; refuse what has nothing to rank, or no index of a part."""
        if self.rows is not None and flow.pair.vector_stages:
            raise UnsupportedError(
                "stored embeddings and indexes are measured on a whole corpus, and these are parts of one; leave "
                "these stages out"
            )
        for stage in flow.pair.vector_stages:
            if self.of not in stage.takes:
                written = ", ".join(options_of(stage.scheme, "vectors"))
                raise UnsupportedError(
                    f"{written}: this is done to {' or '.join(stage.takes)}, and this model makes {self.of}; leave it "
                    "out"
                )
        ids, item_ids = self.queries.ids, self.sides[-1].ids
        if not len(ids) or not len(item_ids):
            got = f"{len(ids)} queries and {len(item_ids)} documents"
            raise DataError(f"nothing to rank: {got}; expected at least one of each")
        return replace(self, ids=ids, item_ids=item_ids, record={"similarity": str(self.similarity), **self.record})

    def state(self, flow: Flow, reference: Arms, candidate: Arms) -> ScoreState:
        """Every query against every document that counts."""
        first: Any = reference[-1]
        second: Any = candidate[-1]
        excluded = self.excluded
        if self.rows is not None:
            if excluded is not None:  # by its place among the rows, -1 where it is not one of them
                place = np.searchsorted(self.rows, excluded).clip(max=len(self.rows) - 1)
                excluded = np.where(self.rows[place] == excluded, place, -1)
            # one object for both arms is how scoring knows that the index is not quantized
            shared, first = second is first, _some(first, self.rows)
            second = first if shared else _some(second, self.rows)
        state = self.scored(flow, (reference[0], candidate[0]), (first, second), excluded)
        return state if self.rows is None else at_positions(state, self.rows)

    def scored(self, flow: Flow, queries: Both, documents: Both, excluded: Rows | None) -> ScoreState:
        """The scores of queries and documents of either arm, as the candidate's stages have them."""
        how: Any = {"similarity": self.similarity, "k": flow.settings.k, "excluded": excluded}
        arms = tuple(zip(queries, documents, strict=True))
        if stages := flow.pair.vector_stages:
            with flow.stage("scoring", "indexing and scoring", len(queries[0])) as tell:
                return score_deployed(stages, *arms, **how, ids=self.item_ids, progress=tell)
        device = flow.pair.device if flow.pair.device.type == "cuda" else "cpu"
        with flow.stage("scoring", "scoring both arms", len(documents[0])) as tell:
            return score_embeddings(*queries, *documents, **how, device=device, progress=tell)

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """The queries, and documents that could be first."""
        contenders = state.reference_top()[0][rows, :depth]
        needed = np.unique(contenders[contenders >= 0])
        return (np.union1d(rows, needed),) if self.documents is None else (rows, needed)

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Whether the first of the contenders is the same."""
        contenders, wanted = state.reference_top()[0][rows, :depth], self.rerun(state, rows, depth)
        return compare_rankings(
            (once[0][rows], once[-1][wanted[-1]]),
            (again[0][np.searchsorted(wanted[0], rows)], again[-1]),
            np.where(contenders >= 0, np.searchsorted(wanted[-1], contenders), -1),
            self.similarity,
        )


@runtime_checkable
class ReadOtherwise(Protocol):
    """A model whose outputs are read otherwise than by one vector each."""

    def reading(self, search: Search) -> Reading:
        """Return how its outputs are read in place of a search by one vector each."""


def calibration_queries(pair: Pair, queries: Inputs, held_out: Rows | None = None) -> tuple[list[Inputs], Rows | None]:
    """The queries that a tower of their own is calibrated on, and the positions that rates are then over.

    A quarter is drawn, or those that are not held out; none where the scheme needs no calibration.
    """
    if not isinstance(pair, QuantizedPair) or not pair.needs_calibration:
        return [], held_out
    n = len(queries.ids)
    rows = draw_queries(n, wanted=n, seed=int(pair.scheme.option("seed") or 0), held_out=held_out)
    return [queries.part(rows)], np.setdiff1d(np.arange(n), rows) if held_out is None else held_out


@dataclass(frozen=True, slots=True)
class _Some:
    """Some rows of an array, taken a tile at a time, so that a memory map stays on disk."""

    array: Any
    rows: Rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        return self.array[self.rows[at]]


def _some(array: Any, rows: Rows) -> Any:
    return array[rows] if isinstance(array, Ragged) else _Some(array, rows)


# --- Classes --------------------------------------------------------------------------------------

STRENGTH = 1.0
"""C of the logistic regression, the inverse of the regularization."""
MOST_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """Makes logits of what a model puts out, the same way for both arms.

    Attributes:
        classes: names, by logit.
        linear: a probe of embeddings, or a head that is left alone; without one, outputs are logits.
        record: how logits were had, for run.json.
        notes: what a run says of it.
    """

    classes: tuple[str, ...]
    linear: LinearProbe | None = None
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def logits(self, outputs: Vectors) -> NDArray[np.float32]:
        """Logits [n, n_classes] of outputs [n, dim]."""
        return np.asarray(outputs) if self.linear is None else self.linear.logits(outputs)

    def graph(self, outputs: Tensor) -> Tensor:
        """Logits of outputs [..., dim], differentiable."""
        if self.linear is None:
            return outputs
        weight, bias = torch.from_numpy(self.linear.weight), torch.from_numpy(self.linear.bias)
        return outputs @ weight.to(outputs).T + bias.to(outputs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes(Reading):
    """Every input ranks all classes by logit.

    Attributes:
        inputs: what is classified.
        split: they are of.
        head: how classes are read; a linear probe is fitted to the train inputs if None.
        train: inputs to fit a probe to, and to choose widths on.
        train_labels: of these.
        labels: of the inputs, where they are known.
    """

    inputs: Inputs
    split: str = "test"
    head: Head | None
    train: Inputs | None = None
    train_labels: Sequence[str] = ()
    labels: Sequence[str] | None = None

    @property
    def sides(self) -> tuple[Inputs, ...]:
        """The inputs."""
        return (self.inputs,)

    @property
    def read_by(self) -> Head:
        """The head; once the reading is ready."""
        assert self.head is not None  # `ready` has fitted one
        return self.head

    def problem(self, flow: Flow, reference: Arms, chosen: Rows, n_contenders: int = 1) -> GapProblem:
        """The gaps that layers are measured on, of the train inputs at the positions `chosen`."""
        del reference
        assert self.train is not None  # whoever chose them has looked
        part, size = self.train.part(chosen), flow.settings.batch_size
        outputs = flow.run(part, np.arange(len(chosen)), size)
        return classification_problem(
            flow.pair.encoder, part, outputs, logits=self.read_by.graph, batch_size=size, n_contenders=n_contenders
        )

    def shown(self, side: Inputs) -> str:
        """The part of the data, and what the model puts out."""
        del side
        return f"{self.split} {self.what}"

    def ready(self, flow: Flow) -> Self:
        """Add a head, and labels as the head spells them; refuse to calibrate on what is evaluated."""
        if not self.calibration and flow.pair.needs_calibration:
            raise DataError(
                "this scheme is calibrated on inputs of the train part, never on those it is evaluated on, and "
                f"{self.dataset} has no train part; add one (train.jsonl, train/CLASS/, x_train), name a file of texts "
                "(+calib=FILE.txt), or use a data-free scheme (rtn or hqq, without A8 or with +act=token)"
            )
        head = self.head or self._probe(flow)
        labels, notes = self.labels, head.notes
        if labels is not None:
            labels, note = match_labels(labels, head.classes, positions=head.record["reading"] == "logits")
            notes = notes if note is None else (*notes, note)
        return replace(
            self,
            head=head,
            probe=head.linear,
            ids=self.inputs.ids,
            item_ids=head.classes,
            record=head.record,
            notes=notes,
            counts={"n_classes": len(head.classes)},
            qrels=None if labels is None else _qrels(self.inputs.ids, labels),
        )

    def _probe(self, flow: Flow) -> Head:
        assert self.train is not None  # there are labels of it
        weights = flow.pair.fingerprint
        vectors = flow.vectors(self.train, "reference", weights, f"train {self.what}")
        key = flow.key(self.train, self.train.order(), weights, flow.settings.batch_size)
        with flow.stage("linear probe", "fitting the linear probe", 1) as tell:
            probe, accuracy = fitted_probe(vectors, self.train_labels, key=key, root=flow.store.root)
            tell(1)
        made = {"C": STRENGTH, "most_steps": MOST_STEPS, "converged": probe.converged, "train_accuracy": accuracy}
        unsure = "the linear probe did not converge; another fit could give other logits"
        return Head(
            classes=probe.classes,
            linear=probe,
            record={"reading": "linear probe", "probe": {**made, "digest": probe.digest}},
            notes=() if probe.converged else (unsure,),
        )

    def state(self, flow: Flow, reference: Arms, candidate: Arms) -> ScoreState:
        """Every input against every class."""
        logits = self.read_by.logits
        return score_matrix(logits(reference[0]), logits(candidate[0]), k=flow.settings.k)

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """The inputs."""
        del state, depth
        return (rows,)

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Whether the first class is the same."""
        del state, depth
        first, second = self.read_by.logits(once[0][rows]), self.read_by.logits(again[0])
        epsilon = np.abs(first.astype(np.float64) - second).max(axis=1).astype(np.float32)
        return Noise(flips=first.argmax(axis=1) != second.argmax(axis=1), epsilon=epsilon)

    def evidence(self, state: ScoreState, candidate: Arms, noise: Noise | None) -> Evidence:
        """The record per input, with the candidate's confidence."""
        # not super(): a dataclass with slots is another class than this one
        return _confident(Reading.evidence(self, state, candidate, noise), self.read_by.logits(candidate[0]))


def evidence_of_logits(
    reference: NDArray[np.float32],
    candidate: NDArray[np.float32],
    *,
    input_ids: Sequence[str],
    classes: Sequence[str],
    labels: Sequence[str] | None = None,
    depth: int = 200,
) -> Evidence:
    """Evidence of a classifier: every input ranks all classes by logit."""
    state = score_matrix(reference, candidate, k=depth)
    qrels = None if labels is None else _qrels(input_ids, labels)
    return _confident(assemble(state, input_ids=input_ids, item_ids=classes, qrels=qrels), candidate)


def _qrels(ids: Sequence[str], labels: Sequence[str]) -> dict[str, dict[str, int]]:
    return {name: {label: 1} for name, label in zip(ids, labels, strict=True)}


def _confident(evidence: Evidence, logits: NDArray[np.float32]) -> Evidence:
    if logits.shape[1] < 2:  # noqa: PLR2004 -- one class is sure of itself
        return evidence
    return replace(evidence, confidence=softmax_confidence(logits))


def fitted_probe(
    embeddings: Vectors, labels: Sequence[str], *, key: str | None, root: Path | None
) -> tuple[LinearProbe, float]:
    """The probe of embeddings and its accuracy on them; fitted unless it is kept below `root`."""
    probe = path = None
    if key is not None and root is not None:
        library = version_of("scikit-learn") or ""  # fitting says what is missing
        made = {"strength": STRENGTH, "most_steps": MOST_STEPS, "library": library}
        name = key_of(version=1, embeddings=key, labels=digest_of(labels), **made)
        path = root / "probes" / name[:2] / f"{name}.npz"
        probe = read_cache(path, LinearProbe.of)
    if probe is None:
        probe = LinearProbe.fit(embeddings, labels, strength=STRENGTH, most_steps=MOST_STEPS)
        if path is not None:
            with keeping(path.parent), cache_file(path) as partial:
                probe.save(partial)
    chosen = probe.logits(embeddings).argmax(axis=1)
    return probe, float((np.array(probe.classes)[chosen] == np.array(labels, dtype=str)).mean())


# --- Shortlists -----------------------------------------------------------------------------------

OPENING = 12
"""Words of a document that stand for a query, where a model reads both together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist(Reading):
    """Every query ranks the documents of its own shortlist by the score of query and document together.

    Attributes:
        document_rows: positions of the documents of one query after another, increasing within each.
        starts: where each query's pairs begin, and the end.
        pairs: the query-document pairs, in the order of `document_rows`.
    """

    document_rows: Rows
    starts: Rows
    pairs: Inputs

    @property
    def sides(self) -> tuple[Inputs, ...]:
        """The pairs."""
        return (self.pairs,)

    def ready(self, flow: Flow) -> Self:
        """Refuse shortlists without a document; nothing is missing otherwise."""
        del flow
        if not len(self.document_rows):
            raise DataError("nothing to rerank: the shortlists hold no document")
        return self

    def state(self, flow: Flow, reference: Arms, candidate: Arms) -> ScoreState:
        """Every query against its own shortlist."""
        once, low = np.asarray(reference[0])[:, 0], np.asarray(candidate[0])[:, 0]
        rows = [(self.document_rows[a:b], once[a:b], low[a:b]) for a, b in pairwise(self.starts.tolist())]
        return score_ragged(rows, k=flow.settings.k)

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """Pairs of documents that could be first."""
        numbers = self._numbers(state.reference_top()[0][rows, :depth], rows)
        return (np.unique(numbers[numbers >= 0]),)

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Whether the first of the contenders is the same."""
        positions = state.reference_top()[0][rows, :depth]
        numbers, (needed,) = self._numbers(positions, rows).clip(min=0), self.rerun(state, rows, depth)
        places = np.searchsorted(needed, numbers).clip(max=len(needed) - 1)
        first, second = (np.asarray(arm[0])[:, 0].astype(np.float64) for arm in (once, again))
        return noise_of_scores(first[numbers], second[places], positions)

    def _numbers(self, positions: Rows, rows: Rows) -> Rows:
        """Numbers of the pairs of some queries with these documents [n_rows, depth]; -1 where a position is -1."""
        numbers = np.full(positions.shape, -1, dtype=np.int64)
        for place, (row, wanted) in enumerate(zip(rows.tolist(), positions, strict=True)):
            listed = self.document_rows[self.starts[row] : self.starts[row + 1]]
            numbers[place, wanted >= 0] = self.starts[row] + np.searchsorted(listed, wanted[wanted >= 0])
        return numbers


def shortlist_of(
    dataset: RetrievalDataset,
    lists: Mapping[str, Sequence[str]],
    *,
    record: Mapping[str, object],
    texts: Sequence[str] | None = None,
) -> Shortlist:
    """The reading of shortlists, query to documents; calibrated on documents of the data unless there are texts."""
    queries = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    position = {name: row for row, name in enumerate(dataset.document_ids)}
    rows = [np.sort(np.array([position[name] for name in names], dtype=np.int64)) for names in lists.values()]
    pairs = [(query, row) for query, of_query in zip(lists, rows, strict=True) for row in of_query.tolist()]
    # a document is asked for by its own first words, so that no query is used
    asked = [(opening_of(text), text) for text in (dataset.documents if texts is None else texts)]
    return Shortlist(
        what="scores",
        ids=tuple(lists),
        item_ids=dataset.document_ids,
        counts={"n_queries": len(lists), "n_pairs": len(pairs)},
        document_rows=np.concatenate([np.empty(0, dtype=np.int64), *rows]),
        starts=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        pairs=pair_inputs(
            [(queries[query], dataset.documents[row]) for query, row in pairs],
            ids=[f"{query} with {dataset.document_ids[row]}" for query, row in pairs],
        ),
        record=record,
        calibration=(pair_inputs(asked),),
        qrels=dataset.qrels or None,
        dataset=dataset.name,
    )


def pair_inputs(pairs: Sequence[tuple[str, str]], *, ids: Sequence[str] | None = None) -> Inputs:
    """Query-document pairs, for a model that scores both together."""
    return Inputs(
        role="pair",
        ids=tuple(map(str, range(len(pairs)))) if ids is None else ids,
        items=pairs,
        digest={"pairs": digest_of(text for pair in pairs for text in pair)},
        lengths=np.array([len(query) + len(document) for query, document in pairs], dtype=np.int64),
    )


def opening_of(text: str) -> str:
    """The first words of a document, in place of a query; a dot where it has none."""
    return " ".join(text.split()[:OPENING]) or "."
