"""What would fail at the first text, or at one that comes late, is refused in one line where a model is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
import transformers as hf

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.classifier.work import load_classifier
from quantdrift.builtin.cross_encoder.work import load_cross_encoder
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.models.files.named import resolve
from quantdrift.models.loading import text_rows
from support.candidate_samples import WORDS, save_backbone, tiny
from support.classifier_samples import save_classifier
from support.model_zoo import COMMON
from support.rerank_samples import save_cross_encoder
from support.row_models import static_model
from support.versus_samples import change, run_two

CPU = torch.device("cpu")
SETTINGS, TOKENS = "sentence_bert_config.json", "tokenizer_config.json"
Change = Callable[[Path], None]


def says(file: str, **values: Any) -> Change:
    return lambda folder: change(folder / file, **values)


def rules(edit: Callable[[Any], object]) -> Change:
    def made(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        edit(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return made


def without_pad(folder: Path) -> None:
    content = json.loads((folder / TOKENS).read_text())
    del content["pad_token"]
    (folder / TOKENS).write_text(json.dumps(content))
    rules(lambda said: said.update(padding=None))(folder)  # where a call has left its own


def text(**how: Any) -> Change:
    return says(SETTINGS, processing_kwargs={"text": how})


PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
ADDED = rules(lambda said: said["added_tokens"].append({"id": len(WORDS) + 4, "content": "[DOC]", **PLAIN}))
GAP = rules(lambda said: said["model"]["vocab"].update(late=40_000))
ROW = r"has the token \[DOC\] as number 15, and its embedding matrix has 15 rows"
BOMB = rules(lambda said: said.update(normalizer={"type": "Prepend", "prepend": "a" * 10**6}))
REFUSED: dict[str, tuple[Change, str]] = {
    "above the positions": (says(SETTINGS, max_seq_length=512), "texts of 512 tokens.* from 1 to 48"),
    "below one": (says(TOKENS, model_max_length=-1), "texts of -1 tokens.* from 1 to 48"),
    "no number": (says(TOKENS, model_max_length="x"), "cannot be loaded"),
    "another task": (says(SETTINGS, transformer_task="text-generation"), "cannot be loaded.*last_hidden_state"),
    "no pad token": (without_pad, "cannot be loaded.*padding token"),
    "chunks": (says("config.json", chunk_size_feed_forward=7), "asks for 7 as chunk_size_feed_forward"),
    "cut above the positions": (text(max_length=200), "texts of 200 tokens; expected at most 48"),
    "padded above the positions": (text(max_length=200, padding="max_length"), "texts of 200 tokens"),
    "padded to millions": (text(max_length=10**7, padding="max_length"), "texts of 10,000,000 tokens"),
    "a prompt of megabytes": (
        says("config_sentence_transformers.json", prompts={"query": "a" * 10**7}),
        "at most 65536",
    ),
    "a method": (
        says(SETTINGS, modality_config={"text": {"method": "init_weights", "method_output_name": None}}),
        "method: string should match",
    ),
    "letters without end": (BOMB, "more than 64 letters"),
    "a token without a row": (ADDED, ROW),
    "a number without a row": (GAP, "has the token late as number 40,000"),
}


def encoder(folder: Path) -> Any:
    return load_encoder(resolve(str(folder)), device=CPU)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny().save_pretrained(str(tmp_path / "model"))
    return tmp_path / "model"


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_text_could_be_read_by_is_refused_in_one_line(folder: Path, name: str) -> None:
    make, said = REFUSED[name]
    make(folder)
    with pytest.raises(UnsupportedError, match=said) as caught:
        encoder(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["above the positions", "a token without a row", "letters without end"])
def test_so_is_a_candidate(folder: Path, name: str) -> None:
    shutil.copytree(folder, folder.parent / "reference")
    make, said = REFUSED[name]
    make(folder)
    with pytest.raises(UnsupportedError, match=said):
        run_two(folder.parent / "reference", folder, folder.parent / "run")


@pytest.mark.parametrize(
    ("make", "load", "cases"),
    [
        (save_cross_encoder, load_cross_encoder, {"above the positions": REFUSED["above the positions"][1]}),
        (save_classifier, load_classifier, {"below one": "texts of -1 tokens", "no number": "texts of x tokens"}),
    ],
)
def test_so_are_others(make: Callable[[Path], object], load: Any, cases: dict[str, str], tmp_path: Path) -> None:
    for name, said in {**cases, "a token without a row": r"\[DOC\] as number 15", "chunks": "asks for 7"}.items():
        make(tmp_path / name)
        if not (tmp_path / name / SETTINGS).exists():
            (tmp_path / name / SETTINGS).write_text("{}")
        REFUSED[name][0](tmp_path / name)
        with pytest.raises(UnsupportedError, match=said):
            load(resolve(str(tmp_path / name)), device=CPU)


def test_a_static_model_is_looked_at_too(tmp_path: Path) -> None:
    static_model(tmp_path)
    encoder(tmp_path / "static")
    GAP(tmp_path / "static")
    with pytest.raises(UnsupportedError, match=r"late .*40,000.* 15"):
        encoder(tmp_path / "static")


# --- how long a text may be -----------------------------------------------------------------------

LONG = COMMON["max_position_embeddings"]
LIMITED: dict[str, tuple[Any, int | None]] = {
    "bert": (lambda: hf.BertModel(hf.BertConfig(**COMMON)), LONG),
    "roberta": (lambda: hf.RobertaModel(hf.RobertaConfig(**{**COMMON, "pad_token_id": 1})), LONG - 2),
    "mpnet": (lambda: hf.MPNetModel(hf.MPNetConfig(**{**COMMON, "pad_token_id": 1})), LONG - 2),
    "gpt2": (lambda: hf.GPT2Model(hf.GPT2Config(**COMMON)), LONG),
    "opt": (lambda: hf.OPTModel(hf.OPTConfig(**COMMON, ffn_dim=64, word_embed_proj_dim=40)), LONG),
    "nystromformer": (
        lambda: hf.NystromformerModel(hf.NystromformerConfig(**COMMON, segment_means_seq_len=LONG, num_landmarks=LONG)),
        LONG,
    ),
    "qwen3": (lambda: hf.Qwen3Model(hf.Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=8)), None),
}


@pytest.mark.parametrize("name", LIMITED)
def test_a_model_has_as_many_positions_as_it_can_read(name: str) -> None:
    make, longest = LIMITED[name]
    model = make().eval()
    assert text_rows(model)[:2] == (COMMON["vocab_size"], longest)

    def read(n: int) -> None:
        model(input_ids=torch.full((1, n), 7), attention_mask=torch.ones(1, n, dtype=torch.long))

    read(longest or 2 * LONG)
    if longest is not None:
        with pytest.raises((IndexError, RuntimeError)):
            read(longest + 1)


def test_where_no_file_sets_a_limit_texts_are_cut_at_the_positions(tmp_path: Path) -> None:
    """sentence-transformers takes the rows of RoBERTa's matrix, of which two are for no position."""
    sizes = {"vocab_size": len(WORDS) + 4, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = hf.RobertaConfig(**sizes, intermediate_size=64, max_position_embeddings=50, pad_token_id=0)
    save_backbone(tmp_path / "model", hf.RobertaModel(config))
    change(tmp_path / "model" / TOKENS, model_max_length=10**30)
    model = encoder(tmp_path / "model")
    assert model.model.max_seq_length == 49  # of 50 rows: those for padding, 0, and below it are none
    assert any("49 positions, and its files set no such limit" in note for note in model.notes)
    assert model.encode(["wing " * 500], "document", 1).shape == (1, 32)
