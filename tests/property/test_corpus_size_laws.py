"""Laws of corpus sizes: subsets nest, each is scored as if alone, and what can only grow does.

Embeddings hold small whole numbers, so every product is exact in float32 and ties are frequent:
equality means bit for bit, ties in order of position in the whole corpus.
"""

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

from quantdrift.asking.subsets import nested_subset
from quantdrift.base.progress import Silent
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.measuring.flow import Flow, assemble
from quantdrift.measuring.readings import Search
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.streamed import score_embeddings
from support.small_evidence import assert_same
from support.worlds import rows_of

DIM = 3
Floats = NDArray[np.float32]
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
