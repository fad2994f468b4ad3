"""ONNX with packed weights: the same embeddings as torch, and nothing left in float unsaid."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from quantdrift.engine.encoders.onnx import load_onnx
from quantdrift.engine.encoders.sentence import SentenceEncoder
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.saving import onnx as onnx_folder
from quantdrift.engine.saving.candidate import in_place
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.models.saved import read_record
from support.candidate_samples import HIDDEN, apart, candidate, embed, encoder, rich, save_backbone, tiny
from support.command_line import cli
from support.onnx_samples import load, one_export, one_thread, save

ir = pytest.importorskip("onnx_ir")
onnxruntime = pytest.importorskip("onnxruntime")

__all__ = ["one_export", "one_thread"]  # fixtures

PACKED = 12
"""Six layers of each of the two blocks; the pooler is the 13th, and no embedding depends on it."""


@pytest.mark.parametrize(
    ("make", "scheme"),
    [
        *((quantize_rtn, scheme) for scheme in ("W2-g128", "W3-g64", "W4-channel", "W8-g128")),
        *((rich, f"W{bits}-{part}") for bits in (2, 4, 8) for part in ("g128", "g64", "channel")),
        (rich, "W5-g32"),
    ],
)
def test_embeddings_are_those_of_the_candidate_in_torch(
    make: Any, scheme: str, one_export: None, tmp_path: Path
) -> None:
    given = candidate(scheme, make)
    record = save(given, tmp_path / "out")
    written = load(tmp_path / "out")
    reference = embed(tiny())
    with in_place(given):
        wanted = embed(tiny())
    assert apart(reference, wanted) > 1e-3
    assert apart(embed(written.model), wanted) < 1e-5
    assert max(record["onnx"]["difference_to_torch"].values()) < 1e-5
    stored = Counter(layer["stored"].split(",")[0] for layer in record["layers"])
    assert stored.pop("MatMulNBits") == PACKED
    assert [how.split(" (")[0] for how in stored.elements()] == ["left out: unused layer"]


def test_no_float_weight_of_a_layer_is_left(one_export: None, tmp_path: Path) -> None:
    save(candidate("W4-g64"), tmp_path / "out")
    written = tmp_path / "out" / "onnx" / "model.onnx"
    graph = ir.load(written).graph
    nodes = [node for node in graph if node.op_type == "MatMulNBits"]
    assert len(nodes) == PACKED
    # 4 would quantize activations to 8 bits
    assert {node.attributes["accuracy_level"].as_int() for node in nodes} == {1}
    floats = [
        value.name
        for value in graph.initializers.values()
        if value.dtype == ir.DataType.FLOAT and len(value.shape) == 2 and "scale" not in value.name
    ]
    assert floats and all("embeddings" in name for name in floats)  # noqa: PT018 -- one finding
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    assert str(Path(torch.__file__).parent).encode() not in written.read_bytes()


def test_a_folder_is_an_encoder_like_any_other(one_export: None, tmp_path: Path) -> None:
    given = candidate("W4-g64", rich)
    save(given, tmp_path / "out")
    written = load(tmp_path / "out")
    plain = SentenceEncoder(model=tiny(), source=given.source, similarity=written.similarity)
    for role in ("query", "document"):
        assert written.settings(role) == plain.settings(role)
    with in_place(given):
        wanted = torch.from_numpy(plain.encode(["drag"], "query", 8))  # has a prompt
    assert apart(torch.from_numpy(written.encode(["drag"], "query", 8)), wanted) < 1e-5
    assert str(written.module.device) == "cpu"
    assert not list(written.module.parameters())
    record = read_record(tmp_path / "out")
    assert weights_fingerprint([written.module]) == record["candidate_fingerprint"]
    assert apart(embed(load_onnx(tmp_path / "out")), embed(written.model)) == 0


def test_a_bfloat16_model_with_a_dense_layer_computes_in_float32(one_export: None, tmp_path: Path) -> None:
    """The dense layer comes after the transformer: it keeps the grid's values as floats."""
    from sentence_transformers.sentence_transformer.modules import Dense  # noqa: PLC0415 -- since 6

    torch.manual_seed(1)
    dense = Dense(HIDDEN, 96, activation_function=nn.Tanh())
    original = encoder(tmp_path / "tiny")
    made = SentenceTransformer(modules=[*original.children(), dense], device="cpu").eval()
    made.bfloat16()
    given = candidate("W4-g64", model=made)
    record = save(given, tmp_path / "out")
    assert record["layers"][-1]["stored"] == "float values of the grid"
    wanted_of = copy.deepcopy(made).float()
    given.put_into(wanted_of)
    wanted = embed(wanted_of)
    assert wanted.shape[1] == 96
    assert apart(embed(load(tmp_path / "out").model), wanted) < 1e-5
    assert made.dtype == torch.bfloat16


def test_the_command_says_what_is_packed_and_what_is_not(
    one_export: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_backbone(tmp_path / "tiny")  # the weights that the export has
    words = ("quantize", "./tiny@W3-g64", "-o", "out", "--format", "onnx", "--device", "cpu", "--no-cache", "-q")
    _, shown, _ = cli(*words)
    assert "13 linear layers; 12 of them packed at 4 bits, all else float32" in shown
    assert "unused layer (does not affect embeddings): 0.model.pooler.dense" in shown
    assert "checked: differs from torch by " in shown
    assert "model = load_onnx('out')" in shown


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
