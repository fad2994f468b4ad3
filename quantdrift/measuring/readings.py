"""The ways to read the outputs of both arms: as a search, as classes, or as the order of shortlists."""

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
from quantdrift.measuring.problem import GapProblem, draw_queries, gap_of, gap_problem
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
"""The outputs of reference and candidate for one side."""

# --- Search ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Search(Reading):
    """Every query ranks the documents by the similarity of embeddings.

    Attributes:
        queries: the queries.
        documents: the documents; the queries themselves if None.
        similarity: the score of two embeddings.
        excluded: one document position per query that does not count, or -1.
        rows: positions of the documents to score, increasing; all if None.
    """

    queries: Inputs
    documents: Inputs | None
    similarity: Similarity
    excluded: Rows | None = None
    rows: Rows | None = None

    @property
    def of(self) -> str:
        """The kind of outputs that it compares, as stages name it."""
        return "vectors"

    @property
    def sides(self) -> tuple[Inputs, ...]:
        """The queries, and the documents if they are not the queries."""
        return (self.queries,) if self.documents is None else (self.queries, self.documents)

    def problem(self, flow: Flow, reference: Arms, chosen: Rows, n_contenders: int = 1) -> GapProblem:
        """Return the gaps between the first document and the next ones, for the queries at the positions `chosen`.

        With `+query` the documents stay at the reference's embeddings.
        """
        asked, index = np.asarray(reference[0])[chosen], reference[-1]
        excluded, similarity = None if self.excluded is None else self.excluded[chosen], self.similarity
        k = n_contenders + 1
        state = score_embeddings(asked, asked, index, index, similarity=similarity, k=k, excluded=excluded)
        tops = state.reference_top()[0]  # [n_inputs, up to n_contenders + 1], -1 behind the last
        valid = (tops[:, 1:] >= 0) & (tops[:, :1] >= 0)
        if not valid.any():
            raise DataError("no calibration query has two documents, so there is no gap to measure")
        sides, roles = [self.queries.part(chosen)], [np.broadcast_to(np.arange(len(chosen))[:, None], valid.shape)]
        fixed = torch.from_numpy(np.asarray(index)[np.maximum(tops, 0)]) if flow.pair.query_only else None
        if fixed is None:
            needed = np.unique(tops[tops >= 0])
            places = len(chosen) + np.searchsorted(needed, tops)
            sides.append(self.sides[-1].part(needed))
            roles += [np.broadcast_to(places[:, :1], valid.shape), places[:, 1:]]
            asked = np.concatenate([asked, np.asarray(index)[needed]])

        def gap(outputs: Tensor) -> Tensor:
            if fixed is None:
                return gap_of(outputs[:, :, 0], outputs[:, :, 1], outputs[:, :, 2], similarity)
            ranked = fixed.to(outputs)
            return gap_of(outputs[:, :, 0], ranked[:, :1], ranked[:, 1:], similarity)

        size = flow.settings.batch_size
        return gap_problem(flow.pair.encoder, sides, roles, gap, batch_size=size, valid=valid, reference=asked)

    def ready(self, flow: Flow) -> Self:
        """Add names, and the similarity for the record; refuse empty data, and stages that the outputs do not fit."""
        if self.rows is not None and flow.pair.vector_stages:
            raise UnsupportedError(
                "stored embeddings and indexes are measured on a whole corpus, and these are parts of one; leave "
                "these stages out"
            )
        for stage in flow.pair.vector_stages:
            if self.of not in stage.takes:
                written = ", ".join(options_of(stage.scheme, "vectors"))
                raise UnsupportedError(
                    f"{written}: this applies to {' or '.join(stage.takes)}, and this model makes {self.of}; leave it "
                    "out"
                )
        ids, item_ids = self.queries.ids, self.sides[-1].ids
        if not len(ids) or not len(item_ids):
            got = f"{len(ids)} queries and {len(item_ids)} documents"
            raise DataError(f"nothing to rank: {got}; expected at least one of each")
        return replace(self, ids=ids, item_ids=item_ids, record={"similarity": str(self.similarity), **self.record})

    def of_inputs(self, rows: Rows) -> Self:
        """Return the search of some queries alone."""
        queries, excluded = self.queries.part(rows), None if self.excluded is None else self.excluded[rows]
        counts, documents = {"n_queries": len(rows)}, self.sides[-1]
        return replace(self, queries=queries, documents=documents, excluded=excluded, ids=queries.ids, counts=counts)

    def state(self, flow: Flow, reference: Arms, candidate: Arms) -> ScoreState:
        """Score every query against every document that counts."""
        first: Any = reference[-1]
        second: Any = candidate[-1]
        excluded = self.excluded
        if self.rows is not None:
            if excluded is not None:  # now the place among the rows, or -1
                place = np.searchsorted(self.rows, excluded).clip(max=len(self.rows) - 1)
                excluded = np.where(self.rows[place] == excluded, place, -1)
            # one object for both arms is how scoring knows that the index is not quantized
            shared, first = second is first, _some(first, self.rows)
            second = first if shared else _some(second, self.rows)
        state = self.scored(flow, (reference[0], candidate[0]), (first, second), excluded)
        return state if self.rows is None else at_positions(state, self.rows)

    def scored(self, flow: Flow, queries: Both, documents: Both, excluded: Rows | None) -> ScoreState:
        """Score queries against documents in both arms, through the candidate's stages."""
        how: Any = {"similarity": self.similarity, "k": flow.settings.k, "excluded": excluded}
        arms = tuple(zip(queries, documents, strict=True))
        if stages := flow.pair.vector_stages:
            with flow.stage("scoring", "indexing and scoring", len(queries[0])) as tell:
                return score_deployed(stages, *arms, **how, ids=self.item_ids, progress=tell)
        device = flow.pair.device if flow.pair.device.type == "cuda" else "cpu"
        with flow.stage("scoring", "scoring both arms", len(documents[0])) as tell:
            return score_embeddings(*queries, *documents, **how, device=device, progress=tell)

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """Return the queries and the documents that could be first."""
        contenders = state.reference_top()[0][rows, :depth]
        needed = np.unique(contenders[contenders >= 0])
        return (np.union1d(rows, needed),) if self.documents is None else (rows, needed)

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Compare the first of the contenders in both runs."""
        contenders, wanted = state.reference_top()[0][rows, :depth], self.rerun(state, rows, depth)
        return compare_rankings(
            (once[0][rows], once[-1][wanted[-1]]),
            (again[0][np.searchsorted(wanted[0], rows)], again[-1]),
            np.where(contenders >= 0, np.searchsorted(wanted[-1], contenders), -1),
            self.similarity,
        )


@runtime_checkable
class ReadOtherwise(Protocol):
    """A model whose outputs are not one vector per input."""

    def reading(self, search: Search) -> Reading:
        """Return the reading of its outputs that takes the place of a search by vectors."""


def calibration_queries(pair: Pair, queries: Inputs, held_out: Rows | None = None) -> tuple[list[Inputs], Rows | None]:
    """Draw queries to calibrate their own tower on; return them, and the positions that rates are then over.

    They are a quarter of the queries, or all that are not held out; none if the scheme needs no calibration.
    """
    if not isinstance(pair, QuantizedPair) or not pair.needs_calibration:
        return [], held_out
    n = len(queries.ids)
    rows = draw_queries(n, wanted=n, seed=int(pair.scheme.option("seed") or 0), held_out=held_out)
    return [queries.part(rows)], np.setdiff1d(np.arange(n), rows) if held_out is None else held_out


@dataclass(frozen=True, slots=True)
class _Some:
    """Some rows of an array, read a tile at a time, so that a memory map stays on disk."""

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
"""Parameter C of the logistic regression, the inverse of the regularization."""
MOST_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """Turns the outputs of a model into logits, in the same way for both arms.

    Attributes:
        classes: names of the classes, in the order of logits.
        linear: a linear probe of embeddings, or a linear head that is not quantized; without one outputs are logits.
        record: the source of the logits, for run.json.
        notes: sentences for the output of a run.
    """

    classes: tuple[str, ...]
    linear: LinearProbe | None = None
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def logits(self, outputs: Vectors) -> NDArray[np.float32]:
        """Compute logits [n, n_classes] of outputs [n, dim]."""
        return np.asarray(outputs) if self.linear is None else self.linear.logits(outputs)

    def graph(self, outputs: Tensor) -> Tensor:
        """Compute logits of outputs [..., dim], differentiably."""
        if self.linear is None:
            return outputs
        weight, bias = torch.from_numpy(self.linear.weight), torch.from_numpy(self.linear.bias)
        return outputs @ weight.to(outputs).T + bias.to(outputs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes(Reading):
    """Every input ranks all classes by logit.

    Attributes:
        inputs: the inputs to classify.
        split: name of their split.
        head: the head that gives logits; if None, a linear probe is fitted to the train inputs.
        train: inputs to fit a probe to and to choose widths on.
        train_labels: labels of the train inputs.
        labels: labels of the inputs, if they are known.
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
        """The head of a reading that is ready."""
        assert self.head is not None  # `ready` has fitted one
        return self.head

    def problem(self, flow: Flow, reference: Arms, chosen: Rows, n_contenders: int = 1) -> GapProblem:
        """Return the gaps between the first class and the next ones, for the train inputs at the positions `chosen`.

        gap_c = logit of the reference's first class - logit of its class c + 1, for at most `n_contenders` classes.
        """
        assert self.train is not None  # whoever chose them has looked
        inputs, size, logits = self.train.part(chosen), flow.settings.batch_size, self.read_by.graph
        outputs = flow.run(inputs, np.arange(len(chosen)), size)
        with torch.no_grad():
            scores = logits(torch.from_numpy(np.array(outputs)))
        tops = torch.argsort(scores, dim=1, descending=True, stable=True)[:, : n_contenders + 1]
        n_others = tops.shape[1] - 1

        def gap(outputs_of_rows: Tensor) -> Tensor:
            scored = logits(outputs_of_rows[:, :, 0])  # [n_inputs, n_contenders, n_classes]
            ranked = tops.to(scored.device)
            best = scored.gather(2, ranked[:, :1, None].expand(-1, n_others, 1))
            return (best - scored.gather(2, ranked[:, 1:, None]))[..., 0]

        rows = np.broadcast_to(np.arange(len(chosen))[:, None], (len(chosen), n_others))
        return gap_problem(
            flow.pair.encoder,
            [inputs],
            [rows],
            gap,
            batch_size=size,
            valid=np.ones(rows.shape, dtype=np.bool_),
            reference=np.asarray(outputs),
        )

    def shown(self, side: Inputs) -> str:
        """Return the split of the data and the kind of outputs."""
        return f"{self.split} {self.what}"

    def ready(self, flow: Flow) -> Self:
        """Add a head, and labels as the head spells them; refuse to calibrate on inputs that are evaluated."""
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

    def of_inputs(self, rows: Rows) -> Self:
        """Return the classification of some inputs alone."""
        inputs = self.inputs.part(rows)
        return replace(self, inputs=inputs, ids=inputs.ids, counts={**self.counts, "n_inputs": len(rows)})

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
        """Score every input against every class."""
        logits = self.read_by.logits
        return score_matrix(logits(reference[0]), logits(candidate[0]), k=flow.settings.k)

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """The inputs."""
        return (rows,)

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Compare the first class in both runs."""
        first, second = self.read_by.logits(once[0][rows]), self.read_by.logits(again[0])
        epsilon = np.abs(first.astype(np.float64) - second).max(axis=1).astype(np.float32)
        return Noise(flips=first.argmax(axis=1) != second.argmax(axis=1), epsilon=epsilon)

    def evidence(self, state: ScoreState, candidate: Arms, noise: Noise | None) -> Evidence:
        """Return the record per input, with the candidate's confidence."""
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
    """Make evidence of a classifier's logits: every input ranks all classes."""
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
    """Return a linear probe of embeddings and its accuracy on them; fit it unless it is kept below `root`."""
    probe = path = None
    if key is not None and root is not None:
        library = version_of("scikit-learn") or ""  # a missing one is reported by fitting
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
"""Words at the start of a document that replace a query when a reranker is calibrated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist(Reading):
    """Every query ranks the documents of its own shortlist by the score of query and document together.

    Attributes:
        document_rows: positions of documents, one query after another, increasing within each query.
        starts: start of each query's pairs, and the end of the last.
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
        """Refuse shortlists without a document."""
        if not len(self.document_rows):
            raise DataError("nothing to rerank: the shortlists hold no document")
        return self

    def of_inputs(self, rows: Rows) -> Self:
        """Return the shortlists of some queries alone."""
        pairs = np.concatenate([np.arange(self.starts[row], self.starts[row + 1]) for row in rows.tolist()])
        shortlists = replace(self, ids=[self.ids[row] for row in rows.tolist()], pairs=self.pairs.part(pairs))
        starts, counts = np.cumsum([0, *np.diff(self.starts)[rows]]), {"n_queries": len(rows), "n_pairs": len(pairs)}
        return replace(shortlists, document_rows=self.document_rows[pairs], starts=starts, counts=counts)

    def state(self, flow: Flow, reference: Arms, candidate: Arms) -> ScoreState:
        """Score every query against its own shortlist."""
        once, low = np.asarray(reference[0])[:, 0], np.asarray(candidate[0])[:, 0]
        rows = [(self.document_rows[a:b], once[a:b], low[a:b]) for a, b in pairwise(self.starts.tolist())]
        return score_ragged(rows, k=flow.settings.k)

    def rerun(self, state: ScoreState, rows: Rows, depth: int = NOISE_DEPTH) -> tuple[Rows, ...]:
        """Return the pairs whose documents could be first."""
        numbers = self._numbers(state.reference_top()[0][rows, :depth], rows)
        return (np.unique(numbers[numbers >= 0]),)

    def noise(self, state: ScoreState, once: Arms, again: Arms, rows: Rows, depth: int = NOISE_DEPTH) -> Noise:
        """Compare the first of the contenders in both runs."""
        positions = state.reference_top()[0][rows, :depth]
        numbers, (needed,) = self._numbers(positions, rows).clip(min=0), self.rerun(state, rows, depth)
        places = np.searchsorted(needed, numbers).clip(max=len(needed) - 1)
        first, second = (np.asarray(arm[0])[:, 0].astype(np.float64) for arm in (once, again))
        return noise_of_scores(first[numbers], second[places], positions)

    def _numbers(self, positions: Rows, rows: Rows) -> Rows:
        """Return the numbers of the pairs of some queries with documents [n_rows, depth]; -1 for a position of -1."""
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
    """Make the reading of shortlists, query to documents; calibration is on `texts`, or on documents of the data."""
    queries = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    position = {name: row for row, name in enumerate(dataset.document_ids)}
    rows = [np.sort(np.array([position[name] for name in names], dtype=np.int64)) for names in lists.values()]
    pairs = [(query, row) for query, of_query in zip(lists, rows, strict=True) for row in of_query.tolist()]
    # the first words of a document replace a query, so that no query of the data is used
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
    """Make inputs of query-document pairs, for a model that scores both together."""
    return Inputs(
        role="pair",
        ids=tuple(map(str, range(len(pairs)))) if ids is None else ids,
        items=pairs,
        digest={"pairs": digest_of(text for pair in pairs for text in pair)},
        lengths=np.array([len(query) + len(document) for query, document in pairs], dtype=np.int64),
    )


def opening_of(text: str) -> str:
    """Return the first words of a document, in place of a query; a dot if it has none."""
    return " ".join(text.split()[:OPENING]) or "."
