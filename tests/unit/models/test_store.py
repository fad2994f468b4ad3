"""Embeddings are computed once, survive a kill as far as they came, and are keyed by all inputs."""

import errno
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.base.errors import RunError
from quantdrift.models import store as embeddings
from quantdrift.models.store import EmbeddingStore

N, DIM = 10, 3
WANTED = np.arange(N * DIM, dtype=np.float32).reshape(N, DIM)
ORDER = np.random.default_rng(0).permutation(N)


class Encoder:
    """Input number i has row i of WANTED; keeps count, and fails once when told to."""

    def __init__(self, fail_at: int | None = None, error: BaseException | None = None) -> None:
        self.calls: list[list[int]] = []
        self.fail_at = fail_at
        self.error = error or KeyboardInterrupt()

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        if self.fail_at == len(self.calls):
            self.fail_at = None
            raise self.error
        self.calls.append(rows.tolist())
        return WANTED[rows]


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> EmbeddingStore:
    return EmbeddingStore(tmp_path if request.param == "disk" else None)


def test_rows_stand_by_input_whatever_the_order(store: EmbeddingStore) -> None:
    encode, steps = Encoder(), []
    vectors = store.get("ab12", order=ORDER, chunk=4, encode=encode, progress=steps.append)
    np.testing.assert_array_equal(vectors, WANTED)
    assert vectors.dtype == np.float32
    assert (encode.calls, sum(steps)) == ([ORDER[:4].tolist(), ORDER[4:8].tolist(), ORDER[8:].tolist()], N)


def test_the_second_time_nothing_is_encoded(tmp_path: Path) -> None:
    first, second, steps = Encoder(), Encoder(), []
    EmbeddingStore(tmp_path).get("ab12", order=ORDER, chunk=4, encode=first)
    vectors = EmbeddingStore(tmp_path).get("ab12", order=ORDER, chunk=4, encode=second, progress=steps.append)
    np.testing.assert_array_equal(vectors, WANTED)
    assert (second.calls, sum(steps)) == ([], N)
    assert not vectors.flags.owndata  # it is mapped into memory
    with pytest.raises(ValueError, match="read-only"):
        vectors[0] = 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("out of memory")])
@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_a_run_that_was_stopped_goes_on_where_it_stopped(tmp_path: Path, fail_at: int, error: BaseException) -> None:
    store, encode = EmbeddingStore(tmp_path), Encoder(fail_at, error)
    with pytest.raises(type(error)):
        store.get("ab12", order=ORDER, chunk=4, encode=encode)
    assert not (tmp_path / "embeddings" / "ab" / "ab12.npy").exists()
    before, steps = len(encode.calls), []
    vectors = store.get("ab12", order=ORDER, chunk=4, encode=encode, progress=steps.append)
    np.testing.assert_array_equal(vectors, WANTED)
    assert before == fail_at
    assert len(encode.calls) == 3  # each chunk once, over both runs
    assert sum(steps) == N
    left = sorted(path.name for path in (tmp_path / "embeddings" / "ab").iterdir())
    assert [name for name in left if not name.endswith(".lock")] == ["ab12.npy"]


@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_a_run_that_was_stopped_while_it_tidied_up_leaves_no_parts(
    tmp_path: Path, fail_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, removed, unlink = EmbeddingStore(tmp_path), [], Path.unlink

    def stopped(path: Path, missing_ok: bool = False) -> None:
        if path.name in {"ab12.0.npy", "ab12.1.npy", "ab12.2.npy"}:
            if len(removed) == fail_at:
                raise KeyboardInterrupt
            removed.append(path)
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stopped)
        with pytest.raises(KeyboardInterrupt):
            store.get("ab12", order=ORDER, chunk=4, encode=Encoder())
    again = Encoder()
    np.testing.assert_array_equal(store.get("ab12", order=ORDER, chunk=4, encode=again), WANTED)
    assert again.calls == []
    assert sorted(path.name for path in (tmp_path / "embeddings" / "ab").iterdir()) == ["ab12.lock", "ab12.npy"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, n_bytes: int) -> None:
        assert n_bytes >= N * DIM * 4
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "reserve", full)
        with pytest.raises(RunError, match=r"no space left.*--no-cache"):
            EmbeddingStore(tmp_path).get("ab12", order=ORDER, chunk=4, encode=Encoder())
    vectors = EmbeddingStore(tmp_path).get("ab12", order=ORDER, chunk=4, encode=Encoder())  # space was made
    np.testing.assert_array_equal(vectors, WANTED)
