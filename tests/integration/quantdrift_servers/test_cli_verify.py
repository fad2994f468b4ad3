"""`quantdrift verify`: saved, exported, changed, of another size, served; exit codes 0, 1 and 2."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from integration.models import checkpoint_makers as makers
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift_servers.verify.likeness import _largest, _weight
from support.candidate_samples import WORDS, bert, encoder, quantized
from support.command_line import cli
from support.embedding_server import no_long_texts, of_model, serving
from support.tiny_command_line import one_thread, place

__all__ = ["one_thread", "place"]

LAYER = "encoder.layer.1.output.dense"


@pytest.fixture(autouse=True)
def _here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(place / "cache"))
    (tmp_path / "tiny").symlink_to(place / "tiny", target_is_directory=True)


def said(deployed: object, *words: str, of: str = "./tiny@W4-g64") -> tuple[int, str, str]:
    return cli("verify", deployed, "--of", of, "--device", "cpu", "-q", *words)


def verified(deployed: object, *words: str, of: str = "./tiny@W4-g64") -> dict[str, Any]:
    """What it found, and the exit code or the error."""
    code, out, err = said(deployed, "--json", *words, of=of)
    return {"code": code, **(json.loads(out) if out else {"error": err})}


@pytest.fixture(scope="module")
def saved(place: Path) -> Path:
    """The candidate, by sentence-transformers alone: no scheme.json says what it is."""
    model = SentenceTransformer(str(place / "tiny"), device="cpu")
    with quantized(model, "W4-g64"):
        model.save_pretrained(str(place / "w4"))
    return place / "w4"


def changed(saved: Path, out: Path, change: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> Path:
    """A copy of a folder whose weights are changed."""
    model = SentenceTransformer(str(saved), device="cpu")
    model.save_pretrained(str(out))
    save_file(change(load_file(out / "model.safetensors")), out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_what_quantize_wrote_is_equal(place: Path) -> None:
    cli("quantize", "./tiny@W4-g64", "-o", "w4", "--device", "cpu", "-q")
    found = verified("w4")
    assert (found["verdict"], found["difference"], found["others"]) == ("equal", 0, [])
    assert found["n"] == 64
    assert found["to_reference"] > 0  # bits did change something
    assert "equal: w4, compared with ./tiny@W4-g64-rtn" in said("w4")[1]
    found = verified("w4", "--data", str(place / "data"))
    assert (found["verdict"], found["n"]) == ("equal", 51)  # a third of 64 are queries, and there are 30 documents


def test_onnx_rounds_otherwise(saved: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from integration.models.onnx_samples import exported  # noqa: PLC0415 -- an optional extra

    shutil.copytree(saved, "w4-onnx")
    Path("w4-onnx", "model.safetensors").unlink()
    exported(SentenceTransformer(str(saved), device="cpu")[0].auto_model, Path("w4-onnx", "onnx", "model.onnx"))
    found = verified("w4-onnx")
    assert (found["verdict"], found["parts"]) == ("within rounding", [])
    assert 0 < found["difference"] < found["bound"] < 1e-4
    assert "its weights cannot be seen" in said("w4-onnx")[1]
    assert verified("w4-onnx", of="./tiny@W8-g64")["verdict"] == "other"


def test_one_layer_that_is_changed_is_named(saved: Path, tmp_path: Path) -> None:
    assert verified(saved)["verdict"] == "equal"

    def more(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights[f"{LAYER}.weight"][3, 5] += 0.01 * weights[f"{LAYER}.weight"][3].abs().max()
        return weights

    folder = changed(saved, tmp_path / "changed", more)
    found = verified(folder)
    assert found["verdict"] == "other"
    assert [part["name"] for part in found["others"]] == [f"0.model.{LAYER}"]
    assert found["others"][0]["difference"] == pytest.approx(0.01, rel=1e-4)
    code, out, _ = said(folder)
    assert code == 1
    assert f"weights of 1 of {len(found['parts'])} modules differ" in out


def test_a_row_that_no_text_needs(saved: Path, tmp_path: Path) -> None:
    def moved(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights["embeddings.word_embeddings.weight"][4 + WORDS.index("shock"), 0] += 1
        return weights

    found = verified(changed(saved, tmp_path / "moved", moved))
    assert (found["code"], found["verdict"], found["difference"]) == (1, "other", 0)
    assert [part["name"] for part in found["others"]] == ["0.model.embeddings.word_embeddings"]


def test_a_weight_that_is_no_number(saved: Path, tmp_path: Path) -> None:
    def broken(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights["embeddings.word_embeddings.weight"][4 + WORDS.index("shock"), 0] = torch.nan  # no text needs it
        return weights

    assert "word_embeddings are not" in verified(changed(saved, tmp_path / "broken", broken))["error"]


def test_in_float16_rounding_is_more(saved: Path, tmp_path: Path) -> None:
    folder = changed(saved, tmp_path / "half", lambda weights: {name: part.half() for name, part in weights.items()})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    found = verified(folder)
    assert (found["verdict"], found["dtype"]) == ("within rounding", "float16")
    assert 1e-5 < found["difference"] < found["bound"] < 5e-3
    assert verified(folder, of="./tiny@W6-g64")["verdict"] == "other"


def test_another_model_is_refused(saved: Path, tmp_path: Path) -> None:
    from transformers import BertModel  # noqa: PLC0415 -- slow to import

    other = BertModel(bert(hidden_size=64, num_attention_heads=4, intermediate_size=64))
    encoder(tmp_path / "backbone", other).save_pretrained(str(tmp_path / "small"))
    assert "it is another model: expected" in verified(tmp_path / "small")["error"]
    with serving(small=of_model(SentenceTransformer(str(tmp_path / "small"), device="cpu"))) as server:
        assert (
            "it is another model: expected embeddings of 192 numbers; got 64" in verified(server.name("small"))["error"]
        )
    assert "leave what is stored and +query out" in verified(saved, of="./tiny@W4+query")["error"]
    assert "leave what is stored" in verified(saved, of="./tiny@W4+emb=int8")["error"]
    assert "no-such-folder" in verified("./no-such-folder")["error"]


@pytest.mark.slow
def test_servers(place: Path, saved: Path) -> None:
    full, w4 = (SentenceTransformer(str(folder), device="cpu") for folder in (place / "tiny", saved))
    rounding = {"half": lambda texts: of_model(w4)(texts).astype(np.float16).astype(np.float32)}
    with serving(w4=of_model(w4), full=of_model(full), **rounding) as server:
        found = verified(server.name("w4"), "--batch-size", "1")  # as it makes batches of its own
        assert found["verdict"] in {"equal", "within rounding"}  # threads and batches of torch decide
        assert found["parts"] == []
        found = verified(server.name("full"), "--batch-size", "1")
        assert (found["verdict"], found["to_reference"]) == ("other", 0)
        assert verified(server.name("half"))["verdict"] == "other"  # more than float32 rounds
        server.always = no_long_texts
        assert verified(server.name("w4"))["n"] == 62
    assert "127.0.0.1:1" in verified("openai:http://127.0.0.1:1/v1#gone")["error"]


class _Packed(nn.Module):
    """A layer as kernels keep it: codes and scales, no weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        made = quantize_rtn(weight, bits=4, group_size=None)
        self.codes, self.scale, self.bias = made.codes, made.scale, nn.Parameter(torch.ones(len(weight)))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ (self.codes * self.scale).T + self.bias


