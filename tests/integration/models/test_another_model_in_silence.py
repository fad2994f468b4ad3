"""What a library would make another model of without a word: weights that are no numbers, values that nobody knows."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Normalize, Pooling

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.classifier.work import load_classifier
from quantdrift.builtin.cross_encoder.work import load_cross_encoder
from quantdrift.builtin.sentence.work import load_encoder, load_sentence_transformer
from quantdrift.models.files.named import resolve
from quantdrift.models.schemas import MODELS, MODULES, TRANSFORMER, check_settings
from quantdrift.models.vetting import MARKS
from support.candidate_samples import save_backbone, tiny
from support.classifier_samples import save_classifier
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


def adapted(folder: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    tiny().save_pretrained(str(folder.with_suffix(".base")))
    model: Any = SentenceTransformer(str(folder.with_suffix(".base")), device="cpu")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    model.save_pretrained(str(folder))


def encoded(folder: Path) -> NDArray[np.float32]:
    encoder = load_encoder(resolve(str(folder)), device=CPU)
    return encoder.encode(["wing flow", "heat"], "query", 2)


def beside(folder: Path) -> None:
    tiny().save_pretrained(str(folder.parent / "reference"))
    run_two(folder.parent / "reference", folder, folder.parent / "run")


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any], str, str]] = {
    "embedding model": (stacked, encoded, "model.safetensors", "query.weight"),
    "dense layer": (stacked, encoded, "2_Dense/model.safetensors", "linear.weight"),
    "static": (partial(in_folder, static_model, "static"), encoded, "model.safetensors", "weight"),
    "adapter": (adapted, encoded, "adapter_model.safetensors", "lora_A.weight"),
    "candidate": (lambda to: tiny().save_pretrained(str(to)), beside, "model.safetensors", "word_embeddings.weight"),
    "transformer alone": (save_backbone, beside, "model.safetensors", "LayerNorm.bias"),
    "cross-encoder": (
        save_cross_encoder,
        lambda folder: load_cross_encoder(resolve(str(folder)), device=CPU),
        "model.safetensors",
        "query.weight",
    ),
    "classifier": (
        save_classifier,
        lambda folder: load_classifier(resolve(str(folder)), device=CPU),
        "model.safetensors",
        "classifier.weight",
    ),
    "sparse": (
        partial(in_folder, sparse, "model"),
        partial(rows, kind="SparseEncoder"),
        "model.safetensors",
        "query.weight",
    ),
    "multi-vector": (
        partial(in_folder, multi_vector, "model"),
        partial(rows, kind="MultiVectorEncoder"),
        "1_Dense/model.safetensors",
        "linear.weight",
    ),
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
def test_a_value_that_is_on_no_list_is_named(file: str, key: str, value: str, honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest, tmp_path / "evil")
    if not (tmp_path / "evil" / file).is_file():
        (tmp_path / "evil" / file).write_text("{}")
    change(tmp_path / "evil" / file, **{key: value})
    with pytest.raises(UnsupportedError, match=f"{key}: .*{value}"):
        encoded(tmp_path / "evil")


def test_similarities_are_those_that_the_libraries_know() -> None:
    import sentence_transformers  # noqa: PLC0415 -- the names are looked up in it

    for kind in ("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder"):
        for name in getattr(sentence_transformers, kind).SUPPORTED_SIMILARITY_FN_NAMES:
            check_settings({"similarity_fn_name": name}, MODELS[kind], kind)


@pytest.mark.parametrize("kind", MARKS)
def test_modules_are_those_of_the_model_type(kind: str, honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest, tmp_path / "evil")
    for mark in MARKS[kind]:  # in a model of one vector
        modules = json.loads((honest / "modules.json").read_text())
        modules[-1]["type"] = f"sentence_transformers.models.{mark}"
        (tmp_path / "evil" / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(UnsupportedError, match="another model"):
            encoded(tmp_path / "evil")


@pytest.mark.parametrize("kind", ["SparseEncoder", "MultiVectorEncoder"])
def test_a_model_of_one_vector_is_none_of_several(kind: str, honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest, tmp_path / "evil")
    change(tmp_path / "evil" / "config_sentence_transformers.json", model_type=kind, similarity_fn_name=None)
    with pytest.raises(UnsupportedError, match="another model"):
        rows(tmp_path / "evil", kind)


def test_a_module_that_the_library_lacks_is_named(honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest, tmp_path / "evil")
    modules = json.loads((honest / "modules.json").read_text())
    modules[-1]["type"] = "sentence_transformers.evilm.Normalize"
    (tmp_path / "evil" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedError, match=r"sentence_transformers\.evilm"):
        encoded(tmp_path / "evil")
