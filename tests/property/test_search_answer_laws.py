"""What a vector database answers is used as it is, or it is an error: nothing else comes of it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'models' is not installed")

from quantdrift.base.errors import UnsupportedError
from quantdrift_databases.database import checked

N_DOCS, K = 8, 6
IDS = st.lists(st.integers(0, N_DOCS - 1), unique=True, min_size=2, max_size=K - 1)
SCORES = st.lists(st.floats(-2, 2, width=32), min_size=K, max_size=K)
SPOILED: dict[str, Any] = {
    "a document twice": lambda ids, scores: ([*ids[:-1], ids[0]], scores),
    "an id beyond the last": lambda ids, scores: ([*ids[:-1], N_DOCS], scores),
    "an id before the first": lambda ids, scores: ([*ids[:-1], -1], scores),
    "no number": lambda ids, scores: ([*ids[:-1], str(ids[-1])], scores),
    "a truth": lambda ids, scores: ([*(number for number in ids if number > 1), True], scores),
    "a fraction": lambda ids, scores: ([*ids[:-1], float(ids[-1])], scores),
    "nothing": lambda ids, scores: ([*ids[:-1], None], scores),
    "a score too few": lambda ids, scores: (ids, scores[: len(ids) - 1]),
    "no finite score": lambda ids, scores: (ids, [*scores[: len(ids) - 1], math.inf]),
    "a score beyond float32": lambda ids, scores: (ids, [*scores[: len(ids) - 1], 1e300]),
    "more than were asked for": lambda ids, scores: ([*range(K + 1)], [*scores, 0.5]),
}


@given(ids=IDS, scores=SCORES)
def test_an_answer_is_kept_as_it_came(ids: list[int], scores: list[float]) -> None:
    for given_ids in (ids, np.array(ids, dtype=np.int64)):  # numbers of numpy are numbers
        positions, values = checked(given_ids, scores[: len(ids)], N_DOCS, K, what="+index=toy")
        assert positions.tolist() == [*ids, *[-1] * (K - len(ids))]
        assert values[: len(ids)].tolist() == scores[: len(ids)]
        assert np.isnan(values[len(ids) :]).all()


@pytest.mark.parametrize("fault", SPOILED)
@given(ids=IDS, scores=SCORES)
def test_an_answer_that_cannot_be_one_is_refused(fault: str, ids: list[int], scores: list[float]) -> None:
    spoiled, values = SPOILED[fault](ids, scores)
    with pytest.raises(UnsupportedError, match="cannot be used") as error:
        checked(spoiled, values[: len(spoiled)], N_DOCS, K, what="+index=toy")
    assert "\n" not in str(error.value)
