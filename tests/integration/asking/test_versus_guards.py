"""What keeps a stored candidate from being taken for another, its files and its settings; and what its runs share."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import BertModel

from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.evidence import perturbation
from quantdrift.models.store import EmbeddingStore
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import parse
from support.candidate_samples import bert, candidate, save, tiny
from support.versus_samples import change, run_any, run_two


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "tiny"
    tiny().save_pretrained(str(folder), create_model_card=False)
    return folder


def copy(reference: Path, to: Path, **settings: Any) -> Path:
    shutil.copytree(reference, to)
    change(to / "config.json", **settings)
    return to


def saved(out: Path) -> Path:
    save(candidate("W3-g64"), out)
    return out


def fingerprint(run: Run) -> str:
    return str(run.record["model"]["candidate"]["fingerprint"])


def test_the_same_weights_with_other_settings_are_another_candidate(reference: Path, tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path / "cache")
    odd = copy(reference, tmp_path / "odd", hidden_act="relu", layer_norm_eps=1e-2)
    same = copy(reference, tmp_path / "same", use_cache=False, initializer_range=0.5)
    first = run_two(reference, odd, tmp_path / "a", store=store)
    second = run_two(reference, same, tmp_path / "b", store=store)
    assert perturbation.epsilon(first.evidence()).min() > 1e-4
    assert not perturbation.epsilon(second.evidence()).any()  # not those of the first
    assert fingerprint(first) != fingerprint(second)


def test_full_precision_weights_put_into_a_saved_candidate_are_refused(reference: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path / "w3")
    shutil.copy(reference / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors .*scheme\.json"):
        run_two(reference, folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "is a BertForSequenceClassification, not an embedding"),
        ({"quantization_config": {"quant_method": "hqq"}}, r"\(hqq\), but no packed linear layer"),
        ({"model_type": "nosuch"}, "format none.* cannot be loaded"),
    ],
)
def test_what_cannot_be_compared(reference: Path, tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said) as caught:
        run_two(reference, copy(reference, tmp_path / "other", **settings), tmp_path / "run")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_method_that_transformers_skips_is_refused(reference: Path, tmp_path: Path) -> None:
    """Of modelopt's layout it would take the codes for the weights, and log a line."""
    method = {"quant_method": "modelopt", "quant_algo": "FP8"}
    folder = copy(reference, tmp_path / "fp8", quantization_config=method)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("dense.weight")]:
        scale = tensors[name].abs().max() / 448
        tensors |= {name: (tensors[name] / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedError, match="modelopt"):
        run_two(reference, folder, tmp_path / "run")


def test_two_models_have_to_fit(reference: Path, tmp_path: Path) -> None:
    dot = copy(reference, tmp_path / "dot")
    (dot / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot"}')
    with pytest.raises(UnsupportedError, match=r"'dot'.* 'cosine'"):
        run_two(reference, dot, tmp_path / "run")
    BertModel(bert(hidden_size=32, num_attention_heads=2, intermediate_size=64)).save_pretrained(tmp_path / "small")
    with pytest.raises(UnsupportedError, match=r"no modules\.json.*'hidden_size': 32"):
        run_two(reference, tmp_path / "small", tmp_path / "run")


@pytest.mark.slow
def test_the_reference_is_embedded_once(reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EmbeddingStore(tmp_path / "cache")
    encoded: list[tuple[str, int]] = []
    encode = SentenceEncoder.encode

    def counted(self: SentenceEncoder, texts: Any, *rest: Any) -> NDArray[np.float32]:
        encoded.append((self.source.name, len(texts)))
        return encode(self, texts, *rest)

    monkeypatch.setattr(SentenceEncoder, "encode", counted)
    copied, spec = copy(reference, tmp_path / "copy"), parse(f"{reference}@W4")
    scheme = run_any(spec, tmp_path / "a", store=store)
    encoded.clear()
    first = run_two(reference, copied, tmp_path / "b", store=store)
    name = str(reference)
    tried = [(name, 2), (name, 2)]  # which layers are reached, on either side
    assert encoded == [*tried, (str(copied), 3), (str(copied), 8)]
    encoded.clear()
    again = run_two(reference, copied, tmp_path / "c", store=store)
    assert encoded == tried  # the candidate's are kept, too
    for part in ("fingerprint", "name", "canonical"):
        assert scheme.record["model"][part] == first.record["model"][part]
    assert scheme.record["settings"] == first.record["settings"]
    assert scheme.record["data"] == first.record["data"]
    candidates = [run.record["model"]["candidate"]["fingerprint"] for run in (first, again)]
    assert candidates[0] == candidates[1]
    assert not perturbation.epsilon(again.evidence()).any()
