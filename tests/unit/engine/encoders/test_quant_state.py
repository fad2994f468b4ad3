"""States of bitsandbytes that do not fit the codes beside them are refused before the library reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.encoders.quant_state import check_quant_states

STATE = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [8, 72]}
NESTED = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
END = "quant_state.bitsandbytes__nf4"


def tensors(kind: str, **state: Any) -> dict[str, Tensor]:
    """A layer q of 8 x 72 weights, which are 9 blocks of 64: in 4 bits, with double quantization, or in 8 bits."""
    if kind == "8 bits":
        return {"bert.q.weight": torch.zeros(8, 72, dtype=torch.int8), "bert.q.SCB": torch.ones(8)}
    said = {**STATE, **(NESTED if kind == "double" else {}), **state}
    parts = {"absmax": torch.ones(9), "quant_map": torch.ones(16)}
    if kind == "double":
        parts |= {"absmax": torch.ones(9, dtype=torch.uint8), "nested_absmax": torch.ones(1)}
        parts["nested_quant_map"] = torch.ones(256)
    text = json.dumps({key: value for key, value in said.items() if value != "absent"}).encode()
    parts[END] = torch.tensor(list(text), dtype=torch.uint8)
    named = {f"bert.q.weight.{name}": tensor for name, tensor in parts.items()}
    return {"bert.q.weight": torch.zeros(288, 1, dtype=torch.uint8), **named}


def check(folder: Path, content: dict[str, Tensor]) -> None:
    save_file(content, folder / "model.safetensors")
    check_quant_states([folder / "model.safetensors"], {"q": (8, 72)})


@pytest.mark.parametrize("kind", ["4 bits", "double", "8 bits"])
def test_what_the_library_writes_is_taken(kind: str, tmp_path: Path) -> None:
    check(tmp_path, tensors(kind))


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        *(("4 bits", {"shape": shape}) for shape in ([1 << 40, 1], [8, 71], [4, 144], [-8, 72], [8, 72, 1], None, "x")),
        *(("4 bits", {"blocksize": size}) for size in (0, -64, 63, 4096, "64", 64.5)),
        *(("4 bits", {"dtype": dtype}) for dtype in ("os", "int8", None)),
        *(("4 bits", {"quant_type": name}) for name in ("fp4", "evil", "absent")),
        ("4 bits", {"evil": 1}),
        *(("double", {key: value}) for key in NESTED for value in ("absent", "x", 0 if "size" in key else "os")),
        ("double", {"nested_offset": float("nan")}),
        ("4 bits", NESTED),
    ],
)
def test_a_state_that_does_not_fit_is_refused(kind: str, state: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="is damaged; expected"):
        check(tmp_path, tensors(kind, **state))


@pytest.mark.parametrize("kind", ["4 bits", "double", "8 bits"])
def test_no_tensor_may_be_shorter_of_another_type_or_missing(kind: str, tmp_path: Path) -> None:
    for name in tensors(kind):
        whole = tensors(kind)
        others = [{**whole, name: whole[name].flatten()[:-1].clone()}, {k: v for k, v in whole.items() if k != name}]
        if name != "bert.q.weight":
            others.append({**whole, name: whole[name].to(torch.float64)})
        for other in others:
            if name.endswith((END, "SCB")) and name not in other:
                continue  # without its state nothing says how codes are read, and the library refuses that by itself
            with pytest.raises(UnsupportedError, match="is damaged; expected"):
                check(tmp_path, other)
