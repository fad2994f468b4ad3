"""The candidate as safetensors: plain libraries load what was measured, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from quantdrift.engine.encoders.sentence import load_encoder
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.saving.candidate import in_place
from quantdrift.engine.saving.save import save_candidate
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import UnsupportedError
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
