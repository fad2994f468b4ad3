"""Tensors of GPTQ and AWQ that gptqmodel would take for codes, whatever they are."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("safetensors", reason="the extra 'models' is not installed")

import torch
from safetensors.torch import save_file
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.checkpoints.checkpoint import Checkpoint
from quantdrift.engine.encoders.gptq import check_packed, kernel_for
from quantdrift.engine.encoders.stored import stored_tensors

IN, OUT, GROUP = 64, 96, 32


def words(value: int, bits: int) -> Tensor:
    """Zero points of all columns, one bit stream for each group, the first number in the lowest bits."""
    stream = sum(value << bits * column for column in range(OUT)).to_bytes(OUT * bits // 8, "little")
    return torch.frombuffer(bytearray(stream * (IN // GROUP)), dtype=torch.int32).reshape(IN // GROUP, -1)


def notes(folder: Path, quantization: dict[str, Any], **changed: Tensor) -> list[str]:
    parts = {
        "qweight": torch.zeros(IN // 8, OUT, dtype=torch.int32),
        "qzeros": words(7, 4),
        "g_idx": (torch.arange(IN) // GROUP).int(),
        "scales": torch.ones(IN // GROUP, OUT).half(),
    }
    save_file({f"a.{part}": tensor for part, tensor in (parts | changed).items()}, folder / "model.safetensors")
    said = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, **quantization}
    place: dict[str, Any] = {"name": "a", "canonical": "a", "kind": "local", "folder": folder, "body": folder}
    checkpoint = Checkpoint(**place, method=said["quant_method"], quantization=said)
    return check_packed(checkpoint, stored_tensors(folder))


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
def test_tensors_of_another_type_and_columns_in_no_group_are_refused(
    changed: dict[str, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=rf"^a\.{next(iter(changed))} "):
        notes(tmp_path, {}, **changed)


def test_columns_may_be_in_any_order(tmp_path: Path) -> None:
    assert notes(tmp_path, {"desc_act": True}, g_idx=GROUPS.flip(0).int()) == []


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
def test_zero_points_that_say_the_other_format_are_told(bits: int, label: str, tmp_path: Path) -> None:
    middle = 2 ** (bits - 1)
    right, wrong = (middle - 1, middle) if label == "gptq" else (middle, middle - 1)
    said = {"bits": bits, "sym": True, "checkpoint_format": label}
    assert notes(tmp_path, said, qzeros=words(right, bits)) == []
    (note,) = notes(tmp_path, said, qzeros=words(wrong, bits))
    assert f"stores is {wrong}" in note
    assert notes(tmp_path, {**said, "sym": False}, qzeros=words(wrong, bits)) == []
    one_other = words(wrong, bits)
    one_other[0, 0] ^= 1
    assert notes(tmp_path, said, qzeros=one_other) == []


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
def test_a_kernel_is_chosen_where_the_usual_one_has_not_the_group_size(
    quantization: dict[str, Any], device: str, backend: str | None
) -> None:
    assert kernel_for(quantization, torch.device(device)).get("backend") == backend
