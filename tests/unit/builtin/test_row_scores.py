"""Scores of several rows an input: by hand, against sentence-transformers, and both arms' top-K and epsilon."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sentence_transformers.util import quantize_embeddings
from sentence_transformers.util.similarity import maxsim, mean_maxsim

from quantdrift.base.errors import ScoreError
from quantdrift.builtin.multi_vector import scoring
from quantdrift.builtin.multi_vector.kept import coded_rows, pooled
from quantdrift.builtin.multi_vector.scoring import NO_TOKENS, MaxSim, score_rows
from quantdrift.builtin.sparse.work import Terms, pruned
from quantdrift.scoring.ragged import Ragged

CPU = torch.device("cpu")


def drawn(seed: int, n: int, *, most: int = 6, least: int = 1, dim: int = 8) -> Ragged:
    rng = np.random.default_rng(seed)
    matrices = [rng.normal(size=(rng.integers(least, most + 1), dim)).astype(np.float32) for _ in range(n)]
    return Ragged.of([matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in matrices])


def scores(product: Any, queries: Ragged, documents: Ragged) -> NDArray[np.float32]:
    made: NDArray[np.float32] = product.scores(product.prepared(queries, CPU), product.prepared(documents, CPU)).numpy()
    return made


def test_maxsim_by_hand() -> None:
    query = np.array([[1, 0], [0, 1]], dtype=np.float32)
    near, far = np.array([[1, 0], [0.6, 0.8]], dtype=np.float32), np.array([[-1, 0]], dtype=np.float32)
    nothing = np.empty((0, 2), dtype=np.float32)
    made = scores(MaxSim(), Ragged.of([query]), Ragged.of([near, far, nothing]))
    assert made == pytest.approx(np.array([[1.8, -1.0, NO_TOKENS]]))
    assert scores(MaxSim(mean=True), Ragged.of([query]), Ragged.of([near])) == pytest.approx(0.9)


@given(st.integers(0, 1000), st.booleans())
def test_maxsim_is_that_of_sentence_transformers(seed: int, mean: bool) -> None:
    queries, documents = drawn(seed, 5), drawn(seed + 1, 9, least=0)
    left, right = ([torch.tensor(matrix) for matrix in side] for side in (queries, documents))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = (mean_maxsim if mean else maxsim)(left, right).numpy()
    product = MaxSim(mean=mean)
    assert scores(product, queries, documents) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert product.exact(queries[2], documents) == pytest.approx(expected[2], rel=1e-5, abs=1e-5)


@given(st.integers(0, 1000))
def test_both_arms_are_ranked_and_their_changes_are_exact(seed: int) -> None:
    full, low = (drawn(seed, 4), drawn(seed + 1, 30)), (drawn(seed + 2, 4), drawn(seed + 3, 30))
    excluded = np.array([3, -1, 29, 0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "TILE_ROWS", 16)  # several tiles and blocks
        patch.setattr(scoring, "BLOCK_ROWS", 8)
        product = MaxSim()
        state, rows = score_rows(product, (full[0], low[0]), (full[1], low[1]), k=5, excluded=excluded)
    once, again = scores(product, *full), scores(product, *low)
    for row, left_out in enumerate(excluded):
        counted = np.setdiff1d(np.arange(30), [left_out])
        best = counted[np.argsort(-once[row, counted], kind="stable")[:5]]
        assert state.reference_top()[0][row].tolist() == best.tolist()
        assert state.reference_top()[2][row] == pytest.approx(again[row, best], abs=1e-6)
        delta = again[row, counted] - once[row, counted]
        assert float(state.delta_max[row]) == pytest.approx(delta.max(), abs=1e-6)
        assert float(state.delta_min[row]) == pytest.approx(delta.min(), abs=1e-6)
    assert rows == pytest.approx(low[1].lengths.mean())


def test_equal_documents_tie_wherever_they_stand() -> None:
    one = drawn(5, 1)
    documents = Ragged.of([*drawn(6, 40), *one, *drawn(7, 50), *one])
    once = scores(MaxSim(), drawn(8, 3), documents)
    assert (once[:, 40] == once[:, 91]).all()


@pytest.mark.parametrize("cosine", [False, True])
def test_products_of_terms_are_those_of_dense_vectors(cosine: bool) -> None:
    rng = np.random.default_rng(0)
    dense = [np.where(rng.random((n, 40)) < 0.2, rng.random((n, 40)), 0).astype(np.float32) for n in (4, 12)]
    dense[1][3] = 0
    sides = [Ragged.of([np.stack([row.nonzero()[0], row[row > 0]], 1).astype(np.float32) for row in m]) for m in dense]
    left, right = (m / np.maximum(np.linalg.norm(m, axis=1, keepdims=True), 1e-30) if cosine else m for m in dense)
    product = Terms(n_terms=40, cosine=cosine)
    assert scores(product, *sides) == pytest.approx(left @ right.T, abs=1e-6)
    assert product.exact(sides[0][1], sides[1]) == pytest.approx(left[1] @ right.T, abs=1e-6)


def test_stored_token_vectors_lose_what_their_precision_loses() -> None:
    documents = drawn(0, 30)
    values = documents.flat()
    low, high = values.min(axis=0), values.max(axis=0)
    step = (high - low) / 255
    coded = coded_rows(MaxSim(), documents, "int8")(documents[4:9])
    assert coded.lengths.tolist() == documents[4:9].lengths.tolist()
    assert (np.abs(coded.flat() - documents[4:9].flat()) <= step / 2 + 1e-6).all()
    outside = Ragged.of([2 * np.vstack([low, high])])  # a candidate's may lie outside of the reference's range
    ends = coded_rows(MaxSim(), documents, "int8")(outside).flat()
    assert ends == pytest.approx(np.vstack([low, high]), abs=1e-6)
    bits = coded_rows(MaxSim(), documents, "binary")(documents[4:9]).flat()
    packed = quantize_embeddings(documents[4:9].flat(), "ubinary")
    assert ((bits > 0) == np.unpackbits(packed, axis=1)).all()
    assert np.abs(bits) == pytest.approx(np.abs(values).mean())
    halves = coded_rows(MaxSim(), documents, "bf16")(documents[4:9]).flat()
    assert (halves == torch.tensor(documents[4:9].flat()).bfloat16().float().numpy()).all()


def test_stored_weights_of_terms_keep_their_terms() -> None:
    documents = Ragged.of([np.array([[3, 0.51], [900_001, 2.55]], dtype=np.float32)])
    product = Terms(n_terms=1 << 20)
    assert coded_rows(product, documents, "int8")(documents)[0] == pytest.approx(documents[0])  # 51 and 255 steps
    half = Ragged.of([np.array([[7, 0.0149], [8, 9.0]], dtype=np.float32)])
    assert coded_rows(product, documents, "int8")(half)[0] == pytest.approx(np.array([[7, 0.01], [8, 2.55]]), abs=1e-6)


def test_pruning_keeps_the_largest_weights_in_their_order() -> None:
    terms = np.array([[1, 0.5], [2, 0.9], [3, 0.5], [4, 0.7]], dtype=np.float32)
    assert pruned(Ragged.of([terms]), 3)[0].tolist() == terms[[0, 1, 3]].tolist()


def test_pooling_halves_the_token_vectors_and_leaves_single_ones() -> None:
    documents = drawn(3, 4, least=1, most=9)
    made = pooled(documents, 2.0)
    # the first token, of the whole text, is kept; the rest is halved
    assert made.lengths.tolist() == [1 + max((n - 1) // 2, min(n - 1, 1)) for n in documents.lengths.tolist()]
    assert np.linalg.norm(made.flat(), axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("terms", [[-1, 3], [2, 40], [1.5, 3], [3, 3], [5, 2], [np.nan, 3]])
def test_terms_that_are_none_are_refused(terms: list[float]) -> None:
    rows = np.array([[term, 1.0] for term in terms], dtype=np.float32)
    with pytest.raises(ScoreError, match="0 to 39"):
        Terms(n_terms=40).prepared(Ragged.of([np.array([[7, 1]], dtype=np.float32), rows]), CPU)
