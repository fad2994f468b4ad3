"""Whatever happens to a kept file: what is got is what would be made, and damage is said."""

import io
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.base.cache import CHECKSUM, array_in, arrays_in, cache_file, read_cache
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.calibration.candidate import LayerStore
from quantdrift.candidate.calibration.in_order import LayerCandidate
from quantdrift.measuring.problem import CachedArrays
from quantdrift.measuring.readings import fitted_probe
from quantdrift.models.server import identify
from quantdrift.models.store import EmbeddingStore, key_of
from quantdrift.spec.grammar import Endpoint

KEY = key_of(of="these tests")
N, DIM, CHUNK = 10, 3, 4
WANTED = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float32)
ORDER = np.random.default_rng(1).permutation(N)
FINISHED = ORDER[: 2 * CHUNK]
"""Inputs of the chunks that a run finished before it was stopped."""

Use = Callable[[Path], Any]
"""Takes something from the cache in a folder, or makes it and keeps it."""


def embeddings(root: Path) -> bytes:
    vectors = EmbeddingStore(root).get(KEY, order=ORDER, encode=lambda rows: WANTED[rows], chunk=CHUNK)
    return vectors.tobytes()


def embeddings_cut_short(root: Path) -> None:
    def encode(rows: np.ndarray[Any, Any]) -> Any:
        if rows[0] not in FINISHED:
            raise KeyboardInterrupt
        return WANTED[rows]

    with suppress(KeyboardInterrupt):
        EmbeddingStore(root).get(KEY, order=ORDER, encode=encode, chunk=CHUNK)


def sensitivities(root: Path) -> bytes:
    wanted = np.array([[1.0, np.nan], [-0.0, 1e-300]])
    return CachedArrays(root, KEY).get("gap", lambda: wanted).tobytes()


def layers(root: Path) -> str:
    store = LayerStore(root, KEY)
    layer = store.read(1).get(0)
    if layer is None:
        weight = torch.arange(8, dtype=torch.float32).reshape(2, 4)
        quantized = quantize_rtn(weight, bits=4, group_size=2)
        layer = LayerCandidate(name="one", n_tokens=7, absmax=float("inf"), quantized=quantized)
        store.write(0, layer)
    assert layer.quantized is not None
    facts = (layer.name, layer.n_tokens, layer.absmax, layer.quantized.bits)
    return str((*facts, layer.quantized.codes, layer.quantized.scale))


def probe(root: Path) -> str:
    rows = np.random.default_rng(2).normal(size=(6, 2)).astype(np.float32)
    fitted, accuracy = fitted_probe(rows, ["yes", "no", "ähm"] * 2, key=KEY, root=root)
    return f"{fitted.digest} {fitted.converged} {accuracy}"


def server(root: Path) -> str:
    rows = np.random.default_rng(3).normal(size=(8, 4)).astype(np.float32)
    embed = lambda texts: np.array([rows[len(text) % 8] for text in texts])  # noqa: E731 -- short
    return identify(embed, Endpoint(url="http://localhost/v1", model="m"), root).fingerprint


KINDS: list[tuple[Use, Use, str]] = [
    (embeddings, embeddings, "*.npy"),
    (sensitivities, sensitivities, "*.npy"),
    (layers, layers, "*.safetensors"),
    (probe, probe, "*.npz"),
    (server, server, "*.npz"),
    (embeddings_cut_short, embeddings, "*.0.npy"),
    (embeddings_cut_short, embeddings, "*.1.npy"),
]


def used(make: Use, use: Use, pattern: str, damage: Callable[[bytes], bytes]) -> tuple[Any, str]:
    """Return what is read after a file was damaged, and what is said."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        (file,) = Path(folder).rglob(pattern)
        file.write_bytes(damage(file.read_bytes()))
        with redirect_stderr(io.StringIO()) as said:
            result = use(Path(folder))
        with redirect_stderr(io.StringIO()) as later:
            assert use(Path(folder)) == result
        assert later.getvalue() == ""  # it was made again, and is whole
        return result, said.getvalue()


def flip(content: bytes, at: int, bit: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


@pytest.mark.parametrize(("make", "use", "pattern"), KINDS)
@given(data=st.data())
def test_a_flipped_bit_changes_nothing_and_is_said(make: Use, use: Use, pattern: str, data: st.DataObject) -> None:
    def damage(content: bytes) -> bytes:
        at = data.draw(st.integers(0, len(content) - 1))
        bit = data.draw(st.integers(0, 7))
        # numpy's "<f4" and "=f4" are the same numbers here, so nothing would be damaged
        return flip(content, at, 1 if bit == 0 and content[at : at + 2] == b"<f" else bit)

    with tempfile.TemporaryDirectory() as folder:
        undisturbed = use(Path(folder))
    result, said = used(make, use, pattern, damage)
    assert result == undisturbed
    assert said.startswith("quantdrift: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("make", "use", "pattern"), KINDS)
@given(data=st.data())
def test_a_file_that_was_cut_or_exchanged_is_as_none(make: Use, use: Use, pattern: str, data: st.DataObject) -> None:
    def damage(content: bytes) -> bytes:
        head = content[: data.draw(st.integers(0, len(content) - 1))]
        return head + data.draw(st.binary(max_size=200))

    with tempfile.TemporaryDirectory() as folder:
        undisturbed = use(Path(folder))
    assert used(make, use, pattern, damage)[0] == undisturbed


# --- content that somebody made, with a digest that holds ------------------------------------


def npy(header: bytes, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


class Opened:
    """Whoever unpickles it fails the test."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


def hostile() -> Iterator[bytes]:
    for shape, kind in itertools.product(
        ["(10**15,)", "(1000000000000000,)", "(-1, -2)", "(2,", "[2]", "()" * 9, "(0,) * 99"],
        ["'<f8'", "'|O'", "'|S0'", "'nothing'", "[('a', '|O')]", "(" * 500],
    ):
        text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}"
        yield npy(text.encode(), bytes(16))
    yield npy(b"\x00" * 64)
    yield npy(b"(" * 9000)
    yield npy(b"'")
    yield npy(b"\xff" * 64)
    file = io.BytesIO()
    np.save(file, np.array([Opened()], dtype=object), allow_pickle=True)
    yield file.getvalue()
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(1 << 20))
    yield file.getvalue()


@pytest.mark.parametrize("content", list(hostile()))
def test_hostile_content_takes_no_memory(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for decode in (array_in, arrays_in):
        with pytest.raises(ValueError, match="no array"):
            decode(memoryview(content))
        with cache_file(tmp_path / "it") as unfinished:
            unfinished.write_bytes(content)
        assert read_cache(tmp_path / "it", decode) is None
        assert capsys.readouterr().err.count("\n") == 1
        assert not (tmp_path / "it").exists()


def test_a_kept_file_is_one_of_its_format_with_a_line_behind_it(tmp_path: Path) -> None:
    with cache_file(tmp_path / "it.npy") as unfinished:
        np.save(unfinished.open("wb"), np.arange(3))
    np.testing.assert_array_equal(np.load(tmp_path / "it.npy"), np.arange(3))
    line = (tmp_path / "it.npy").read_bytes()[-CHECKSUM:]
    assert line.startswith(b"\nquantdrift ")
    assert read_cache(tmp_path / "none", array_in) is None
