"""The candidate as safetensors: plain libraries load what was measured, to the last bit."""

from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from quantdrift.checkpoints.named import resolve
from quantdrift.checkpoints.saved import read_record
from quantdrift.engine.encoders.sentence import load_encoder
from quantdrift.engine.weights import weights_fingerprint
from support.candidate_samples import candidate, embed, encoder, rich, save


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_loaded_is_the_candidate_to_the_last_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    model, out, tokens = encoder(tmp_path / "tiny").to(dtype), tmp_path / "out", torch.tensor([[2, 5, 6, 7, 3]])
    reference, pair = embed(model), candidate("W3-g64", rich, model)
    save(pair, out)
    with pair.candidate(), torch.no_grad():
        wanted, fingerprint = embed(model), weights_fingerprint([model])
        states = model[0].auto_model(input_ids=tokens).last_hidden_state
    loaded, plain = SentenceTransformer(str(out), device="cpu"), AutoModel.from_pretrained(out).eval()
    assert loaded.dtype == plain.dtype == dtype
    assert torch.equal(embed(loaded), wanted)
    assert torch.equal(plain(input_ids=tokens).last_hidden_state, states)
    assert not torch.equal(wanted, reference)
    assert torch.equal(embed(model), reference)
    record = read_record(out)
    assert record["dtype"] == str(dtype).removeprefix("torch.")
    assert record["candidate_fingerprint"] == fingerprint == weights_fingerprint([loaded])
    assert loaded.prompts["query"] == "wing flow "
    again = load_encoder(resolve(str(out)), device=torch.device("cpu"), dtype="auto")
    assert torch.equal(embed(again.model), wanted)
    assert not (out / "README.md").exists()  # it would speak of the reference
