"""What a vector database answers is used as it is, or it is an error: nothing else comes of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'models' is not installed")

from quantdrift.base.errors import UnsupportedError
from quantdrift.features.databases.database import checked

IDS = st.lists(
    st.one_of(st.integers(-2, 12), st.integers(), st.booleans(), st.none(), st.text(max_size=2), st.floats()),
    max_size=8,
)
SCORES = st.lists(st.one_of(st.floats(-2, 2), st.floats()), max_size=8)


@given(ids=IDS, scores=SCORES, n_docs=st.integers(1, 10), k=st.integers(1, 8))
def test_an_answer_is_kept_as_it_came_or_refused(ids: list[Any], scores: list[float], n_docs: int, k: int) -> None:
    fits = (
        len(ids) == len(scores) <= k
        and all(type(name) is int and 0 <= name < n_docs for name in ids)
        and len({*ids}) == len(ids)
        and all(math.isfinite(np.float32(score)) for score in scores)
    )
    if not fits:
        with pytest.raises(UnsupportedError) as error:
            checked(ids, scores, n_docs, k, what="+index=toy")
        assert "\n" not in str(error.value)
        return
    positions, values = checked(ids, scores, n_docs, k, what="+index=toy")
    assert positions.tolist() == [*ids, *[-1] * (k - len(ids))]
    assert values[: len(ids)].tolist() == [float(np.float32(score)) for score in scores]
    assert np.isnan(values[len(ids) :]).all()


@given(order=st.permutations(range(6)), cut=st.integers(0, 6))
def test_numbers_of_numpy_are_numbers(order: list[int], cut: int) -> None:
    ids = np.array(order[:cut], dtype=np.int64)
    positions, _ = checked(ids, np.linspace(1, 0, cut), 6, 6, what="+index=toy")
    assert positions[:cut].tolist() == order[:cut]
