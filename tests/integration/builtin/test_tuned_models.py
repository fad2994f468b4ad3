"""`+tuned` through the commands: searches, classes, shortlists and images; what is written is what was measured."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.builtin.cross_encoder.work import load_cross_encoder
from quantdrift.builtin.multi_vector.model import load_multi_vector
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.measuring.readings import opening_of, pair_inputs
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Inputs, text_inputs
from quantdrift.runs.folder import read_run
from support.candidate_samples import text, tokenizer
from support.classifier_samples import CPU, images, loaded
from support.rerank_samples import save_cross_encoder, save_generative
from support.row_models import multi_vector
from support.small_clip import small_clip
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]

TEXTS = [f"{text(number, 5)}. {text(100 + number, 6)}." for number in range(24)]


def image_inputs(role: str, n: int = 32) -> Inputs:
    return Inputs(role=role, ids=[str(i) for i in range(n)], items=images(n), digest=None)


def tuned(encoder: Any, scheme: str, *kinds: Inputs) -> tuple[QuantizedPair, dict[str, Any]]:
    """A prepared pair, and the stage's record; the reference is as before."""
    pair = QuantizedPair([encoder.module], scheme, name="mine", encoder=encoder)
    before = pair.fingerprint
    pair.calibrate(kinds, 8, source="corpus", root=None, progress=Silent())
    assert pair.fingerprint == before
    return pair, pair.describe()["tuned"]


def decoder(folder: Path) -> SentenceTransformer:
    """A decoder with random weights that is read at the last token."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = hf.Qwen3Config(**sizes, head_dim=16, num_hidden_layers=2, vocab_size=len(tokenizer()), pad_token_id=0)
    hf.Qwen3Model(config).save_pretrained(folder / "backbone")
    tokenizer().save_pretrained(folder / "backbone")
    modules: list[Any] = [Transformer(str(folder / "backbone")), Pooling(32, pooling_mode="lasttoken")]
    return SentenceTransformer(modules=modules, device="cpu")


def test_a_decoder_that_is_read_at_its_last_token(tmp_path: Path) -> None:
    decoder(tmp_path).save_pretrained(str(tmp_path / "model"))
    encoder = load_encoder(resolve(str(tmp_path / "model")), device=torch.device("cpu"))
    pair, record = tuned(encoder, "W3-g32+tuned=8", text_inputs(TEXTS))
    assert record["loss_after"] < record["loss_before"]
    assert record["others"] == sum(p.numel() for p in pair.modules[0].parameters() if p.dim() == 1)


@pytest.mark.parametrize("save", [save_cross_encoder, save_generative])
def test_scores_of_a_cross_encoder(save: Callable[[Path], Path], tmp_path: Path) -> None:
    encoder = load_cross_encoder(resolve(str(save(tmp_path / "model"))), device=torch.device("cpu"))
    asked = pair_inputs([(opening_of(document), document) for document in TEXTS])
    pair, record = tuned(encoder, "W3-g32+tuned=8", asked)
    assert record["what"] == "pairs of a pseudo-query and a document"
    assert record["loss_after"] < record["loss_before"]
    new = [(text(500 + number, 3), TEXTS[number % 7]) for number in range(40)]
    plain = QuantizedPair([encoder.module], "W3-g32", encoder=encoder)
    exact, apart = encoder.encode(new, "pair", 8), []
    for each in (plain, pair):
        with each.candidate():
            apart.append(np.square(encoder.encode(new, "pair", 8) - exact).mean())
    assert apart[1] < apart[0]


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_logits_of_a_classifier_whose_head_stays(kind: str, tmp_path: Path) -> None:
    classifier = loaded(tmp_path, kind)
    words = ("red", "court", "match") * 8
    texts = text_inputs([f"the {word} museum ruled a goal" for word in words], role="input")
    pair, record = tuned(classifier, "W3-g16+tuned=8", texts if kind == "bert" else image_inputs("input"))
    assert record["what"] == "inputs"
    assert record["loss_after"] < record["loss_before"]
    head = classifier.module.get_submodule("classifier")
    before = [parameter.detach().clone() for parameter in head.parameters()]
    with pair.candidate():
        assert all(torch.equal(*both) for both in zip(head.parameters(), before, strict=True))


def test_both_towers_of_clip(tmp_path: Path) -> None:
    encoder = load_encoder(resolve(str(small_clip(tmp_path / "clip"))), device=torch.device("cpu"))
    words = [f"a {colour} {thing}" for colour in ("red", "blue") for thing in ("cat", "dog", "ship")]
    captions = text_inputs(words * 3, role="query")
    pair, record = tuned(encoder, "W3-g8+tuned=8", image_inputs("document"), captions)
    assert record["loss_after"] < record["loss_before"]
    with pair.candidate():
        moved = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    changed = {name for name, value in encoder.module.state_dict().items() if not torch.equal(value, moved[name])}
    for tower in ("text_model", "vision_model"):
        assert any(tower in name and name.endswith("layer_norm1.bias") for name in changed)


def test_what_is_written_is_what_was_measured(place: Path, quantdrift: Run) -> None:
    """The folder carries scales, biases and norms; it and the run say what was tuned."""
    spec, data = "TINY@W4-g64+tuned=4", ("--data", "ROOT/data")
    shown = quantdrift("run", spec, *data, "--out", "run", "--all")
    record = json.loads(Path("run/run.json").read_text())
    made = record["quantization"]["tuned"]
    assert made["loss_after"] < made["loss_before"]
    assert f"{made['scales']:,} scales and {made['others']:,} biases and norms tuned" in " ".join(shown.split())
    texts = read_beir_folder(place / "data")
    queries, documents = list(texts.queries), list(texts.documents)
    quantdrift("quantize", spec, *data, "--out", "tuned")
    said = json.loads(Path("tuned", "scheme.json").read_text())
    assert said["calibration"]["tuned"]["losses"] == made["losses"]
    assert said["candidate_fingerprint"] == record["model"]["candidate_fingerprint"]
    stored = SentenceTransformer("tuned", device="cpu")
    found = stored.similarity(stored.encode_query(queries), stored.encode_document(documents)).numpy()
    evidence = read_run(Path("run")).evidence()
    top = np.argsort(-found, axis=1)[:, :1]
    names = evidence.item_ids[evidence.candidate_top.items[:, 0]]
    assert [f"c{row}" for row in top[:, 0]] == names.tolist()


def test_token_vectors_are_refused_by_name(tmp_path: Path) -> None:

    multi_vector(tmp_path)
    encoder = load_multi_vector(resolve(str(tmp_path / "model")), device=CPU)
    with pytest.raises(UnsupportedError, match=r"\+tuned"):
        QuantizedPair([encoder.module], "W4+tuned", encoder=encoder)
