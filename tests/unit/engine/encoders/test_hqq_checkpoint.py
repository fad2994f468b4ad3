"""HQQ checkpoints are unpacked here: what hqq itself makes of them, and no code of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from quantdrift.engine.encoders.stored import unpacked
from quantdrift.errors import UnsupportedError
from quantdrift.models.checkpoint import find_checkpoint

CODES = torch.arange(32, dtype=torch.uint8).reshape(2, 16)  # two 4-bit codes in each


def letters(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def flag(value: bool) -> Tensor:
    return torch.tensor(int(value), dtype=torch.uint8)


def state(**changed: Tensor | None) -> dict[str, Tensor]:
    """A layer of 4 x 16 weights, as hqq spells it out, with some parts replaced or left out."""
    parts: dict[str, Tensor | None] = {
        "W_q": CODES,
        "scale": torch.full((4, 1), 0.5),
        "zero": torch.tensor([[0.0], [1.0], [2.0], [3.0]]),
        "shape": torch.tensor([4, 16]),
        "packing": letters("4bit_u8"),
        "compute_dtype": letters("torch.float32"),
        "unpack_view_dtype": letters("torch.uint8"),
        "view_as_float": flag(False),
        "encoded_state_dict": flag(True),
        **changed,
    }
    return {f"layer.{name}": part for name, part in parts.items() if part is not None}


def unpack(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    folder.mkdir(exist_ok=True)
    config = {"model_type": "bert", "quantization_config": {"quant_method": "hqq"}}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: part.contiguous() for name, part in tensors.items()}, folder / "model.safetensors")
    with unpacked(find_checkpoint(str(folder))) as copy:
        assert "quantization_config" not in json.loads((copy / "config.json").read_text())
        return {name: part.clone() for name, part in load_file(copy / "model.safetensors").items()}


def test_high_halves_are_the_first_rows_and_low_halves_the_rest(tmp_path: Path) -> None:
    bias = torch.ones(4)
    found = unpack(tmp_path, {**state(bias=bias), "other": torch.zeros(3)})
    high, low = (CODES >> 4).float(), (CODES & 15).float()
    wanted = torch.cat([high, low])
    wanted = (wanted - torch.tensor([[0.0], [1.0], [2.0], [3.0]])) * 0.5
    assert sorted(found) == ["layer.bias", "layer.weight", "other"]
    assert torch.equal(found["layer.weight"], wanted)
    assert torch.equal(found["layer.bias"], bias)


@pytest.mark.parametrize("name", ["unpack_view_dtype", "compute_dtype", "packing"])
def test_text_of_a_checkpoint_is_never_evaluated(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = tmp_path / "done"
    evil = f'__import__("pathlib").Path({str(done)!r}).touch()'
    with pytest.raises(UnsupportedError, match=f"expected its {name} to be"):
        unpack(tmp_path / "evil", state(**{name: letters(evil)}))
    assert not done.exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": None},
        {"packing": None},
        {"packing": letters("3bit_32")},
        {"packing": letters("x" * 1000)},
        {"compute_dtype": letters("torch.\x1b[31m")},
        {"shape": torch.tensor([4, 17])},
        {"shape": torch.tensor([1 << 40, 1 << 40])},
        {"shape": torch.tensor([-4, -16])},
        {"shape": torch.tensor([[[4, 16, 1]]])},
        {"W_q": CODES.int()},
        {"W_q": CODES[:, :0]},
        {"view_as_float": flag(True), "W_q": torch.zeros(())},
        {"scale": torch.ones(1 << 12, 4, 16)},
        {"zero_scale": torch.ones(3, 4, 1)},
        {"quant_scale": flag(True)},
    ],
)
def test_what_hqq_does_not_write_is_refused_in_one_line(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the HQQ layer layer cannot be unpacked") as caught:
        unpack(tmp_path, state(**changed))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("bits", "axis", "group"),
    [(bits, axis, group) for bits in (8, 6, 4, 3, 2, 1) for axis, group in ((1, 8), (0, 16))]
    + [(1.58, 1, 16), (3, 1, None), (4, 0, None)],
)
def test_a_layer_is_what_hqq_itself_makes_of_it(
    bits: float, axis: int, group: int | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    library = pytest.importorskip("hqq.core.quantize")
    linear = nn.Linear(32, 48)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(48, 32, generator=torch.Generator().manual_seed(0)))
    for as_float in (False, True):
        how = library.BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis, view_as_float=as_float)
        layer = library.HQQLinear(linear, how, compute_dtype=dtype, device="cpu", del_orig=False)
        tensors = {f"layer.{name}": part for name, part in layer.state_dict().items()}
        found = unpack(tmp_path, tensors)["layer.weight"]
        assert found.dtype == dtype
        assert torch.equal(found, layer.dequantize())
