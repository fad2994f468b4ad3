"""The candidate as safetensors: plain libraries load what was measured, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoModel

from quantdrift.engine.encoders.sentence import load_encoder
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.saving.candidate import in_place
from quantdrift.engine.saving.save import save_candidate
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.models.named import resolve
from quantdrift.models.saved import read_record
from quantdrift.progress import Silent
from support.candidate_samples import candidate, embed, encoder, rich, save_backbone


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("scheme", "make"), [("W3-g64", quantize_rtn), ("W4-channel", rich)])
def test_loaded_by_sentence_transformers_it_is_the_candidate_to_the_last_bit(
    scheme: str, make: object, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = encoder(tmp_path / "tiny").to(dtype)
    reference = embed(model)
    given = candidate(scheme, make, model)
    out = tmp_path / "out"
    save_candidate(given, out, model_format="safetensors", progress=Silent())
    with in_place(given):
        wanted = embed(model)
        fingerprint = weights_fingerprint([model])
    loaded = SentenceTransformer(str(out), device="cpu")
    assert loaded.dtype == dtype
    assert torch.equal(embed(loaded), wanted)
    assert not torch.equal(wanted, reference)
    assert torch.equal(embed(model), reference)
    record = read_record(out)
    assert record["dtype"] == str(dtype).removeprefix("torch.")
    assert record["candidate_fingerprint"] == fingerprint == weights_fingerprint([loaded])
    assert loaded.prompts["query"] == "wing flow "
    again = load_encoder(resolve(str(out)), device=torch.device("cpu"))
    assert torch.equal(embed(again.model), wanted)
    assert not (out / "README.md").exists()  # it would speak of the reference


def test_loaded_by_transformers_it_is_the_candidate_to_the_last_bit(tmp_path: Path) -> None:
    save_backbone(tmp_path / "tiny")
    model = AutoModel.from_pretrained(tmp_path / "tiny").eval()
    given = candidate("W4-g64", model=model)
    record = save_candidate(given, tmp_path / "out", model_format="safetensors", progress=Silent())
    loaded = AutoModel.from_pretrained(tmp_path / "out").eval()
    tokens = torch.tensor([[2, 5, 6, 7, 3]])
    with torch.no_grad(), in_place(given):
        wanted = model(input_ids=tokens).last_hidden_state
        assert torch.equal(loaded(input_ids=tokens).last_hidden_state, wanted)
    assert weights_fingerprint([loaded]) == record["candidate_fingerprint"]


def test_a_model_with_an_adapter_is_refused_as_only_the_adapter_would_be_saved(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = encoder(tmp_path / "tiny")
    how = peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query"], r=4)
    model[0].auto_model.add_adapter(how)
    given = candidate("W4-g64", model=model.eval())
    with pytest.raises(UnsupportedError, match=r"something else than .*merge_and_unload"):
        save_candidate(given, tmp_path / "out", model_format="safetensors", progress=Silent())
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


class Halves(nn.Module):
    """A model whose library writes a weight in two parts, and joins them when it loads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 8)

    def save_pretrained(self, folder: str) -> None:
        state = self.state_dict()
        one, other = state.pop("layer.weight").split(4)
        parts = {"one": one.clone(), "other": self.altered(other.clone())}
        save_file({**state, **parts}, Path(folder) / "model.safetensors")

    @classmethod
    def from_pretrained(cls, folder: str) -> Halves:
        state = load_file(Path(folder) / "model.safetensors")
        state["layer.weight"] = torch.cat([state.pop("one"), state.pop("other")])
        model = cls()
        model.load_state_dict(state)
        return model

    def altered(self, part: torch.Tensor) -> torch.Tensor:
        return part


def test_a_weight_that_its_library_writes_in_parts_is_found_by_loading_it(tmp_path: Path) -> None:
    def save(change: Callable[[Any], Any] | None) -> None:
        model = Halves()
        if change is not None:
            model.altered = change  # type: ignore[method-assign]  # a library with an error
        given = candidate("W4-g32", model=model)
        save_candidate(given, tmp_path / "out", model_format="safetensors", progress=Silent())

    with pytest.raises(UnsupportedError, match="1 of 1 layers are not in its files, layer for one"):
        save(lambda part: part * 1.001)
    assert not list(tmp_path.iterdir())
    save(None)
    assert read_record(tmp_path / "out")["model_format"] == "safetensors"


def test_a_disk_that_is_full_while_weights_are_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        said = "Error while serializing: I/O error: No space left on device (os error 28)"
        raise SafetensorError(said)

    model = Halves()
    monkeypatch.setattr(model, "save_pretrained", full)
    given = candidate("W4-g32", model=model)
    with pytest.raises(RunError, match=r"the candidate was not written to .*out: no space left; nothing"):
        save_candidate(given, tmp_path / "out", model_format="safetensors", progress=Silent())
    assert not list(tmp_path.iterdir())
