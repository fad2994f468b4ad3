"""The candidate as safetensors: plain libraries load what was measured, to the last bit."""

import json
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.models.files.named import resolve
from quantdrift.models.files.saved import read_record
from quantdrift.models.weights import weights_fingerprint
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


@pytest.mark.parametrize(
    "kept", [None, {"direction": "Right", "max_length": 32, "strategy": "LongestFirst", "stride": 0}]
)
def test_its_tokenizer_is_written_as_the_source_has_it_whatever_was_called_before(kept: object, tmp_path: Path) -> None:
    model = encoder(tmp_path / "tiny")
    file = tmp_path / "tiny" / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncation": kept, "padding": None}))
    written = []
    for name, called in (("cold", False), ("warm", True)):
        if called:
            embed(model)  # which leaves its own truncation and padding behind
        else:
            model.tokenizer.backend_tokenizer.no_truncation()
        written.append(save(candidate("W3-g64", model=model), tmp_path / name)["weights"])
        rules = json.loads((tmp_path / name / "tokenizer.json").read_text())
        assert (rules["truncation"], rules["padding"]) == (kept, None)
    assert written[0] == written[1]
