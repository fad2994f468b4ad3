"""ONNX models that others exported and quantized: the embeddings of onnxruntime itself, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertModel

from integration.models import onnx_samples as samples
from quantdrift.base.errors import QuantDriftError, RunError, UnsupportedError
from quantdrift.builtin.onnx.graph import OnnxGraph, read_graph
from quantdrift.builtin.sentence.work import SentenceEncoder, load_encoder
from quantdrift.candidate.checkpoint import StoredCandidate, load_checkpoint
from quantdrift.models.bits import BitsReport
from quantdrift.models.files.checkpoint import find_checkpoint, full_precision_source
from quantdrift.models.files.named import resolve
from support.candidate_samples import TEXTS, bert, save_backbone

onnx = samples.onnx
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    """A small BERT, mean pooling and length 1; it lends these, its weights do not count."""
    path = tmp_path_factory.mktemp("reference")
    save_backbone(path / "body", BertModel(bert(hidden_size=samples.HIDDEN, num_attention_heads=2)))
    modules = [Transformer(str(path / "body")), Pooling(samples.HIDDEN), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(path / "model"))
    return load_encoder(resolve(str(path / "model")), device=CPU)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "model.onnx"
    onnx.save(samples.graph(), path)
    return path


def load(name: Path, reference: SentenceEncoder | None) -> StoredCandidate:
    return load_checkpoint(find_checkpoint(str(name)), reference, device=CPU)


def bits_of(encoder: StoredCandidate) -> BitsReport:
    bits = encoder.bits()
    assert bits is not None
    return bits


def embed(encoder: SentenceEncoder) -> NDArray[np.float64]:
    return encoder.encode(TEXTS, "document", 8).astype(np.float64)


FOUND: dict[str, tuple[str, str, float, str]] = {
    "dynamic": ("dynamic", "MatMulInteger", 8.0, "float32"),
    "QDQ": ("static QDQ", "MatMul", 8.0, "float32"),
    "QOperator": ("static QOperator", "QLinearMatMul", 8.0, "float32"),
    "nbits": ("weight-only", "MatMulNBits", 4.0, "float32"),
    "float16": ("", "", 16.0, "float16"),
}


@pytest.mark.parametrize("method", samples.METHODS)
def test_embeddings_are_onnxruntime_s(method: str, reference: SentenceEncoder, plain: Path, tmp_path: Path) -> None:
    folder = samples.folder(tmp_path / "some")
    file = folder / "onnx" / "model_quantized.onnx"
    samples.quantized(plain, method, file)
    loaded = load(folder, reference)
    np.testing.assert_allclose(embed(loaded), samples.pooled(file, TEXTS), atol=2e-6)
    assert np.abs(embed(loaded) - samples.pooled(plain, TEXTS)).max() > 1e-5
    how, operator, width, dtype = FOUND[method]
    described = loaded.describe()
    assert described["graph"]["method"] == ({how: 2} if how else "none")
    assert described["graph"]["operators"] == ({operator: 2} if how else {})
    assert (bits_of(loaded).linear, described["dtype"]) == (width, dtype)
    assert bits_of(loaded).n_quantized == (2 * samples.HIDDEN * samples.INNER if how else 0)
    assert loaded.layers is not None
    assert (len(loaded.layers), described["provider"]) == (2 if how else 0, "CPUExecutionProvider")
    assert described["threads"] == torch.get_num_threads()
    assert "taken from the reference" in " ".join(loaded.notes)


def test_bits_that_cannot_be_told_are_unknown(reference: SentenceEncoder, plain: Path, tmp_path: Path) -> None:
    folder = samples.folder(tmp_path / "some")
    file = folder / "onnx" / "model.onnx"
    samples.quantized(plain, "dynamic", file)
    model = onnx.load(file)
    for message in (*model.graph.initializer, *model.graph.node):
        message.name = message.name.replace("W1_scale", "sc")
        for names in (message.input, message.output) if hasattr(message, "input") else ():
            names[:] = [name.replace("W1_scale", "sc") for name in names]
    onnx.save(model, file)
    candidate = load(folder, reference)
    np.testing.assert_allclose(embed(candidate), samples.pooled(file, TEXTS), atol=2e-6)
    assert candidate.bits() is None
    assert any("bits per weight of model.onnx are unknown" in note for note in candidate.notes)
    strange = samples.graph()  # somebody's packed table: how many weights are in a byte nobody knows
    codes = onnx.numpy_helper.from_array(np.zeros((4, 4), dtype=np.uint8), "codes")
    strange.graph.initializer.append(codes)
    strange.graph.node.append(onnx.helper.make_node("GatherBlockQuantized", ["codes"], ["x"], domain="com.microsoft"))
    onnx.save(strange, file)
    assert read_graph(file).bits is None


def test_a_folder_with_modules_json_pools_as_it_says(reference: SentenceEncoder, plain: Path, tmp_path: Path) -> None:
    reference.model.save_pretrained(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    samples.quantized(plain, "dynamic", tmp_path / "onnx" / "model_qint8_avx512.onnx")
    pooling = tmp_path / "1_Pooling" / "config.json"
    said = {"word_embedding_dimension": samples.HIDDEN, "pooling_mode_cls_token": True}
    pooling.write_text(json.dumps({**said, "pooling_mode_mean_tokens": False}))
    loaded = load(tmp_path / "onnx" / "model_qint8_avx512.onnx", reference)
    states, _ = samples.states(tmp_path / "onnx" / "model_qint8_avx512.onnx", TEXTS)
    first = states[:, 0] / np.linalg.norm(states[:, 0], axis=1, keepdims=True)
    np.testing.assert_allclose(embed(loaded), first, atol=2e-6)
    assert any("differ in pooling" in note for note in loaded.notes)


@pytest.mark.parametrize(("output", "pooled"), [("sentence_embedding", True), ("token_embeddings", False)])
def test_outputs_and_inputs(reference: SentenceEncoder, tmp_path: Path, output: str, pooled: bool) -> None:
    model = samples.graph(output=output, pooled=pooled, ids="int32")
    folder = samples.folder(tmp_path, model=model)
    loaded = load(folder, reference)
    file = folder / "onnx" / "model.onnx"
    wanted = samples.states(file, TEXTS)[0] if pooled else samples.pooled(file, TEXTS)
    np.testing.assert_allclose(embed(loaded), wanted, atol=2e-6)
    assert bool(abs(np.linalg.norm(wanted[0]) - 1) > 0.1) is pooled  # no normalization was put behind it
    assert any("sentence_embedding" in note for note in loaded.notes) is pooled


def test_an_output_of_another_name_is_refused(reference: SentenceEncoder, tmp_path: Path) -> None:
    folder = samples.folder(tmp_path, model=samples.graph(output="output_0"))
    with pytest.raises(UnsupportedError, match="output_0"):
        load(folder, reference)


def test_positions_and_token_types_are_fed(reference: SentenceEncoder, plain: Path, tmp_path: Path) -> None:
    nodes = (
        """place = Cast <to = 1> (position_ids) wide = Unsqueeze(place, axes) last_hidden_state = Add(states, wide)"""
    )
    model = samples.graph(extra=("token_type_ids", "position_ids"), behind=nodes, axes=np.array([2]))
    loaded = load(samples.folder(tmp_path / "model", model=model), reference)
    states, mask = samples.states(plain, TEXTS)
    wanted = samples.means(states + np.arange(states.shape[1])[None, :, None], mask)
    np.testing.assert_allclose(embed(loaded), wanted, atol=2e-6)
    assert any("positions" in note for note in loaded.notes)


def test_weights_beside_it_count_and_decide_the_fingerprint(reference: SentenceEncoder, tmp_path: Path) -> None:
    folder = samples.folder(tmp_path)
    onnx.save(
        samples.graph(),
        folder / "onnx" / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    loaded = load(folder, reference)
    np.testing.assert_allclose(embed(loaded), samples.pooled(folder / "onnx" / "model.onnx", TEXTS), atol=2e-6)
    numbers = samples.VOCABULARY * samples.HIDDEN + 2 * samples.HIDDEN * samples.INNER
    assert (bits_of(loaded).n_parameters, bits_of(loaded).all_parameters) == (numbers, 32)
    assert loaded.describe()["graph"]["external_data"] == ["model.onnx_data"]
    data = folder / "onnx" / "model.onnx_data"
    content = bytearray(data.read_bytes())
    content[2] ^= 1
    data.write_bytes(bytes(content))
    assert load(folder, reference).fingerprint != loaded.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dynamic", "QDQ"])
def test_a_bert_that_onnxruntime_quantized(reference: SentenceEncoder, tmp_path: Path, method: str) -> None:
    plain = samples.exported(reference.model[0].auto_model, tmp_path / "plain.onnx")
    np.testing.assert_allclose(embed(reference), samples.pooled(plain, TEXTS), atol=1e-5)
    folder = samples.folder(tmp_path / "some")
    file = folder / "onnx" / "model_quantized.onnx"
    samples.quantized(plain, method, file)
    loaded = load(folder, reference)
    np.testing.assert_allclose(embed(loaded), samples.pooled(file, TEXTS), atol=2e-6)
    # in two blocks four layers of attention and two behind it; the pooler gives no state
    how = {"dynamic": "dynamic", "QDQ": "static QDQ"}[method]
    assert loaded.describe()["graph"]["method"][how] == 12


def test_endless_graphs_stop(reference: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = samples.folder(tmp_path / "endless", model=samples.endless())
    monkeypatch.setattr("quantdrift.builtin.onnx.running.DEADLINE", 0.5)
    with pytest.raises(RunError, match=r"0\.5 s"):
        embed(load(endless, reference))


# --- refusals -------------------------------------------------------------------------------------


def said(name: Path, reference: SentenceEncoder) -> str:
    with pytest.raises(UnsupportedError) as caught:
        load(name, reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_several_graphs_are_listed_and_one_is_named(reference: SentenceEncoder, tmp_path: Path) -> None:
    folder = samples.folder(tmp_path, model=samples.graph(), model_int8=samples.graph())
    text = said(folder, reference)
    assert all(part in text for part in ("onnx/model.onnx, onnx/model_int8.onnx", f"{folder}/onnx/model.onnx"))
    assert load(folder / "onnx" / "model_int8.onnx", reference).checkpoint.file == "onnx/model_int8.onnx"


def test_what_cannot_be_fed_or_read_is_refused(reference: SentenceEncoder, tmp_path: Path) -> None:
    fixed = samples.graph()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    for name, model, text in (
        ("cache", samples.graph(extra=("past_key_values_0_key",)), "takes past_key_values_0_key"),
        ("logits", samples.graph(output="logits"), "gives logits, .* classification data"),
        ("fixed", fixed, r"input_ids of the fixed size \[1, None\]"),
    ):
        folder = samples.folder(tmp_path / name, model=model)
        with pytest.raises(UnsupportedError, match=text):
            load(folder, reference)
    with pytest.raises(UnsupportedError, match="candidate only"):
        full_precision_source(str(folder))


def outside(model: Any, location: str, **more: str) -> Any:
    """The first weight, said to lie in another file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return model


