"""Which model is behind a name: the same one, one that is only noisy, another one."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.data.sentences import SENTENCES
from quantdrift.models.server import Identity, identify
from quantdrift.spec.grammar import Endpoint

HERE = Endpoint(url="http://localhost:8000/v1", model="m")
THERE = Endpoint(url="http://localhost:8001/v1", model="m")
Model = Callable[[Sequence[str]], NDArray[np.float32]]


def model(seed: int = 0, *, noise: float = 0.0, change: float = 0.0, dim: int = 32) -> Model:
    """Vectors of length 1; noise and change are relative."""
    weights = np.random.default_rng(seed).normal(size=(len(SENTENCES), dim))
    weights += change * np.random.default_rng(seed + 1).normal(size=weights.shape)
    draws = np.random.default_rng()

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = weights[[SENTENCES.index(text) for text in texts]]
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        step = draws.normal(size=rows.shape)
        return (rows + noise * step / np.linalg.norm(step, axis=1, keepdims=True)).astype("f4")

    return embed


def seen(embed: Model, root: Path, endpoint: Endpoint = HERE) -> Identity:
    return identify(embed, endpoint, root)


def test_the_same_model_keeps_its_fingerprint_whatever_its_last_bits(tmp_path: Path) -> None:
    first = seen(model(noise=1e-2), tmp_path)
    for _ in range(20):
        anew = seen(model(noise=1e-2), tmp_path)
        assert (anew.fingerprint, anew.first_seen) == (first.fingerprint, first.first_seen)
        assert anew.changed_since is None
        assert anew.distance is not None
        assert 0 < anew.distance < anew.tolerance
    assert 1e-2 < first.noise < 3e-2


@pytest.mark.parametrize("change", [1e-2, 0.3])
def test_another_model_behind_the_name_is_found_out_and_said(tmp_path: Path, change: float) -> None:
    first = seen(model(), tmp_path)
    other = seen(model(change=change), tmp_path)
    assert other.fingerprint != first.fingerprint
    assert other.distance is not None
    assert other.distance > other.tolerance
    assert other.changed_since is not None
    again = seen(model(change=change), tmp_path)
    assert again.fingerprint == other.fingerprint
    assert again.changed_since is None
    # and back: it is known still, and that it was another the last time is said
    for age, file in enumerate(sorted(tmp_path.rglob("*.npz"), key=lambda f: f.stat().st_mtime)):
        os.utime(file, (age, age))
    back = seen(model(), tmp_path)
    assert (back.fingerprint, back.changed_since) == (first.fingerprint, "1970-01-01T00:00:01+00:00")


def test_a_model_that_moved_is_the_same_and_what_is_known_of_a_name_stays_with_it(tmp_path: Path) -> None:
    here, there = seen(model(), tmp_path, HERE), seen(model(), tmp_path, THERE)
    assert here.fingerprint == there.fingerprint
    assert there.distance is None
    assert seen(model(change=0.3), tmp_path, THERE).changed_since is not None
    assert seen(model(), tmp_path, HERE).changed_since is None
