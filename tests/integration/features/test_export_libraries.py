"""Exported allocations, read by the libraries they are for: each layer gets its width, no other.

Not installed here, and so checked for their form only (tests/unit): llm-compressor and llama.cpp.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

from quantdrift.features.export.formats import export_allocation, exporter, usage_of
from quantdrift.models.layers import find_linears, modules_of
from support.allocations import allocation
from support.candidate_samples import tiny

WIDE = "encoder.layer.0.output.dense"
LEFT = "encoder.layer.1.attention.self.key"


def widths() -> dict[str, int]:
    """By the name inside the transformers model: 4, but 8 for one and 16 for one."""
    names = [layer.name.removeprefix("0.model.") for layer in find_linears(modules_of(tiny()))]
    assert {WIDE, LEFT} < set(names)
    return {**dict.fromkeys(names, 4), WIDE: 8, LEFT: 16}


def exported(name: str) -> str:
    given = allocation({f"0.model.{layer}": width for layer, width in widths().items()}, widths=(4, 8))
    return export_allocation(given, exporter(name))[0]


def used(name: str, folder: Path) -> dict[str, Any]:
    """The names that the Python which `export` shows leaves behind, run as it stands."""
    path = folder / "exported.json"
    path.write_text(exported(name), encoding="utf-8")
    left: dict[str, Any] = {}
    exec(compile(usage_of(exporter(name), str(path)), name, "exec"), left)
    return left


def transformer() -> nn.Module:
    model: nn.Module = deepcopy(tiny()[0].auto_model)
    return model


def test_exported_names_are_those_of_the_transformers_model() -> None:
    assert list(widths()) == [name for name, module in transformer().named_modules() if type(module) is nn.Linear]


@pytest.mark.parametrize("held", ["", "model.", "bert."])
def test_gptqmodel_gives_each_layer_its_width(held: str, tmp_path: Path) -> None:
    pytest.importorskip("gptqmodel")
    config = used("gptqmodel", tmp_path)["config"]
    for name, width in widths().items():
        settings = config.dynamic_get(held + name)
        if width == 16:
            assert settings is False
        else:
            assert settings == {"bits": width, "group_size": 32}
    assert config.dynamic_get(held + "encoder.layer.10.output.dense") is None
    # what vLLM looks up for the layers that it multiplies at once
    assert config.dynamic_get(held + "encoder.layer.0.attention.self.qkv_proj", "bits") == 4


@pytest.mark.parametrize("held", ["", "bert."])
def test_torchao_rounds_each_layer_to_its_width(held: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    config = used("torchao", tmp_path)["config"].quant_type
    model = transformer()
    if held:
        outer = BertForSequenceClassification(model.config)
        outer.bert = model
        model = outer
    before = {name: model.get_submodule(held + name).weight for name in widths()}
    quantization.quantize_(model, config, filter_fn=None)
    for name, width in widths().items():
        weight: Any = model.get_submodule(held + name).weight
        if width == 16:
            assert weight is before[name]
            continue
        assert weight.target_dtype == getattr(torch, f"int{width}")
        assert weight.block_size == (1, 32)
        worst = (weight.dequantize() - before[name]).abs().max()
        assert worst < before[name].abs().max() / 2 ** (width - 1)
    if held:
        assert type(model.classifier.weight) is nn.Parameter
