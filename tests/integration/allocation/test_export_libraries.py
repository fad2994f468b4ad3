"""Exported allocations, read by the libraries they are for: each layer gets its width, no other.

Not installed here, and so checked for their form only (tests/unit): llm-compressor, AutoRound and
llama.cpp.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

from quantdrift.allocation.exports import export_allocation, exporter, usage_of
from quantdrift.allocation.record import AllocatedLayer
from quantdrift.engine.layers import find_linears, modules_of
from support.allocations import allocation
from support.candidate_samples import TEXTS, tiny, tokenizer

WIDE = "encoder.layer.0.output.dense"
LEFT = "encoder.layer.1.attention.self.key"


def widths() -> dict[str, int]:
    """By the name inside the transformers model: 4, but 8 for one and 16 for one."""
    names = [layer.name.removeprefix("0.model.") for layer in find_linears(modules_of(tiny()))]
    assert {WIDE, LEFT} < set(names)
    return {**dict.fromkeys(names, 4), WIDE: 8, LEFT: 16}


def exported(name: str, given: Mapping[str, int] | None = None) -> Any:
    linears = find_linears(modules_of(tiny()))
    chosen = given or widths()
    layers = [
        AllocatedLayer(
            name=layer.name,
            shape=(layer.weight.shape[0], layer.weight.shape[1]),
            width=chosen[layer.name.removeprefix("0.model.")],
        )
        for layer in linears
    ]
    return json.loads(export_allocation(allocation(layers, widths=(4, 8)), exporter(name))[0])


def used(name: str, folder: Path, given: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The names that the Python which `export` shows leaves behind, run as it stands."""
    path = folder / "exported.json"
    path.write_text(json.dumps(exported(name, given)), encoding="utf-8")
    left: dict[str, Any] = {}
    exec(compile(usage_of(exporter(name), str(path)), name, "exec"), left)
    return left


def transformer() -> nn.Module:
    model: nn.Module = deepcopy(tiny()[0].auto_model)
    return model


def test_exported_names_are_those_of_the_transformers_model() -> None:
    inside = [name for name, module in transformer().named_modules() if type(module) is nn.Linear]
    assert list(widths()) == [name for name in inside if name in widths()]
    assert len(set(inside) - set(widths())) == 0


@pytest.mark.parametrize("held", ["", "model.", "bert."])
def test_gptqmodel_gives_each_layer_its_width(held: str, tmp_path: Path) -> None:
    pytest.importorskip("gptqmodel")
    config = used("gptqmodel", tmp_path)["config"]
    for name, width in widths().items():
        found = config.dynamic_get(held + name)
        if width == 16:
            assert found is False
        else:
            assert found == {"bits": width, "group_size": 32}
    assert config.dynamic_get(held + "encoder.layer.10.output.dense") is None
    # what vLLM looks up for the layers that it multiplies at once
    assert config.dynamic_get(held + "encoder.layer.0.attention.self.qkv_proj", "bits") == 4


def test_transformers_gives_each_kind_of_layer_its_hqq_width(tmp_path: Path) -> None:
    hqq = pytest.importorskip("hqq.core.quantize")
    from transformers.integrations import prepare_for_hqq_linear  # noqa: PLC0415 -- after the skip

    def width(name: str) -> int:
        if name.endswith("self.key"):
            return 16
        return 8 if name.endswith("intermediate.dense") else 3

    given = {name: width(name) for name in widths()}
    config = used("hqq", tmp_path, given)["config"]
    model = prepare_for_hqq_linear(transformer(), quantization_config=config)
    for name, bits in given.items():
        linear: Any = model.get_submodule(name)
        chosen = getattr(linear, "quant_config", None)
        if bits == 16:
            assert chosen is None
            continue
        made = hqq.HQQLinear(linear, deepcopy(chosen), compute_dtype=torch.float32, device="cpu")
        assert made.meta["nbits"] == bits
        assert made.meta["scale"].numel() == linear.in_features * linear.out_features // 32


@pytest.mark.parametrize("held", ["", "bert."])
def test_torchao_rounds_each_layer_to_its_width(held: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig  # noqa: PLC0415 -- after the skip

    given = used("torchao", tmp_path)["config"]
    config = given.quant_type
    again = TorchAoConfig.from_dict(given.to_dict()).quant_type
    assert again == config
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


def test_onnxruntime_packs_each_node_with_its_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    logging.getLogger().handlers.clear()  # the module sets one up when it is imported
    path = tmp_path / "model.onnx"
    batch = dict(tokenizer()(TEXTS, padding=True, return_tensors="pt"))
    names = ("input_ids", "attention_mask")
    model = transformer().eval()
    run = model.forward
    # this exporter passes arguments by their position, and optimum gives it such a forward, too
    model.forward = lambda *given: run(**dict(zip(names, given, strict=True)))[0]
    torch.onnx.export(model, tuple(batch[name] for name in names), path, input_names=names, dynamo=False)
    monkeypatch.chdir(tmp_path)
    left = used("onnxruntime", tmp_path)
    plan, graph = left["nodes"], left["quantizer"].model.model.graph
    assert Path("model-quantized.onnx").stat().st_size < path.stat().st_size
    packed = {
        node.name.rpartition("_Q")[0]: {a.name: a.i for a in node.attribute}
        for node in graph.node
        if node.op_type == "MatMulNBits"
    }
    settings = plan["customized_weight_config"]
    assert len(settings) == len(widths()) - 2  # one is left alone, and the pooler is no MatMul
    assert {name: bits["bits"] for name, bits in packed.items()} == {
        name: setting["bits"] for name, setting in settings.items()
    }
    assert {bits["block_size"] for bits in packed.values()} == {32}
    plain = {node.name for node in graph.node if node.op_type == "MatMul"}
    assert set(plan["nodes_to_exclude"]) < plain
