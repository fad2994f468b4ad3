"""Laws of corpus sizes: subsets nest, each is scored as if alone, and what can only grow does.

Embeddings hold small whole numbers, so every product is exact in float32 and ties are frequent:
equality means bit for bit, ties in order of position in the whole corpus.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from quantdrift.base.progress import Silent
from quantdrift.engine.flow import Flow, assemble
from quantdrift.engine.inputs import Settings
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.parts import nested_subset
from quantdrift.engine.readings import Search
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.store import EmbeddingStore
from quantdrift.evidence.record import Evidence
from support.small_evidence import assert_same
from support.worlds import rows_of

DIM = 3
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A corpus, its parts, and what is measured at each; queries and documents of either arm."""

    reference: tuple[Floats, Floats]
    candidate: tuple[Floats, Floats]
    similarity: Similarity
    k: int
    subsets: tuple[NDArray[np.int64], ...]
    measured: list[Evidence]

    def ids(self, role: str) -> list[str]:
        return ids_of(self.reference, role)

    def alone(self, rows: NDArray[np.int64]) -> Evidence:
        """Evidence over these documents as if there were no others."""
        (queries, documents), (low_queries, low_documents) = self.reference, self.candidate
        with small_tiles():
            state = score_embeddings(
                queries, low_queries, documents[rows], low_documents[rows], similarity=self.similarity, k=self.k
            )
        names = self.ids("d")
        return assemble(state, input_ids=self.ids("q"), item_ids=[names[row] for row in rows.tolist()])


def ids_of(arm: tuple[Floats, Floats], role: str) -> list[str]:
    return [f"{role}{n}" for n in range(len(arm["qd".index(role)]))]


@contextmanager
def small_tiles() -> Iterator[None]:
    """Tiles that these few documents fill more than once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quantdrift.engine.scoring.streamed.TILE", 16)
        yield


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n_queries, n_docs = draw(st.integers(1, 4)), draw(st.integers(2, 30))

    def embeddings(n: int) -> Floats:
        return draw(arrays(np.float32, (n, DIM), elements=st.integers(-2, 2)))

    documents = embeddings(n_docs)
    reference = embeddings(n_queries), documents
    candidate = embeddings(n_queries), documents if draw(st.booleans()) else embeddings(n_docs)
    sizes = draw(st.sets(st.integers(1, n_docs), min_size=1, max_size=3)) | {n_docs}
    if len(sizes) == 1:
        sizes |= {1}
    k = draw(st.integers(2, 8))
    similarity = draw(st.sampled_from([Similarity.DOT, Similarity.EUCLIDEAN]))
    seed = draw(st.integers(0, 99))
    subsets = tuple(nested_subset(n_docs, size, seed=seed) for size in sorted(sizes))

    flow = Flow(
        pair=cast(QuantizedPair, SimpleNamespace(device=torch.device("cpu"), vector_stages=())),
        settings=Settings(k=k),
        store=EmbeddingStore(None),
        progress=Silent(),
    )
    measured = []
    for subset in subsets:
        search = Search(
            queries=rows_of("q", n_queries), documents=rows_of("d", n_docs), similarity=similarity, rows=subset
        ).ready(flow)
        with small_tiles():
            state = search.state(flow, reference, candidate)
        measured.append(search.evidence(state, candidate, None))
    return Case(
        reference=reference, candidate=candidate, similarity=similarity, k=k, subsets=subsets, measured=measured
    )


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


@given(cases())
def test_each_size_is_what_these_documents_give_alone(case: Case) -> None:
    for subset, evidence in zip(case.subsets, case.measured, strict=True):
        assert_same(evidence, case.alone(subset))
