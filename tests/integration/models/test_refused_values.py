"""What would make another model in silence, or fail at a text that comes late, is refused where a model is loaded."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Normalize, Pooling

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.classifier.work import load_classifier
from quantdrift.builtin.cross_encoder.work import load_cross_encoder
from quantdrift.builtin.sentence.work import load_encoder, load_sentence_transformer
from quantdrift.models.files.named import resolve
from quantdrift.models.loading import text_rows
from quantdrift.models.schemas import MODELS, MODULES, TRANSFORMER, check_settings
from quantdrift.models.vetting import MARKS
from support.candidate_samples import WORDS, save_backbone, tiny
from support.classifier_samples import save_classifier
from support.model_zoo import COMMON
from support.rerank_samples import save_cross_encoder
from support.row_models import multi_vector, sparse, static_model
from support.versus_samples import change, run_two

CPU = torch.device("cpu")


def rows(folder: Path, kind: str) -> None:
    load_sentence_transformer(resolve(str(folder)), device=CPU, kind=kind, reads="head")


def stacked(folder: Path) -> None:
    """The tiny model with a module of every kind behind its pooling."""
    modules = [tiny()[0], Pooling(192), Dense(192, 64), LayerNorm(64), Dropout(0.1), Normalize()]
    SentenceTransformer(modules=modules, prompts={"query": "wing "}).save_pretrained(str(folder))


def in_folder(make: Callable[[Path], Any], name: str, folder: Path) -> None:
    make(folder.with_suffix(".made"))
    shutil.copytree(folder.with_suffix(".made") / name, folder)


def encoded(folder: Path) -> NDArray[np.float32]:
    encoder = load_encoder(resolve(str(folder)), device=CPU)
    return encoder.encode(["wing flow", "heat"], "query", 2)


def beside(folder: Path) -> None:
    tiny().save_pretrained(str(folder.parent / "reference"))
    run_two(folder.parent / "reference", folder, folder.parent / "run")


def loading(load: Any) -> Callable[[Path], Any]:
    return lambda folder: load(resolve(str(folder)), device=CPU)


sparse_in, multi_in = partial(in_folder, sparse, "model"), partial(in_folder, multi_vector, "model")
KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any], str, str]] = {
    "embedding model": (stacked, encoded, "model.safetensors", "query.weight"),
    "dense layer": (stacked, encoded, "2_Dense/model.safetensors", "linear.weight"),
    "static": (partial(in_folder, static_model, "static"), encoded, "model.safetensors", "weight"),
    "candidate": (lambda to: tiny().save_pretrained(str(to)), beside, "model.safetensors", "word_embeddings.weight"),
    "transformer alone": (save_backbone, beside, "model.safetensors", "LayerNorm.bias"),
    "cross-encoder": (save_cross_encoder, loading(load_cross_encoder), "model.safetensors", "query.weight"),
    "classifier": (save_classifier, loading(load_classifier), "model.safetensors", "classifier.weight"),
    "sparse": (sparse_in, partial(rows, kind="SparseEncoder"), "model.safetensors", "query.weight"),
    "multi-vector": (multi_in, partial(rows, kind="MultiVectorEncoder"), "1_Dense/model.safetensors", "linear.weight"),
}
"""Kinds of models: how one is made, and loaded; a file of its weights, and the end of a name in it."""


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_stored_in_floating_point(kind: str, tmp_path: Path) -> None:
    make, load, file, end = KINDS[kind]
    make(tmp_path / "model")
    load(tmp_path / "model")
    weights = load_file(tmp_path / "model" / file)
    name = next(name for name in weights if name.endswith(end))
    transformer = file == "model.safetensors" and kind != "static"
    whole = {"embeddings.position_ids": torch.arange(48)[None]} if transformer else {}  # as older files have
    for number, dtype in enumerate((torch.float16, torch.int8, torch.float8_e4m3fn, torch.complex64, torch.bool)):
        changed = {**whole, **weights, name: weights[name].to(dtype)}
        save_file(changed, tmp_path / "model" / file, metadata={"format": "pt"})
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        if not number:
            load(tmp_path / "model")
            continue
        with pytest.raises(UnsupportedError, match=r"stores .*\bas |is stored as "):
            load(tmp_path / "model")


# --- values of settings ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    stacked(folder / "model")
    return folder / "model"


@pytest.fixture
def evil(honest: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return shutil.copytree(honest, tmp_path / "evil")


def settings_of(honest: Path) -> list[tuple[str, str]]:
    of: dict[str, Any] = {
        "config_sentence_transformers.json": MODELS["SentenceTransformer"],
        "sentence_bert_config.json": TRANSFORMER,
    }
    of |= {f"{module.name}/config.json": MODULES[module.name[2:]] for module in honest.glob("[1-9]_*")}
    return [(file, field.alias or key) for file, said in of.items() for key, field in said.model_fields.items()]


def test_a_value_that_nobody_knows_is_refused_or_changes_nothing(honest: Path, tmp_path: Path) -> None:
    """Every key that may be set, set to what no library knows."""
    meant = encoded(honest)
    for file, key in settings_of(honest):
        shutil.copytree(honest, tmp_path / "evil")
        path = tmp_path / "evil" / file
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), key: "os.system"}))
        found = None
        with suppress(Exception):  # it is refused, by whom does not matter
            found = encoded(tmp_path / "evil")
        shutil.rmtree(tmp_path / "evil")
        assert found is None or np.array_equal(found, meant), (file, key)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config_sentence_transformers.json", "similarity_fn_name", "os.system"),
        ("config_sentence_transformers.json", "similarity_fn_name", "maxsim"),
        ("tokenizer_config.json", "tokenizer_class", "Evil"),
        ("tokenizer_config.json", "tokenizer_class", "os.system"),
        ("tokenizer_config.json", "tokenizer_class", "pipeline"),
        ("config.json", "tokenizer_class", "Evil"),
        ("2_Dense/config.json", "activation_function", "os.system"),
        ("5_Normalize/config.json", "module_output_name", "other"),
        ("5_Normalize/config.json", "module_input_name", "other"),
    ],
)
def test_a_value_that_is_on_no_list_is_named(file: str, key: str, value: str, evil: Path) -> None:
    if not (evil / file).is_file():
        (evil / file).write_text("{}")
    change(evil / file, **{key: value})
    with pytest.raises(UnsupportedError, match=f"{key}: .*{value}"):
        encoded(evil)


def test_similarities_are_those_that_the_libraries_know() -> None:
    import sentence_transformers  # noqa: PLC0415 -- the names are looked up in it

    for kind in ("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder"):
        for name in getattr(sentence_transformers, kind).SUPPORTED_SIMILARITY_FN_NAMES:
            check_settings({"similarity_fn_name": name}, MODELS[kind], kind)


@pytest.mark.parametrize("kind", MARKS)
def test_modules_are_those_of_the_model_type(kind: str, honest: Path, evil: Path) -> None:
    for mark in MARKS[kind]:  # in a model of one vector
        modules = json.loads((honest / "modules.json").read_text())
        modules[-1]["type"] = f"sentence_transformers.models.{mark}"
        (evil / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(UnsupportedError, match="another model"):
            encoded(evil)


@pytest.mark.parametrize("kind", ["SparseEncoder", "MultiVectorEncoder"])
def test_a_model_of_one_vector_is_none_of_several(kind: str, evil: Path) -> None:
    change(evil / "config_sentence_transformers.json", model_type=kind, similarity_fn_name=None)
    with pytest.raises(UnsupportedError, match="another model"):
        rows(evil, kind)


def test_a_module_that_the_library_lacks_is_named(honest: Path, evil: Path) -> None:
    modules = json.loads((honest / "modules.json").read_text())
    modules[-1]["type"] = "sentence_transformers.evilm.Normalize"
    (evil / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedError, match=r"sentence_transformers\.evilm"):
        encoded(evil)


# --- what no text could be read by -------------------------------------------------------------------


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
