"""ONNX with packed weights: embeddings are those of torch, of other architectures too; what stays in float is said."""

import copy
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import torch
import transformers as hf
from sentence_transformers import SentenceTransformer
from torch import nn

from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.builtin.onnx import saving as onnx_folder
from quantdrift.builtin.onnx.running import load_onnx
from quantdrift.builtin.sentence.work import SentenceEncoder, load_encoder
from quantdrift.models.files.named import resolve
from quantdrift.models.files.saved import read_record
from quantdrift.models.weights import weights_fingerprint
from support.candidate_samples import HIDDEN, WORDS, apart, candidate, embed, encoder, rich, save, save_backbone, tiny
from support.command_line import cli

ir = pytest.importorskip("onnx_ir")
pytestmark = pytest.mark.slow

PACKED = 12
"""Six layers of each of the two blocks; the pooler is the 13th, and no embedding depends on it."""


def load(folder: Path) -> SentenceEncoder:
    return load_encoder(resolve(str(folder)), device=torch.device("cpu"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder with codes of every kind."""
    folder = tmp_path_factory.mktemp("onnx") / "out"
    save(candidate("W3-g64", rich), folder, model_format="onnx")
    return folder


def test_it_is_an_encoder_like_any_other_with_the_embeddings_of_the_candidate(written: Path) -> None:
    pair, loaded, record = candidate("W3-g64", rich), load(written), read_record(written)
    plain = pair.encoder
    for role in ("query", "document"):
        assert loaded.settings(role) == plain.settings(role)
    reference = embed(tiny())
    with pair.candidate():
        wanted, prompted = embed(tiny()), torch.from_numpy(plain.encode(["drag"], "query", 8))
    assert apart(reference, wanted) > 1e-3
    assert apart(embed(loaded.model), wanted) < 1e-5
    assert apart(torch.from_numpy(loaded.encode(["drag"], "query", 8)), prompted) < 1e-5
    assert max(record["onnx"]["difference_to_torch"].values()) < 1e-5
    stored = Counter(layer["stored"].split(",")[0] for layer in record["layers"])
    assert stored == {"MatMulNBits": PACKED, "left out: unused layer (does not affect embeddings)": 1}
    assert str(loaded.module.device) == "cpu"
    assert not list(loaded.module.parameters())
    assert weights_fingerprint([loaded.module]) == record["candidate_fingerprint"]


def test_no_float_weight_of_a_layer_is_left(written: Path) -> None:
    file = written / "onnx" / "model.onnx"
    graph = ir.load(file).graph
    nodes = [node for node in graph if node.op_type == "MatMulNBits"]
    assert len(nodes) == PACKED
    # 4 would quantize activations to 8 bits
    assert {node.attributes["accuracy_level"].as_int() for node in nodes} == {1}
    floats = {
        value.name
        for value in graph.initializers.values()
        if value.dtype == ir.DataType.FLOAT and len(value.shape) == 2 and "packed" not in value.name
    }
    assert floats and all("embeddings" in name for name in floats)  # noqa: PT018 -- one finding
    assert not list(written.rglob("*.safetensors"))
    assert str(Path(torch.__file__).parent).encode() not in file.read_bytes()


def test_a_graph_that_was_changed_is_refused(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "out")
    graph = folder / "onnx" / "model.onnx"
    whole = graph.read_bytes()
    graph.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match=r"scheme\.json"):
        load(folder)


def test_a_bfloat16_model_with_a_dense_layer_computes_in_float32(tmp_path: Path) -> None:
    """The dense layer comes after the transformer: it keeps the grid's values as floats."""
    from sentence_transformers.sentence_transformer.modules import Dense  # noqa: PLC0415 -- since 6

    torch.manual_seed(1)
    dense = Dense(HIDDEN, 96, activation_function=nn.Tanh())
    original = encoder(tmp_path / "tiny")
    made = SentenceTransformer(modules=[*original.children(), dense], device="cpu").eval()
    made.bfloat16()
    record = save(candidate("W4-g64", model=made), tmp_path / "out", model_format="onnx")
    assert record["layers"][-1]["stored"] == "float values of the grid"
    with candidate("W4-g64", model=(exact := copy.deepcopy(made).float())).candidate():
        wanted = embed(exact)
    assert wanted.shape[1] == 96
    assert apart(embed(load(tmp_path / "out").model), wanted) < 1e-5
    assert made.dtype == torch.bfloat16


def test_the_command_says_what_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_backbone(tmp_path / "tiny")
    words = ("quantize", "./tiny@W3-g64", "-o", "out", "--format", "onnx", "--device", "cpu", "--no-cache", "-q")
    _, shown, _ = cli(*words)
    assert "13 linear layers; 12 of them packed, all else float32" in shown
    assert "unused layer (does not affect embeddings): 0.model.pooler.dense" in shown
    assert "model = load_onnx('out')" in shown
    monkeypatch.setattr(onnx_folder, "AGREEMENT", 1e-9)
    with pytest.raises(UnsupportedError, match="1e-09"):
        save(candidate("W4-g64"), tmp_path / "other", model_format="onnx")
    assert {entry.name for entry in tmp_path.iterdir()} == {"tiny", "out"}


SIZES: dict[str, Any] = {"vocab_size": len(WORDS) + 4, "max_position_embeddings": 48}
WIDTHS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "use_cache": False}


@pytest.mark.very_slow  # minutes of one core
@pytest.mark.parametrize(
    "config",
    [
        hf.Qwen3Config(**SIZES, **WIDTHS, **GROUPED),
        hf.Gemma3TextConfig(**SIZES, **WIDTHS, **GROUPED, sliding_window=8, bos_token_id=2, eos_token_id=3),
        hf.GPT2Config(**SIZES, **WIDTHS, use_cache=False, bos_token_id=2, eos_token_id=3),  # its layers are Conv1D
        hf.AlbertConfig(**SIZES, **WIDTHS, embedding_size=32),  # one block that runs twice
        hf.ModernBertConfig(**SIZES, **WIDTHS, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3),
        hf.T5Config(  # sentence-transformers takes the encoder of it
            vocab_size=SIZES["vocab_size"], d_model=64, num_layers=2, num_heads=4, d_kv=16, d_ff=96
        ),
        hf.DebertaV2Config(**SIZES, **WIDTHS, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_other_architectures(config: Any, side: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = encoder(tmp_path / "tiny", hf.AutoModel.from_config(config))
    model.tokenizer.padding_side = side
    given = candidate("W4-g32", rich, model)
    record = save(given, tmp_path / "out", model_format="onnx")
    with given.candidate():
        wanted = embed(model)
    assert apart(embed(load_onnx(tmp_path / "out")), wanted) < 1e-5
    left_out = [layer["name"] for layer in record["layers"] if "left out" in layer["stored"]]
    assert all("pooler" in name for name in left_out)
