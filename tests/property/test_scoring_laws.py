"""Laws of scoring: streamed in any tiles, blocks and parts, it is the dense computation, exactly.

Embeddings hold small whole numbers, so every product is exact in float32 and ties are frequent:
equality here means bit for bit, ties in order of position.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import ScoreState, merge
from quantdrift.scoring.streamed import score_embeddings, score_matrix, score_ragged

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
            return score_embeddings(
                *self.queries,
                *documents,
                similarity=self.similarity,
                k=self.k,
                excluded=self.excluded,
                offset=rows.start or 0,
            )

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


def assert_same(left: dict[str, NDArray[Any]], right: dict[str, NDArray[Any]]) -> None:
    for name, values in left.items():
        np.testing.assert_array_equal(values, right[name], err_msg=name)


@given(cases())
def test_streamed_is_dense(case: Case) -> None:
    assert_same(content(case.score()), expected(*case.dense(), case.k))


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
    assert_same(content(case.score()), expected(*case.dense(), case.k))


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
    assert_same(content(forward), whole)
    assert_same(content(backward), whole)  # commutative
    if len(parts) == 3:  # associative
        assert_same(content(merge(parts[0], merge(parts[1], parts[2]))), whole)


@given(cases())
def test_scores_that_are_already_there_give_the_same_state(case: Case) -> None:
    reference, candidate = case.dense()
    kept = [np.flatnonzero(~np.isnan(row)) for row in reference]
    state = content(case.score())
    # what stands there in place of what does not count makes no difference
    whole = [np.nan_to_num(scores, nan=99.0) for scores in (reference, candidate)]
    assert_same(content(score_matrix(*whole, k=case.k, excluded=case.excluded)), state)
    if all(len(positions) for positions in kept):
        rows = [(positions, reference[row, positions], candidate[row, positions]) for row, positions in enumerate(kept)]
        assert_same(content(score_ragged(rows, k=case.k)), state)
