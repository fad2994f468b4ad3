"""Laws of scoring: streamed in any tiles, blocks and parts, it is the dense computation, exactly.

Keys pack a score with a position. Embeddings hold small whole numbers, so every product is exact in float32 and ties
are frequent: equality means bit for bit, ties in order of position in the whole corpus."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from quantdrift.asking.subsets import nested_subset
from quantdrift.base.progress import Silent
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.measuring.flow import Flow, assemble
from quantdrift.measuring.readings import Search
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import ScoreState, merge
from quantdrift.scoring.streamed import score_embeddings, score_matrix, score_ragged
from quantdrift.scoring.topk import EMPTY, pack, unpack
from support.small_evidence import assert_same
from support.worlds import rows_of

# --- packed keys: their order as integers is the ranking order, and nothing is lost ------------------


LAST = 2**32 - 1
SCORES = st.floats(width=32, allow_nan=False)  # infinities and denormals included
POSITIONS = st.integers(0, LAST) | st.sampled_from([0, 1, 2**31 - 1, 2**31, LAST])
ITEMS = st.lists(st.tuples(SCORES, POSITIONS), min_size=1, max_size=30, unique_by=lambda x: x[1])

TINY = 2.0**-149  # the least denormal
INFINITE = float("inf")


def keys_of(items: list[tuple[float, int]]) -> torch.Tensor:
    scores = torch.tensor([score for score, _ in items], dtype=torch.float32)
    return pack(scores, torch.tensor([position for _, position in items]))


@example([(0.0, 2), (-0.0, 1), (0.0, 0)])
@example([(TINY, LAST), (-TINY, 0), (0.0, LAST - 1), (-0.0, 1)])
@example([(-INFINITE, LAST), (INFINITE, LAST - 1), (-INFINITE, 0), (INFINITE, 0)])
@given(ITEMS)
def test_keys_sort_by_score_and_then_by_position(items: list[tuple[float, int]]) -> None:
    order = keys_of(items).sort(descending=True).indices.tolist()
    ranked = sorted(items, key=lambda item: (-item[0], item[1]))
    assert [items[place] for place in order] == ranked


@example([(-0.0, LAST)])
@example([(-TINY, 0)])
@given(ITEMS)
def test_what_is_packed_is_unpacked_bit_for_bit(items: list[tuple[float, int]]) -> None:
    scores, positions = unpack(keys_of(items))
    assert positions.tolist() == [position for _, position in items]
    wanted = np.array([score for score, _ in items], dtype=np.float32) + np.float32(0)  # no -0.0
    assert scores.numpy().tobytes() == wanted.tobytes()


@example([(-INFINITE, LAST)])
@given(ITEMS)
def test_an_empty_place_is_below_every_item(items: list[tuple[float, int]]) -> None:
    assert int(keys_of(items).min()) > EMPTY


# --- a state of both arms ----------------------------------------------------------------------------


Floats = NDArray[np.float32]
DIM = 4
# Whole multiples of these have a norm that is a power of two, or 0: their cosines are exact too.
DIRECTIONS = np.array(
    [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, -1, 0], [0, 2, 0, 0]]
    + [[a, b, c, 1] for a in (1, -1) for b in (1, -1) for c in (1, -1)],
    dtype=np.float32,
)


@dataclass(frozen=True)
class Case:
    """Embeddings of both arms, and everything that may not change the result."""

    queries: tuple[Floats, Floats]
    documents: tuple[Floats, Floats]
    similarity: Similarity
    k: int
    excluded: NDArray[np.int64] | None
    layout: dict[str, int]

    def score(self, rows: slice = slice(None)) -> ScoreState:
        documents = [part[rows] for part in self.documents]
        if self.documents[0] is self.documents[1]:
            documents[1] = documents[0]
        with laid_out(**self.layout):
            how = {"similarity": self.similarity, "k": self.k, "excluded": self.excluded, "offset": rows.start or 0}
            return score_embeddings(*self.queries, *documents, **how)

    def dense(self) -> tuple[Floats, Floats]:
        """Both score matrices; NaN where an item does not count."""
        matrices = []
        for queries, documents in zip(self.queries, self.documents, strict=True):
            q, d = queries.astype(np.float64), documents.astype(np.float64)
            if self.similarity is Similarity.EUCLIDEAN:
                squares = ((q[:, None, :] - d[None, :, :]) ** 2).sum(axis=2)
                # torch's own root: on some processors its last digit is not numpy's
                scores = -torch.from_numpy(squares.astype(np.float32)).sqrt().numpy()
            else:
                if self.similarity is Similarity.COSINE:
                    q, d = (x / np.maximum(np.linalg.norm(x, axis=1)[:, None], 1e-9) for x in (q, d))
                scores = (q @ d.T).astype(np.float32)
            if self.excluded is not None:
                rows = np.flatnonzero(self.excluded >= 0)
                scores[rows, self.excluded[rows]] = np.nan
            matrices.append(scores)
        return matrices[0], matrices[1]


@contextmanager
def laid_out(tile: int, block: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TILE": tile, "QUERY_BLOCK": block}.items():
            patch.setattr(f"quantdrift.scoring.streamed.{name}", value)
        yield


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n_queries, n_docs = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    similarity = draw(st.sampled_from(Similarity))

    def embeddings(n: int) -> Floats:
        if similarity is not Similarity.COSINE:
            return draw(arrays(np.float32, (n, DIM), elements=st.integers(-2, 2)))
        picks = draw(arrays(np.int64, n, elements=st.integers(0, len(DIRECTIONS) - 1)))
        return DIRECTIONS[picks] * draw(st.sampled_from([1, 3]))

    documents = embeddings(n_docs)
    excluded = st.none() | arrays(np.int64, n_queries, elements=st.integers(-1, n_docs - 1))
    layout = {
        "tile": draw(st.sampled_from([1, 2, 5, 16, 32])),  # stripes need a multiple of 16
        "block": draw(st.sampled_from([1, 2, 8])),
    }
    return Case(
        queries=(embeddings(n_queries), embeddings(n_queries)),
        documents=(documents, documents if draw(st.booleans()) else embeddings(n_docs)),
        similarity=similarity,
        k=draw(st.integers(1, 12)),
        excluded=draw(excluded),
        layout=layout,
    )


def expected(reference: Floats, candidate: Floats, k: int) -> dict[str, NDArray[Any]]:
    """Return what a state must hold, from whole score matrices with NaN for items that do not count."""
    delta = candidate - reference
    wanted: dict[str, NDArray[Any]] = {"n_items": (~np.isnan(delta)).sum(axis=1)}
    for arm, scores in (("reference", reference), ("candidate", candidate)):
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # NaN comes last
        tops = [np.take_along_axis(x, order, 1) for x in (reference, candidate)]
        shape = (len(scores), k)
        positions, tops_padded = np.full(shape, -1), np.full((2, *shape), np.nan, np.float32)
        positions[:, : order.shape[1]] = np.where(np.isnan(tops[0]), -1, order)
        tops_padded[:, :, : order.shape[1]] = tops
        wanted |= {arm: positions, f"{arm}_r": tops_padded[0], f"{arm}_c": tops_padded[1]}
    wanted["delta_min"] = np.where(np.isnan(delta), np.inf, delta).min(axis=1)
    wanted["delta_max"] = np.where(np.isnan(delta), -np.inf, delta).max(axis=1)
    return wanted


def content(state: ScoreState) -> dict[str, NDArray[Any]]:
    arrays_of_state: dict[str, NDArray[Any]] = {}
    for arm, top in (("reference", state.reference_top()), ("candidate", state.candidate_top())):
        arrays_of_state |= dict(zip((arm, f"{arm}_r", f"{arm}_c"), top, strict=True))
    for name in ("n_items", "delta_min", "delta_max"):
        arrays_of_state[name] = getattr(state, name).numpy()
    return arrays_of_state


def assert_equal(left: dict[str, NDArray[Any]], right: dict[str, NDArray[Any]]) -> None:
    for name, values in left.items():
        np.testing.assert_array_equal(values, right[name], err_msg=name)


@given(cases())
def test_streamed_is_dense(case: Case) -> None:
    assert_equal(content(case.score()), expected(*case.dense(), case.k))


@given(st.integers(0, 10**6), st.sampled_from([64, 80, 128]))
def test_streamed_is_dense_over_many_tiles(seed: int, tile: int) -> None:
    rng = np.random.default_rng(seed)
    n_docs = int(rng.integers(300, 900))
    documents = rng.integers(-9, 10, (n_docs, DIM)).astype(np.float32)
    if rng.random() < 0.5:  # from the worst to the best: every tile brings a new top-K
        documents = documents[np.argsort(documents.sum(axis=1), kind="stable")]
    case = Case(
        queries=(np.ones((3, DIM), np.float32), rng.integers(-3, 4, (3, DIM)).astype(np.float32)),
        documents=(documents, documents + rng.integers(-1, 2, documents.shape).astype(np.float32)),
        similarity=Similarity.DOT,
        k=int(rng.integers(1, 80)),
        excluded=None,
        layout={"tile": tile, "block": 2},
    )
    assert_equal(content(case.score()), expected(*case.dense(), case.k))


@given(cases(), st.data())
def test_merging_parts_is_one_pass_over_all(case: Case, data: st.DataObject) -> None:
    n_docs = len(case.documents[0])
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, n_docs - 1)), max_size=2)))
    edges = [0, *(cut for cut in cuts if cut < n_docs), n_docs]
    parts = [case.score(slice(*pair)) for pair in pairwise(edges)]
    whole = content(case.score())
    forward = backward = parts[0]
    for part in parts[1:]:
        forward, backward = merge(forward, part), merge(part, backward)
    assert_equal(content(forward), whole)
    assert_equal(content(backward), whole)  # commutative
    if len(parts) == 3:  # associative
        assert_equal(content(merge(parts[0], merge(parts[1], parts[2]))), whole)


@given(cases())
def test_scores_that_are_already_there_give_the_same_state(case: Case) -> None:
    reference, candidate = case.dense()
    kept = [np.flatnonzero(~np.isnan(row)) for row in reference]
    state = content(case.score())
    # what stands there in place of what does not count makes no difference
    whole = [np.nan_to_num(scores, nan=99.0) for scores in (reference, candidate)]
    assert_equal(content(score_matrix(*whole, k=case.k, excluded=case.excluded)), state)
    if all(len(positions) for positions in kept):
        rows = [(positions, reference[row, positions], candidate[row, positions]) for row, positions in enumerate(kept)]
        assert_equal(content(score_ragged(rows, k=case.k)), state)


# --- parts of a corpus -------------------------------------------------------------------------------


WHOLE = st.integers(-2, 2)


@given(st.integers(2, 400), st.integers(0, 2**32), st.data())
def test_subsets_nest(n_documents: int, seed: int, data: st.DataObject) -> None:
    sizes = sorted(data.draw(st.sets(st.integers(1, n_documents), min_size=2, max_size=5)))
    subsets = [nested_subset(n_documents, size, seed=seed) for size in sizes]
    assert [len(subset) for subset in subsets] == sizes
    for subset in subsets:
        assert (np.diff(subset) > 0).all()
        assert subset[0] >= 0
        assert subset[-1] < n_documents
    for small, large in pairwise(subsets):
        assert np.isin(small, large).all()


@given(st.data(), st.sampled_from([Similarity.DOT, Similarity.EUCLIDEAN]), st.integers(2, 8))
def test_each_size_is_what_these_documents_give_alone(data: st.DataObject, similarity: Similarity, k: int) -> None:
    n_queries, n_docs = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 30))

    def embeddings(n: int) -> Floats:
        return data.draw(arrays(np.float32, (n, DIM), elements=WHOLE))

    documents = embeddings(n_docs)
    arms = (embeddings(n_queries), documents), (embeddings(n_queries), embeddings(n_docs))
    if data.draw(st.booleans()):
        arms[1][1][:] = documents
    rows = nested_subset(n_docs, data.draw(st.integers(1, n_docs)), seed=data.draw(st.integers(0, 99)))
    pair = cast(QuantizedPair, SimpleNamespace(device=torch.device("cpu"), vector_stages=()))
    flow = Flow(pair=pair, settings=Settings(k=k), store=EmbeddingStore(None), progress=Silent())
    sides = rows_of("query", n_queries), rows_of("document", n_docs)
    search = Search(queries=sides[0], documents=sides[1], similarity=similarity, rows=rows).ready(flow)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quantdrift.scoring.streamed.TILE", 16)  # these few documents fill it more than once
        measured = search.evidence(search.state(flow, *arms), arms[1], None)
        (queries, kept), (low_queries, low_kept) = ((arm[0], arm[1][rows]) for arm in arms)
        alone = score_embeddings(queries, low_queries, kept, low_kept, similarity=similarity, k=k)
    assert_same(measured, assemble(alone, input_ids=sides[0].ids, item_ids=[f"d{row}" for row in rows.tolist()]))
