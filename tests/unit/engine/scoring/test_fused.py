"""One pass over a tile by numba: where it is used, and what is left to torch. Its laws are in test_scoring_laws."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

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
