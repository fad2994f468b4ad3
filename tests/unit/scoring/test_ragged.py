"""A matrix for each input: some of them by position, and kept on disk a chunk at a time."""

from pathlib import Path

import numpy as np
import pytest

from quantdrift.base.cache import cache_file
from quantdrift.base.errors import ScoreError
from quantdrift.models.store import EmbeddingStore
from quantdrift.scoring.ragged import Ragged, Rows
from quantdrift.scoring.similarity import check_embeddings

MATRICES = [np.full((length, 2), number, dtype=np.float32) for number, length in enumerate((2, 0, 3, 1))]


def same(left: Ragged, right: Ragged) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_some_inputs_are_taken_by_position() -> None:
    ragged = Ragged.of(MATRICES)
    some = ragged[np.array([2, 0])]
    assert ragged.shape == (4, 2)
    assert ragged.size == 12
    assert ragged[:2].lengths.tolist() == [2, 0]
    assert some.flat()[:, 0].tolist() == [2, 2, 2, 0, 0]
    assert ragged[1:3].flat()[:, 0].tolist() == [2, 2, 2]


def encoded(rows: Rows) -> Ragged:
    return Ragged.of([np.full((1 + row % 3, 2), row, dtype=np.float32) for row in rows.tolist()])


def test_what_was_kept_is_read_back_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    order = np.array([3, 1, 4, 0, 2])
    store, expected = EmbeddingStore(tmp_path), encoded(np.arange(5))
    first = store.get("ab" * 20, order=order, encode=encoded, chunk=2)

    def never(rows: Rows) -> Ragged:
        raise AssertionError(rows)

    again = store.get("ab" * 20, order=order, encode=never, chunk=2)
    assert same(first, expected)
    assert same(again, expected)
    assert same(EmbeddingStore(None).get(None, order=order, encode=encoded, chunk=2), expected)


def test_a_run_that_was_killed_goes_on_after_its_last_whole_chunk(tmp_path: Path) -> None:
    order, calls = np.arange(6), list[list[int]]()

    def killed(rows: Rows) -> Ragged:
        calls.append(rows.tolist())
        if rows[0] == 4:
            raise KeyboardInterrupt
        return encoded(rows)

    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(tmp_path).get("cd" * 20, order=order, encode=killed, chunk=2)
    calls.clear()
    damaged = next(tmp_path.rglob("*.0.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-60])

    def recorded(rows: Rows) -> Ragged:
        calls.append(rows.tolist())
        return encoded(rows)

    whole = EmbeddingStore(tmp_path).get("cd" * 20, order=order, encode=recorded, chunk=2)
    assert calls == [[0, 1], [4, 5]]
    assert same(whole, encoded(order))
    assert [file.name[40:] for file in tmp_path.rglob("*.npy")] == [".npy"]  # one file is open, whatever the corpus


@pytest.mark.parametrize("lengths", [[2**62, 2**62, 2**62, 2**62 + 6], [-1, 2, 0, 5], [1, 1, 1, 1]])
def test_a_damaged_file_is_made_again(lengths: list[int], tmp_path: Path) -> None:
    store, order, key = EmbeddingStore(tmp_path), np.arange(4), "ef" * 20
    store.get(key, order=order, encode=encoded)
    (kept,) = tmp_path.rglob("*.npy")
    with cache_file(kept) as place, place.open("wb") as file:
        np.save(file, np.array(lengths))
        np.save(file, np.zeros((6, 2), dtype=np.float32))
    assert same(store.get(key, order=order, encode=encoded), encoded(order))


def test_a_number_that_is_none_is_refused_with_the_name_of_its_input() -> None:
    broken = [*MATRICES, np.array([[0, np.nan]], dtype=np.float32)]
    with pytest.raises(ScoreError, match="'e' holds NaN"):
        check_embeddings(Ragged.of(broken), arm="reference", what="query", ids="abcde")