@pytest.mark.parametrize(
    ("location", "more", "text"),
    [
        ("../secret", {}, "not in its folder"),
        ("/etc/passwd", {}, "not in its folder"),
        ("C:\\secret", {}, "not in its folder"),
        ("a/../../secret", {}, "not in its folder"),
        ("*/_ORT_MEM_ADDR_/*", {"offset": "94000000000000"}, "not in its folder"),
        ("missing", {}, "no such file"),
        ("link", {}, "no such file"),
        ("data", {"offset": "1"}, "beyond its end"),
        ("data", {"offset": "-4"}, "beyond its end"),
        ("data", {"length": "99999999999"}, "beyond its end"),
        ("data", {"length": "8"}, "has 8 bytes, expected"),
        ("data", {"offset": "many"}, "beyond its end"),
    ],
)
def test_weights_that_lie_elsewhere_are_refused(tmp_path: Path, location: str, more: dict[str, str], text: str) -> None:
    content = b"\0" * (samples.VOCABULARY * samples.HIDDEN * 4)
    (tmp_path / "secret").write_bytes(content)
    folder = samples.folder(tmp_path / "model", model=outside(samples.graph(), location, **more))
    (folder / "onnx" / "data").write_bytes(content)
    (folder / "onnx" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(UnsupportedError, match=text):
        read_graph(folder / "onnx" / "model.onnx")


def test_hostile_and_damaged_graphs_are_one_line(reference: SentenceEncoder, plain: Path, tmp_path: Path) -> None:
    strange = samples.graph()
    strange.graph.node[2].domain = "com.somebody\x1b[31m"
    folder = samples.folder(tmp_path / "domain", model=strange)
    assert "com.somebody" in said(folder, reference)
    assert "\x1b" not in said(folder, reference)
    large = samples.graph()
    large.graph.initializer[1].dims[0] = 1 << 60
    assert "expected" in said(samples.folder(tmp_path / "large", model=large), reference)
    loop = samples.graph()
    loop.graph.node[1].input[0] = "cut"
    assert "cannot run" in said(samples.folder(tmp_path / "loop", model=loop), reference)
    content = plain.read_bytes()
    for number, damage in enumerate((b"", b"no graph", content[:-40], content[:9])):
        broken = samples.folder(tmp_path / f"broken{number}")
        (broken / "onnx" / "model.onnx").write_bytes(damage)
        assert "damaged or cut short" in said(broken, reference)


def test_a_broken_byte_is_never_a_traceback(plain: Path, tmp_path: Path) -> None:
    rng, content = np.random.default_rng(0), plain.read_bytes()
    for _ in range(60):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 3):
            damaged[place] = int(rng.integers(0, 256))
        (tmp_path / "model.onnx").write_bytes(bytes(damaged))
        try:
            loaded: OnnxGraph | None = read_graph(tmp_path / "model.onnx")
        except QuantDriftError:
            loaded = None
        assert loaded is None or loaded.outputs
