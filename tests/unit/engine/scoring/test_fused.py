"""One pass over a tile by numba: where it is used, and what is left to torch. Its laws are in test_scoring_laws."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from quantdrift.base.errors import ScoreError
from quantdrift.engine.scoring import fused
from quantdrift.engine.scoring.state import FIELDS
from quantdrift.engine.scoring.streamed import score_embeddings

pytest.importorskip("numba")
RNG = np.random.default_rng(0)
QUERIES, DOCUMENTS = RNG.normal(size=(3, 8)).astype(np.float32), RNG.normal(size=(3000, 8)).astype(np.float32)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Offsets of the tiles that were taken in by one pass."""
    seen: list[int] = []
    take = fused.take

    def counted(*args: object, **options: object) -> bool:
        seen.append(options["offset"])  # type: ignore[arg-type]
        return take(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fused, "take", counted)
    yield seen
    fused.kernel.cache_clear()


def test_by_hand() -> None:
    """Two queries of four documents; the second has no product with document 2, which does not count."""
    compiled = fused.kernel()
    assert compiled is not None
    reference = np.array([5, 3, 4, 1, 1, 2, np.nan, 0], np.float32)
    candidate = np.array([4, 5, 4, 3, 0, 2, 0, 9], np.float32)
    bars = np.array([[4, 9], [4, 8]], np.float32)
    extremes = np.array([[0, 0], [0, 0]], np.float32)
    scores, positions, fill = np.zeros((2, 2, 3), np.float32), np.zeros((2, 3), np.int64), np.array([0, 1])
    skip = np.array([-1, 2])
    compiled(reference, candidate, 4, 4, skip, bars, extremes, scores, positions, fill, 100, 0, 2)
    assert extremes.tolist() == [[-1, -1], [2, 9]]
    assert fill.tolist() == [2, 2]
    assert positions.tolist() == [[100, 101, 0], [0, 103, 0]]
    assert scores[:, 0, :2].tolist() == [[5, 3], [4, 5]]
    skip[1] = -1
    compiled(reference, candidate, 4, 4, skip, bars, extremes, scores, positions, fill, 100, 1, 2)
    assert np.isnan(extremes[:, 1]).all()


def test_it_is_used_where_it_pays(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    score_embeddings(QUERIES, QUERIES, DOCUMENTS, DOCUMENTS, k=5)
    assert calls == []
    monkeypatch.setattr(fused, "WORTH", 9000)
    one_pass = score_embeddings(QUERIES, QUERIES + 1, DOCUMENTS, DOCUMENTS, k=5)
    assert calls == [0, 1024, 2048]  # 600 documents for each kept one: there are bars from the start
    plain = score_embeddings(QUERIES, QUERIES + 1, DOCUMENTS, DOCUMENTS, k=5, fused=False)
    assert len(calls) == 3
    assert all(torch.equal(getattr(one_pass, name), getattr(plain, name)) for name in FIELDS)


def test_without_numba_torch_serves(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    fused.kernel.cache_clear()
    monkeypatch.setattr(fused, "find_spec", lambda _name: None)
    score_embeddings(QUERIES, QUERIES, DOCUMENTS, DOCUMENTS, k=5, fused=True)
    assert calls == []


def test_products_beyond_float32_are_found() -> None:
    large = QUERIES * np.float32(1e30)
    documents = DOCUMENTS.copy()
    documents[2000] *= 1e15
    for each in (True, False):
        with pytest.raises(ScoreError, match="scores of query 0 are not all finite"):
            score_embeddings(large, large, documents, documents, k=5, similarity="dot", fused=each)
