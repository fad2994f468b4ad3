"""What is not written as ONNX, or not loaded, and what is said of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from quantdrift.engine.encoders.onnx import load_onnx
from quantdrift.engine.saving import onnx as onnx_folder
from quantdrift.errors import MissingExtraError, RunError, UnsupportedError
from support.candidate_samples import candidate
from support.onnx_samples import graph_of_the_reference, load, one_export, one_thread, save

ir = pytest.importorskip("onnx_ir")

__all__ = ["one_export", "one_thread"]  # fixtures


def test_a_graph_that_was_changed_is_refused(one_export: None, tmp_path: Path) -> None:
    save(candidate("W4-g64"), tmp_path / "out")
    graph = tmp_path / "out" / "onnx" / "model.onnx"
    whole = graph.read_bytes()
    graph.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match=r"is not what scheme\.json beside it was written for"):
        load(tmp_path / "out")
    (tmp_path / "out" / "scheme.json").unlink()
    graph.write_bytes(whole[:100])
    with pytest.raises(RunError, match=r"onnxruntime .* cannot load"):
        load_onnx(tmp_path / "out")


def test_a_folder_without_a_graph_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nosuch", "nosuch"):  # the last could be on the hub
        with pytest.raises(RunError, match=rf"with onnx/model\.onnx in it, got {folder}\. One"):
            load_onnx(folder)


def test_a_result_that_differs_from_torch_is_not_written(
    one_export: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = onnx_folder.pack

    def wrong(quantized: Any) -> Any:
        packed = real(quantized)
        packed.codes[0, 0, 0] ^= 0x0F
        return packed

    monkeypatch.setattr(onnx_folder, "pack", wrong)
    with pytest.raises(UnsupportedError, match=r"different results .* expected at most 1e-04"):
        save(candidate("W4-g64"), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_layers_without_a_product_of_their_own_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: object) -> Any:
        graph = graph_of_the_reference()
        names = [name for name in graph.graph.initializers if "key.weight" in name]
        value = graph.graph.initializers[names[0]]
        for node, position in value.uses():
            extra = ir.Node("", "Relu", [value])
            graph.graph.insert_before(node, extra)
            node.replace_input_with(position, extra.outputs[0])
        graph.graph.initializers.pop(names[1]).name = "folded"
        return graph

    monkeypatch.setattr(onnx_folder, "export_graph", odd)
    with pytest.raises(UnsupportedError) as caught:
        save(candidate("W4-g64"), tmp_path / "out")
    said = str(caught.value)
    assert "2 of 13 quantized layers" in said
    assert "layer.0.attention.self.key (its weight is used by Relu)" in said
    assert "layer.1.attention.self.key (the exported graph has no weight of that name)" in said
    assert not list(tmp_path.iterdir())


def test_a_model_without_a_transformer_is_refused(tmp_path: Path) -> None:
    given = replace(candidate("W4-g64"), model=nn.Sequential(nn.Linear(4, 4)), layers=())
    with pytest.raises(UnsupportedError, match=r"begins with torch\.nn.*--format safetensors"):
        save(given, tmp_path / "out")


def test_what_torch_cannot_export_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("pages of advice") from ValueError("no view of it\nand more")

    monkeypatch.setattr("torch.onnx.export", fails)
    with pytest.raises(UnsupportedError) as caught:
        save(candidate("W4-g64"), tmp_path / "out")
    assert "cannot export BertModel to ONNX: ValueError: no view of it. Use" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_groups_that_no_block_divides_are_refused(one_export: None, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"groups of 24 weights cannot be written as ONNX"):
        save(candidate("W4-g24"), tmp_path / "out")


@pytest.mark.parametrize("package", ["onnxruntime", "onnxscript"])
def test_a_missing_package_names_its_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = candidate("W4-g64")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package!r}, which .*quantdrift\[onnx\]"):
        save(given, tmp_path / "out")
    if package == "onnxruntime":
        with pytest.raises(MissingExtraError, match="running the ONNX model in"):
            load_onnx(tmp_path)
