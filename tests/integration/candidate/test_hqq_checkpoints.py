"""What hqq saves is read without hqq: the same numbers, bit for bit, and nothing that it does not write."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("hqq", reason="the extra 'hqq' is not installed")

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from hqq.models.base import BaseHQQModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.hqq.reading import SETTINGS, unpacked
from quantdrift.candidate.checkpoint import load_checkpoint
from quantdrift.evidence import perturbation
from quantdrift.models.files.checkpoint import find_checkpoint, full_precision_source
from support.candidate_samples import tiny
from support.versus_samples import run_two, with_weights

LAYER = "encoder.layer.0.attention.self.query"
CPU = torch.device("cpu")


def packed(folder: Path, *, by: str = "hqq", dtype: torch.dtype = torch.float16, **settings: Any) -> dict[str, Tensor]:
    """A folder that hqq fills, or transformers with its HqqConfig; the weights that hqq dequantizes by itself."""
    tiny().save_pretrained(str(folder))
    body = AutoModel.from_pretrained(folder, dtype=dtype)
    config = BaseQuantizeConfig(**{"nbits": 4, "group_size": 64, "axis": 1, **settings})
    meant = {}
    for name, layer in [(name, part) for name, part in body.encoder.named_modules() if isinstance(part, nn.Linear)]:
        parent, _, last = name.rpartition(".")
        with_codes = HQQLinear(layer, config, compute_dtype=dtype, device="cpu")
        setattr(body.encoder.get_submodule(parent), last, with_codes)
        meant[f"encoder.{name}"] = with_codes.dequantize()
    if by == "hqq":
        BaseHQQModel.save_to_safetensors(body, f"{folder}/")
    else:
        body.config.quantization_config = {"quant_method": "hqq", "quant_config": config, "skip_modules": ["lm_head"]}
        body.save_pretrained(folder)
    return meant


@pytest.mark.parametrize("by", ["hqq", "transformers"])
@pytest.mark.parametrize(
    ("settings", "bits"),
    [
        ({"nbits": 8}, 8),
        ({"nbits": 4}, 4),
        ({"nbits": 3}, 3.2),  # ten codes in 32 bits
        ({"nbits": 2}, 2),
        ({"nbits": 4, "axis": 0}, 4),
        ({"nbits": 3, "axis": 0}, 3.5),  # 64 codes are filled up to 70
        ({"nbits": 4, "view_as_float": True}, 4),
        ({"nbits": 3, "view_as_float": True, "dtype": torch.float32}, 3.2),
        ({"nbits": 2, "group_size": 8, "dtype": torch.float32}, 2),  # whose scales are larger than its codes
        ({"nbits": 4, "group_size": None, "dtype": torch.bfloat16}, 4),
    ],
    ids=str,
)
def test_weights_are_those_of_the_library(by: str, settings: dict[str, Any], bits: float, tmp_path: Path) -> None:
    meant = packed(tmp_path, by=by, **settings)
    checkpoint = find_checkpoint(str(tmp_path))
    assert (checkpoint.method, "quant_config" in checkpoint.quantization) == ("hqq", by != "hqq")
    candidate = load_checkpoint(checkpoint, None, device=CPU)
    assert {*(candidate.layers or ())} == {*meant}
    body = candidate.model[0].auto_model
    for name, weight in meant.items():
        ours = body.get_submodule(name).weight
        assert ours.dtype == weight.dtype
        assert torch.equal(ours, weight)
    counted = candidate.bits()
    assert counted is not None
    assert counted.linear == pytest.approx(bits, rel=0.01)


def test_a_transformer_alone_is_measured_as_its_weights_say(tmp_path: Path) -> None:
    meant = packed(tmp_path / "hqq", by="transformers", nbits=3, dtype=torch.float32)
    (tmp_path / "hqq" / "modules.json").unlink()
    tiny().save_pretrained(str(tmp_path / "reference"))
    run = run_two(tmp_path / "reference", tmp_path / "hqq", tmp_path / "run")
    with_weights(tmp_path / "reference", meant).save_pretrained(str(tmp_path / "unpacked"))
    by_hand = run_two(tmp_path / "reference", tmp_path / "unpacked", tmp_path / "by hand")
    assert (perturbation.epsilon(run.evidence()) == perturbation.epsilon(by_hand.evidence())).all()
    assert perturbation.epsilon(run.evidence()).min() > 0.01
    assert run.record["model"]["candidate"]["format"] == "hqq"
    (note,) = run.record["data"]["warnings"]
    assert "says nothing of pooling" in note


def code(text: str) -> Tensor:
    return torch.tensor([ord(letter) for letter in text], dtype=torch.uint8)


HOSTILE: dict[str, dict[str, Tensor | None]] = {
    "code": {"compute_dtype": code("print('run')")},
    "long code": {"compute_dtype": code("[].__class__.__base__.__subclasses__()")},
    "another layout": {"packing": code("5bit_u8")},
    "1.58 bits": {"nbits": torch.tensor(1.58)},
    "other bits than the layout's": {"nbits": torch.tensor(2)},
    "no group": {"group_size": torch.tensor(0)},
    "a group below nothing": {"group_size": torch.tensor(-64)},
    "a group of half a row": {"group_size": torch.tensor(100)},
    "a huge matrix": {"shape": torch.tensor([2**31 - 1, 2**31 - 1])},
    "a huge matrix of one group": {"shape": torch.tensor([2**30, 64]), "group_size": torch.tensor(2**30)},
    "one dimension": {"shape": torch.tensor([192])},
    "a third axis": {"axis": torch.tensor(2)},
    "another axis": {"axis": torch.tensor(0)},
    "quantized zeros": {"quant_zero": torch.tensor(1)},
    "many numbers": {"nbits": torch.full((10**6,), 4)},
    "no numbers": {"nbits": torch.zeros(0, dtype=torch.int32)},
    "a tensor of its own": {"zero_scale": torch.zeros(2)},
    "no zero": {"zero": None},
    "whole scales": {"scale": torch.ones(576, 1, dtype=torch.int32)},
    "one scale": {"scale": torch.ones(1, 1)},
    "codes of another type": {"W_q": torch.ones(288, 64, dtype=torch.int8)},
    "few codes": {"W_q": torch.ones(288, 32, dtype=torch.uint8)},
    "another number type": {"compute_dtype": code("torch.float32")},
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hqq")
    packed(folder)
    return folder


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_hqq_never_writes(hostile: str, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(honest / "model.safetensors")
    for part, tensor in HOSTILE[hostile].items():
        tensors.pop(f"{LAYER}.{part}", None)
        tensors |= {} if tensor is None else {f"{LAYER}.{part}": tensor}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"hqq") as refused:
        unpacked(tmp_path)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 600
    assert capsys.readouterr().out == ""


def test_every_setting_has_a_list_and_is_asked_for(honest: Path, tmp_path: Path) -> None:
    tensors = load_file(honest / "model.safetensors")
    stored = {name.rpartition(".")[2] for name in tensors if name.startswith(f"{LAYER}.")}
    assert stored == {*SETTINGS, "W_q", "scale", "zero", "bias"}
    for setting in SETTINGS:
        others = {name: tensor for name, tensor in tensors.items() if name != f"{LAYER}.{setting}"}
        save_file(others, tmp_path / "model.safetensors")
        with pytest.raises(UnsupportedError, match=f"{LAYER} is not stored as hqq .*: {setting} "):
            unpacked(tmp_path)


def test_shards_may_part_a_layer(honest: Path, tmp_path: Path) -> None:
    whole = unpacked(honest)[0]
    tensors = load_file(honest / "model.safetensors")
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    where = {name: shards[number % 2] for number, name in enumerate(sorted(tensors))}
    for shard in shards:
        save_file({name: tensors[name] for name in tensors if where[name] == shard}, tmp_path / shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (tmp_path / "config.json").write_text("{}")
    assert find_checkpoint(str(tmp_path)).method == "hqq"
    parts = unpacked(tmp_path)[0]
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_it_can_be_the_candidate_only(honest: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"hqq.* quantdrift run"):
        full_precision_source(str(honest))
