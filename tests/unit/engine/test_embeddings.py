"""Embeddings are computed once, survive a kill as far as they came, and are keyed by all inputs."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.engine import store as embeddings
from quantdrift.engine.store import EmbeddingStore, default_store, digest_of, key_of
from quantdrift.errors import RunError, ScoreError

N, DIM = 10, 3
WANTED = np.arange(N * DIM, dtype=np.float32).reshape(N, DIM)
ORDER = np.random.default_rng(0).permutation(N)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "CHUNK", 4)  # chunks of 4, 4 and 2


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
    found = store.get("ab12", order=ORDER, encode=encode, progress=steps.append)
    np.testing.assert_array_equal(found, WANTED)
    assert found.dtype == np.float32
    assert encode.calls == [ORDER[:4].tolist(), ORDER[4:8].tolist(), ORDER[8:].tolist()]
    assert sum(steps) == N


def test_the_second_time_nothing_is_encoded(tmp_path: Path) -> None:
    first, second, steps = Encoder(), Encoder(), []
    EmbeddingStore(tmp_path).get("ab12", order=ORDER, encode=first)
    found = EmbeddingStore(tmp_path).get("ab12", order=ORDER, encode=second, progress=steps.append)
    np.testing.assert_array_equal(found, WANTED)
    assert second.calls == []
    assert sum(steps) == N
    assert not found.flags.owndata  # it is mapped into memory
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0


def test_in_memory_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        encode = Encoder()
        EmbeddingStore(None).get("ab12", order=ORDER, encode=encode)
        assert len(encode.calls) == 3
    assert not list(tmp_path.iterdir())


def test_two_keys_differ(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    one = store.get("ab12", order=ORDER, encode=lambda rows: WANTED[rows])
    other = store.get("ab34", order=ORDER, encode=lambda rows: -WANTED[rows])
    np.testing.assert_array_equal(one, -other)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("out of memory")])
@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_a_run_that_was_stopped_goes_on_where_it_stopped(tmp_path: Path, fail_at: int, error: BaseException) -> None:
    store, encode = EmbeddingStore(tmp_path), Encoder(fail_at, error)
    with pytest.raises(type(error)):
        store.get("ab12", order=ORDER, encode=encode)
    assert not (tmp_path / "embeddings" / "ab" / "ab12.npy").exists()
    before, steps = len(encode.calls), []
    found = store.get("ab12", order=ORDER, encode=encode, progress=steps.append)
    np.testing.assert_array_equal(found, WANTED)
    assert before == fail_at
    assert len(encode.calls) == 3  # each chunk once, over both runs
    assert sum(steps) == N
    left = sorted(path.name for path in (tmp_path / "embeddings" / "ab").iterdir())
    assert [name for name in left if not name.endswith(".lock")] == ["ab12.npy"]


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def stopped(folder: Path) -> Path:
    """A store in which two of three chunks are done; where the files lie."""
    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(folder).get("ab12", order=ORDER, encode=Encoder(2))
    return folder / "embeddings" / "ab" / "ab12"


@pytest.mark.parametrize(
    "damage",
    [
        lambda stem: stem.with_suffix(".partial.npy").unlink(),
        lambda stem: stem.with_suffix(".partial.npy").write_bytes(b""),
        lambda stem: stem.with_suffix(".partial.npy").write_bytes(b"\x93NUMPY cut"),
        lambda stem: stem.with_suffix(".done").write_text(""),
        lambda stem: stem.with_suffix(".done").unlink(),
        lambda stem: stem.with_suffix(".npy").write_bytes(b"cut short"),
        lambda stem: np.save(stem.with_suffix(".npy"), np.zeros((2, DIM), np.float32)),
    ],
)
def test_damaged_files_are_made_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(stopped(tmp_path))
    found = EmbeddingStore(tmp_path).get("ab12", order=ORDER, encode=Encoder())
    np.testing.assert_array_equal(found, WANTED)


def test_a_count_of_a_partial_file_that_is_gone_is_not_trusted_later(tmp_path: Path) -> None:
    store, stem = EmbeddingStore(tmp_path), stopped(tmp_path)
    stem.with_suffix(".partial.npy").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "bytes_digest", stop)  # before the first chunk is recorded
        with pytest.raises(KeyboardInterrupt):
            store.get("ab12", order=ORDER, encode=Encoder())
    found = store.get("ab12", order=ORDER, encode=Encoder())
    np.testing.assert_array_equal(found, WANTED)


# --- errors ----------------------------------------------------------------------------------


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, n_bytes: int) -> None:
        assert n_bytes >= N * DIM * 4
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "reserve", full)
        with pytest.raises(RunError, match=r"no space left for embeddings in .*--no-cache"):
            EmbeddingStore(tmp_path).get("ab12", order=ORDER, encode=Encoder())
    found = EmbeddingStore(tmp_path).get("ab12", order=ORDER, encode=Encoder())  # space was made
    np.testing.assert_array_equal(found, WANTED)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "embeddings").write_text("a file where the folder should be")
    with pytest.raises(RunError, match=r"cannot be kept in .*Set QUANTDRIFT_CACHE"):
        EmbeddingStore(tmp_path).get("ab12", order=ORDER, encode=Encoder())


@pytest.mark.parametrize("shape", [(4,), (3, DIM), (4, 7, DIM)])
def test_anything_but_one_vector_per_input(store: EmbeddingStore, shape: tuple[int, ...]) -> None:
    with pytest.raises(ScoreError, match=r"one vector per input, shape \(4, dim\); got shape"):
        store.get("ab12", order=ORDER, encode=lambda _: np.zeros(shape, np.float32))


# --- keys ------------------------------------------------------------------------------------


def test_any_change_of_a_part_changes_the_key() -> None:
    base = {"weights": "a", "inputs": {"texts": "b"}, "batch_size": 32}
    assert key_of(**base) == key_of(**dict(reversed(base.items())))
    changed: list[dict[str, object]] = [
        {"weights": "b"},
        {"inputs": {"texts": "c"}},
        {"inputs": {"texts": "b", "prompt": ""}},
        {"batch_size": "32"},
        {"dtype": None},
    ]
    keys = {key_of(**(base | change)) for change in [{}, *changed]}
    assert len(keys) == len(changed) + 1
    assert all(len(key) == 40 and int(key, 16) >= 0 for key in keys)


def test_a_digest_sees_texts_and_their_borders() -> None:
    texts = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], ["ab", "ć"], []]
    assert len({digest_of(part) for part in texts}) == len(texts)
    assert digest_of(["ab", "c"]) == digest_of(iter(["ab", "c"]))
    rows = [np.array([1, 2]), np.array([2, 1]), np.array([1, 2, 0])]
    assert len({digest_of(part) for part in rows}) == len(rows)
    assert digest_of(rows[0]) == digest_of(np.array([1, 9, 2, 9])[::2])


def test_where_embeddings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "here"))
    assert default_store().root == tmp_path / "here"
    monkeypatch.setenv("QUANTDRIFT_CACHE", " OFF ")
    assert default_store().root is None


def test_trouble_of_the_model_is_not_blamed_on_the_disk(store: EmbeddingStore) -> None:
    encode = Encoder(fail_at=0, error=OSError("the model's server is gone"))
    with pytest.raises(OSError, match="server is gone"):
        store.get("ab12", order=ORDER, encode=encode)