def test_a_packed_layer_is_seen_through_its_kernel() -> None:
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    packed = _Packed(weight)
    seen = _weight(packed, "weight", weight, "layer")
    assert seen is not None
    torch.testing.assert_close(seen, packed.codes * packed.scale)
    by_hand = ((seen - weight).abs() / weight.abs().amax(1, keepdim=True)).max()
    assert _largest(weight, seen) == pytest.approx(float(by_hand))
    assert _weight(None, "weight", weight, "layer") is None


@pytest.mark.very_slow  # 40 s, most of them for gptqmodel to load
def test_a_folder_in_the_layout_of_gptqmodel(tmp_path: Path) -> None:
    pytest.importorskip("gptqmodel", reason="gptqmodel is not installed")
    tensors, group = makers.weights(), makers.GROUP
    for name in makers.linear_names(tensors):
        weight = tensors.pop(f"{name}.weight")
        made = quantize_rtn(weight, bits=4, group_size=group)
        zero = torch.full_like(made.scale, 8, dtype=torch.int32)
        tensors |= {
            f"{name}.qweight": makers.words((made.codes.int() + 8).T, 0),
            f"{name}.qzeros": makers.words((zero.T - 1) % 16, 1),
            f"{name}.g_idx": (torch.arange(weight.shape[1]) // group).int(),
            f"{name}.scales": made.scale.half().T,
        }
    how = {"quant_method": "gptq", "desc_act": False, "sym": True, "checkpoint_format": "gptq", "backend": "torch"}
    config = {"bits": 4, "group_size": group, **how}
    folder = makers.write_folder(tmp_path / "gptq", tensors, config, modules=True)
    found = verified(folder, of="minilm@W4")
    assert (found["verdict"], found["dtype"]) == ("within rounding", "float16")
    assert found["difference"] < 2e-3 < found["to_reference"]
    assert all(part["difference"] is not None for part in found["parts"])
    assert verified(folder, of="minilm@W4-hqq")["verdict"] == "other"
