"""Which models are cross-encoders, told from their config.json alone."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import UnsupportedError
from quantdrift.models.files.kinds import check_kind, is_cross_encoder, kind_of
from quantdrift.models.files.named import ModelSource, resolve
from quantdrift.models.vetting import refuse_unsaid_pooling

ONE = {"id2label": {"0": "LABEL_0"}}
BERT = {"architectures": ["BertForSequenceClassification"]}
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "Transformer"}]


def model(folder: Path, config: dict[str, Any], *, modules: bool = False, kind: str | None = None) -> ModelSource:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if modules:
        (folder / "modules.json").write_text(json.dumps(MODULES))
    if kind is not None:
        content = json.dumps({"model_type": kind})
        (folder / "config_sentence_transformers.json").write_text(content)
    return resolve(str(folder))


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (BERT | ONE, {}, True),
        (BERT | ONE, {"modules": True, "kind": "CrossEncoder"}, True),
        (BERT, {}, False),  # transformers writes no labels where there are two
        (BERT | {"id2label": {"0": "a", "1": "b", "2": "c"}}, {}, False),
        # an embedding model whose backbone was saved from a reranker
        (BERT | ONE, {"modules": True, "kind": "SentenceTransformer"}, False),
        ({"architectures": ["BertModel"], **ONE}, {}, False),
        ({"architectures": ["BertModel"]}, {"modules": True, "kind": "SentenceTransformer"}, False),
        ({"architectures": ["Qwen3ForCausalLM"]}, {"modules": True, "kind": "CrossEncoder"}, True),
        ({"architectures": ["Qwen3ForCausalLM"]}, {}, False),
        ({"architectures": ["ViTForImageClassification"], **ONE}, {}, False),
    ],
)
def test_what_files_say(config: dict[str, Any], options: dict[str, Any], expected: bool, tmp_path: Path) -> None:
    source = model(tmp_path / "model", config, **options)
    assert is_cross_encoder(source) is expected
    if expected:
        with pytest.raises(UnsupportedError, match=r"is a cross-encoder.*--shortlist RUN"):
            check_kind(source, "sentence")


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"])
@pytest.mark.parametrize(
    "refuse", [partial(kind_of, use="shortlist"), refuse_unsaid_pooling], ids=["reranks", "searches"]
)
def test_a_bare_language_model(architecture: str, refuse: Callable[[ModelSource], object], tmp_path: Path) -> None:
    config = {"architectures": [architecture]}
    bare = model(tmp_path / "bare", config)
    with pytest.raises(UnsupportedError, match=rf"is a {architecture}, a language model, .*CrossEncoder\.save_pretr"):
        refuse(bare)
    said = model(tmp_path / "said", config, modules=True, kind="SentenceTransformer")
    assert not refuse_unsaid_pooling(said)


def test_a_classifier_is_no_reranker_and_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="is a classifier"):
        check_kind(model(tmp_path / "model", BERT), "sentence")
