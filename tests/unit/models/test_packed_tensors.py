"""Tensors of GPTQ, AWQ and bitsandbytes that do not fit each other are refused before a library reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("safetensors", reason="the extra 'models' is not installed")

import torch
from safetensors.torch import save_file
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.models.files.checkpoint import Checkpoint
from quantdrift.models.files.tensors import stored_tensors
from quantdrift.models.packed import check_bitsandbytes, check_gptq, kernel_for

IN, OUT, GROUP = 64, 96, 32


def check_layer(folder: Path, quantization: dict[str, Any], **changed: Tensor) -> None:
    parts = {
        "qweight": torch.zeros(IN // 8, OUT, dtype=torch.int32),
        "qzeros": torch.zeros(IN // GROUP, OUT // 8, dtype=torch.int32),
        "g_idx": (torch.arange(IN) // GROUP).int(),
        "scales": torch.ones(IN // GROUP, OUT).half(),
    }
    save_file({f"a.{part}": tensor for part, tensor in (parts | changed).items()}, folder / "model.safetensors")
    said = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, **quantization}
    place: dict[str, Any] = {"name": "a", "canonical": "a", "kind": "local", "folder": folder, "body": folder}
    checkpoint = Checkpoint(**place, method=said["quant_method"], quantization=said)
    check_gptq(checkpoint, stored_tensors(folder))


GROUPS = torch.arange(IN) // GROUP


@pytest.mark.parametrize(
    "changed",
    [
        {"qweight": torch.zeros(IN // 8, OUT, dtype=torch.int8)},
        {"qzeros": torch.zeros(IN // GROUP, OUT // 8, dtype=torch.int64)},
        {"scales": torch.ones(IN // GROUP, OUT, dtype=torch.int32)},
        {"g_idx": GROUPS},
        {"g_idx": (GROUPS + 1).int()},
        {"g_idx": (GROUPS - 1).int()},
        {"g_idx": (GROUPS * 0).int()},  # 64 columns in a group of 32
        {"g_idx": torch.zeros(0, dtype=torch.int32)},
    ],
    ids=lambda changed: f"{next(iter(changed))}-{next(iter(changed.values())).dtype}",
)
def test_other_types_and_columns_in_no_group_are_refused(changed: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rf"^a\.{next(iter(changed))} "):
        check_layer(tmp_path, {}, **changed)


def test_columns_may_be_in_any_order(tmp_path: Path) -> None:
    check_layer(tmp_path, {"desc_act": True}, g_idx=GROUPS.flip(0).int())


@pytest.mark.parametrize(
    ("quantization", "device", "backend"),
    [
        ({"quant_method": "gptq", "group_size": -1}, "cpu", "torch"),
        ({"quant_method": "gptq", "group_size": 16}, "cpu", "torch"),
        ({"quant_method": "awq", "group_size": -1, "backend": "auto"}, "cpu", "torch_awq"),
        ({"quant_method": "gptq", "group_size": 128}, "cpu", None),
        ({"quant_method": "gptq"}, "cpu", None),
        ({"quant_method": "gptq", "group_size": -1, "backend": "torch_fused"}, "cpu", None),
        ({"quant_method": "gptq", "group_size": -1}, "cuda", None),
    ],
)
def test_a_kernel_is_chosen_by_group_size(quantization: dict[str, Any], device: str, backend: str | None) -> None:
    assert kernel_for(quantization, torch.device(device)).get("backend") == backend


# --- bitsandbytes ---------------------------------------------------------------------------------

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
    check_bitsandbytes(folder, stored_tensors(folder), {"q": (8, 72)})


@pytest.mark.parametrize("kind", ["4 bits", "double", "8 bits"])
def test_what_bitsandbytes_writes_is_taken(kind: str, tmp_path: Path) -> None:
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
    with pytest.raises(UnsupportedError, match=r"^bert\.q\."):
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
            with pytest.raises(UnsupportedError, match=r"^bert\.q\."):
                check(tmp_path, other)
