"""HQQ checkpoints are unpacked here: what hqq itself makes of them, and no code of theirs."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.encoders.stored import hqq_weights

CODES = torch.arange(32, dtype=torch.uint8).reshape(2, 16)  # two 4-bit codes in each


def letters(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def state(**changed: Tensor | None) -> dict[str, Tensor]:
    """A layer of 4 x 16 weights, as hqq spells it out, with some parts replaced or left out."""
    parts: dict[str, Tensor | None] = {
        "W_q": CODES,
        "scale": torch.full((4, 1), 0.5),
        "zero": torch.tensor([[0.0], [1.0], [2.0], [3.0]]),
        "shape": torch.tensor([4, 16]),
        "packing": letters("4bit_u8"),
        "compute_dtype": letters("torch.float32"),
        **changed,
    }
    return {f"layer.{name}": part for name, part in parts.items() if part is not None}


def unpack(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    folder.mkdir(exist_ok=True)
    save_file({name: part.contiguous() for name, part in tensors.items()}, folder / "model.safetensors")
    return hqq_weights(folder)


def test_high_halves_are_the_first_rows_and_low_halves_the_rest(tmp_path: Path) -> None:
    found = unpack(tmp_path, {**state(bias=torch.ones(4)), "other": torch.zeros(3)})
    wanted = torch.cat([(CODES >> 4).float(), (CODES & 15).float()])
    wanted = (wanted - torch.tensor([[0.0], [1.0], [2.0], [3.0]])) * 0.5
    assert sorted(found) == ["layer.bias", "layer.weight", "other"]
    assert torch.equal(found["layer.weight"], wanted)
    assert torch.equal(found["layer.bias"], torch.ones(4))


@pytest.mark.parametrize("name", ["unpack_view_dtype", "compute_dtype", "packing"])
def test_text_of_a_checkpoint_is_never_evaluated(name: str, tmp_path: Path) -> None:
    done = tmp_path / "done"
    evil = letters(f'__import__("pathlib").Path({str(done)!r}).touch()')
    if name == "unpack_view_dtype":  # not read
        unpack(tmp_path / "evil", state(**{name: evil}))
    else:
        with pytest.raises(UnsupportedError, match="KeyError"):
            unpack(tmp_path / "evil", state(**{name: evil}))
    assert not done.exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": None},
        {"packing": letters("3bit_32")},
        {"packing": letters("x" * 1000)},
        {"compute_dtype": letters("torch.\x1b[31m")},
        {"shape": torch.tensor([1 << 40, 1 << 40])},
        {"shape": torch.tensor([-4, -16])},
        {"shape": torch.tensor([[[4, 16, 1]]])},
        {"W_q": CODES[:, :0]},
        {"scale": torch.ones(1 << 12, 4, 16)},
    ],
)
def test_what_hqq_does_not_write_is_refused_in_one_line(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the HQQ layer layer cannot be unpacked") as caught:
        unpack(tmp_path, state(**changed))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("bits", "axis", "group", "dtype"),
    [(bits, 1, 8, torch.float16) for bits in (8, 4, 3, 2, 1)]
    + [
        (1.58, 1, 16, torch.bfloat16),
        (3, 1, None, torch.float32),
        (4, 0, None, torch.float32),
        (3, 0, 16, torch.float16),
    ],
)
def test_a_layer_is_what_hqq_itself_makes_of_it(
    bits: float, axis: int, group: int | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    library = pytest.importorskip("hqq.core.quantize")
    linear = nn.Linear(32, 48)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(48, 32, generator=torch.Generator().manual_seed(0)))
    how = library.BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
    layer = library.HQQLinear(linear, how, compute_dtype=dtype, device="cpu", del_orig=False)
    found = unpack(tmp_path, {f"layer.{name}": part for name, part in layer.state_dict().items()})["layer.weight"]
    assert found.dtype == dtype
    assert torch.equal(found, layer.dequantize())
