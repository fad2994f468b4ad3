"""What a GGUF file says of itself, held against the tensors that it has."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf", reason="gguf is not installed")

import gguf

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.gguf.work import vet_gguf


def written(file: Path, **numbers: int) -> Path:
    """A file of two blocks."""
    writer = gguf.GGUFWriter(file, "llama")
    for key, number in numbers.items():
        writer.add_uint32(key.replace("__", "."), number)
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.1.attn_k.weight"):
        writer.add_tensor(name, np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_file_of_as_many_blocks_as_it_says_is_taken(tmp_path: Path) -> None:
    vet_gguf(written(tmp_path / "a.gguf", llama__block_count=2, llama__context_length=10**9))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"llama__block_count": 10**9}, "asks for 1,000,000,000 as block_count"),
        ({"llama__block_count": 10_000}, "asks for 10,000 as block_count"),
        ({"llama__block_count": 3}, "says block_count 3, and has the tensors of 2 blocks"),
        ({"llama__block_count": 1}, "says block_count 1, and has"),
        ({"llama__block_count": 2, "other__block_count": 500}, "says block_count 2, 500"),
        ({}, "says block_count nowhere"),
        ({"llama__block_count": 2, "llama__expert_count": 10**6}, "asks for 1,000,000 as expert_count"),
        ({"llama__block_count": 2, "llama__decoder_block_count": 10**6}, "as decoder_block_count"),
    ],
)
def test_a_file_that_asks_for_too_much_is_refused(numbers: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        vet_gguf(written(tmp_path / "a.gguf", **numbers))
