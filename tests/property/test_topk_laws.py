"""Laws of packed keys: their order as integers is the ranking order, and nothing is lost."""

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from quantdrift.scoring.topk import EMPTY, merge_top, pack, unpack

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


@given(ITEMS, st.integers(1, 8), st.integers(0, 30))
def test_two_top_lists_merge_into_the_top_of_all(items: list[tuple[float, int]], k: int, cut: int) -> None:
    def top(part: list[tuple[float, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        keys = torch.cat([keys_of(part) if part else torch.empty(0).long(), torch.full((k,), EMPTY)])
        best = keys.topk(k).values
        return best[None], unpack(best)[1][None].float()  # each item brings its position along

    keys, paired = merge_top(*top(items[:cut]), *top(items[cut:]))
    wanted, brought = top(items)
    assert torch.equal(keys, wanted)
    filled = wanted != EMPTY
    assert torch.equal(paired[filled], brought[filled])
