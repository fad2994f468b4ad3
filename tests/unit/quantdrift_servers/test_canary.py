"""A canary: what it keeps, and what it says of embeddings that came later; and the commands of servers."""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cosine
from typer.main import get_command

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import with_checksum
from quantdrift.cli import FEATURES, app
from quantdrift_servers.canary.record import Canary, compare, make, moved
from quantdrift_servers.texts import TEXTS, Role, Vectors, embedded
from support.embedding_server import of_letters

ROLES: tuple[Role, ...] = ("query", "document", "document")
THREE = [*zip(ROLES, ("east", "north east", "north"), strict=True)]
PLANE = np.array([[1, 0], [1, 1], [0, 1]], dtype=np.float32)


def plain(texts: Sequence[tuple[Role, str]], _size: int) -> Vectors:
    return of_letters([text for _, text in texts])


def canary_of(vectors: NDArray[np.float32], texts: Sequence[tuple[Role, str]] = THREE) -> Canary:
    """Without noise, as the same text gets the same numbers."""
    vector_of = {text: vector for (_, text), vector in zip(texts, vectors, strict=True)}
    return make("m", texts, lambda asked, _: np.stack([vector_of[text] for _, text in asked]), prefixes={}, now="today")


def test_by_hand() -> None:
    """East turns by 60 degrees, north east becomes twice as long, north stays."""
    now = np.array([[0.5, np.sqrt(0.75)], [2, 2], [0, 1]], dtype=np.float32)
    check = compare(canary_of(PLANE), now)
    np.testing.assert_allclose(check.turned, [0.5, 0, 0], atol=1e-7)
    np.testing.assert_allclose(check.ratios, [1, 2, 1], rtol=1e-6)
    np.testing.assert_allclose(check.moved, [0.5, 0.5, 0], atol=1e-7)
    assert sorted(check.over) == [0, 1]
    # of north the nearest was north east and then east; now that is east (at 30 degrees), then north east (45)
    assert check.nearest_changed == 1
    assert not compare(canary_of(PLANE), now, tolerance=0.6).changed


def test_what_no_number_can_be_given_of() -> None:
    class Broken:
        def encode(self, texts: Sequence[str], _role: str, _size: int) -> Vectors:
            return np.full((len(texts), 2), np.nan, dtype=np.float32)

    with pytest.raises(QuantDriftError, match="finite"):
        embedded(Broken(), THREE, 2)
    with pytest.raises(QuantDriftError, match="at most 16,384 numbers"):
        canary_of(np.ones((3, 20_000), dtype=np.float32))


def test_a_models_own_noise_is_tolerated() -> None:
    """Whoever is asked in other batches gets numbers that differ in the last digits."""

    def noisy(texts: Sequence[tuple[Role, str]], size: int) -> Vectors:
        return plain(texts, size) + np.float32(size / 2000) * np.eye(1, 26, dtype=np.float32)

    canary = make("m", TEXTS, noisy, prefixes={}, now="today")
    assert 1e-6 < canary.noise < 1e-3
    check = compare(canary, noisy(TEXTS, 7))
    assert check.tolerance == 10 * canary.noise
    assert not check.changed
    assert compare(canary, noisy(TEXTS, 200)).changed


@given(st.integers(0, 2**32), st.floats(0.1, 10))
def test_what_moved_is(seed: int, scale: float) -> None:
    before, after = np.random.default_rng(seed).normal(size=(2, 6, 4)).astype(np.float32)
    units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (before, after)]
    wanted = [cosine(a, b) for a, b in zip(*units, strict=True)]
    np.testing.assert_allclose(moved(*units)[1], wanted, atol=1e-6)
    np.testing.assert_array_equal(moved(before, before)[0], np.zeros(6))
    scaled = moved(before, np.float32(scale) * before)[0]
    np.testing.assert_allclose(scaled, np.full(6, (scale - 1) ** 2 / 2), atol=1e-5, rtol=1e-5)


def _with(**changed: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: with_checksum(content | changed)


def _text(**changed: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: with_checksum(content | {"texts": [content["texts"][0] | changed, *content["texts"][1:]]})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content | {"noise": 1.0}, "changed since"),
        (_with(dimension=3), "expected 12 bytes of embedding; got 8"),
        (_with(dimension=10**9), "dimension"),
        (_with(noise="much"), "noise"),
        (_with(texts=[]), "texts"),
        (_with(prefixes={"system": "x"}), "prefixes"),
        (_text(embedding="?" * 12), "damaged"),
        (_text(embedding="é"), "damaged"),
        (_text(embedding=base64.b64encode(np.array([1, np.nan], "<f4").tobytes()).decode()), "not finite"),
        (_text(text="x" * 200_000), "text"),
        (_text(role="system"), "role"),
    ],
)
def test_a_hostile_file_is_told_in_a_line(tmp_path: Path, damage: Callable[[Any], Any], message: str) -> None:
    file = tmp_path / "canary.json"
    file.write_text(json.dumps(damage(canary_of(PLANE).content())))
    with pytest.raises(QuantDriftError, match=message) as error:
        Canary.read(file)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_what_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(QuantDriftError, match="expected a canary: it is larger than"):
        Canary.read(tmp_path / "large")


# --- commands ----------------------------------------------------------------------------------------


def test_they_are_listed_among_the_others_and_are_of_no_other_package() -> None:
    group: Any = get_command(app)
    assert list(group.groups["Guard"]) == ["gate", "canary", "verify"]
    assert FEATURES.module("canary") == "quantdrift_servers.canary"
    assert FEATURES.versions(FEATURES["canary"], FEATURES["verify"]) == {}
