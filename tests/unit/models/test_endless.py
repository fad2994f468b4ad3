"""What the files of a model may say: listed keys in range, and patterns and rules that come to an end."""

import base64
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from quantdrift.base.errors import UnsupportedError
from quantdrift.models.endless import check_patterns, check_rules
from quantdrift.models.schemas import CONFIG, MODELS, MODULES, TRANSFORMER, check_settings
from quantdrift.models.vetting import vet_settings

EVIL = (
    r"(\w+\.?)+(\w+\.?)+!",
    "(a|a)*!",
    "a?" * 30 + "a" * 30,
    "(a|a)" * 40,
    ".*" * 5 + "!",
    "(a{0,9}){0,9}",
    "a)|(b*",
    "(" * 600,
    "x" * 5_000 + "*",
    r"(?i)(?:\u017fa|sa)*",
)
HARMLESS = (
    "re:.*lm_head",  # as llm-compressor writes them
    r"re:^model\.layers\.(?:0|1|2)\.mlp\..*$",
    r"re:.*layers\.(\d+)\.mlp\.(gate|up)_proj.*",
    r"-:.*\.gate.*",  # as GPTQModel's pages have them
    r"+:.*\.19\..*gate.*",
    ".*(query|value)",
    "(.*(language_model).*(down_proj|gate_proj|q_proj).*$|.*(custom_text_proj).*$)",  # ColPali's adapters
    "all-linear",
    "encoder.layer.0.attention.self.query",
    "https://github.com/modelcloud/gptqmodel",
)
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    **{
        f"quantization_config's {name}": lambda text, made=made: {"quantization_config": made(text)}
        for name, made in {
            "targets": lambda text: {"config_groups": {"dataset": {"targets": [text]}}},
            "ignore": lambda text: {"ignore": ["lm_head", text]},
            "dynamic": lambda text: {"quant_method": "gptq", "dynamic": {text: {"bits": 8}}},
            "modules_to_not_convert": lambda text: {"quant_method": "awq", "modules_to_not_convert": [text]},
            "llm_int8_skip_modules": lambda text: {"load_in_8bit": True, "llm_int8_skip_modules": [text]},
            "fqn_to_config": lambda text: {"quant_type": {"default": {"_data": {"fqn_to_config": {text: {}}}}}},
            "extra_config": lambda text: {"quant_method": "auto-round", "extra_config": {text: {"bits": 8}}},
        }.items()
    },
    "compression_config's ignore": lambda text: {"compression_config": {"ignore": [text]}},
    "an inner config's ignore": lambda text: {"text_config": {"quantization_config": {"ignore": [text]}}},
}
"""Where a library takes a string of a file for a regular expression."""


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_a_pattern_is_looked_at(place: str) -> None:
    for text in HARMLESS:
        vet_settings(PLACES[place](text), "config.json")
    for text in EVIL:
        with pytest.raises(UnsupportedError, match="could match without end"):
            vet_settings(PLACES[place](text), "config.json")


def test_what_was_calibrated_on_is_text() -> None:
    check_patterns({"dataset": ["what (is this", EVIL[0]], "tokenizer": "C:\\Users"}, "config.json")


def test_names_without_end_are_refused() -> None:
    check_patterns([f"layer.{number}" for number in range(2_000)], "config.json")
    with pytest.raises(UnsupportedError, match=r"of 2,001 names"):
        check_patterns([f"layer.{number}" for number in range(2_001)], "config.json")


@given(st.lists(st.sampled_from(("a", "b", ".", "*", "+", "?", "|", "(", ")", "{2}", "{0,3}", r"\w")), max_size=12))
def test_what_is_taken_ends(parts: list[str]) -> None:
    pattern = "".join(parts)
    try:
        check_patterns([pattern], "config.json")
    except UnsupportedError:
        return
    begun = time.process_time()
    for name in ("a" * 60, "ab" * 30, "b" * 60 + "."):
        re.fullmatch(f"{pattern}!", name) if _compiles(f"{pattern}!") else None
    assert time.process_time() - begun < 2


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


# --- rules of a tokenizer -------------------------------------------------------------------------

BERT = {
    "type": "BertNormalizer",
    **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True),
    "strip_accents": None,
}


def replaced(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*rules: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(rules)}


def table(text: bytes) -> dict[str, Any]:
    """A normalizer of SentencePiece: the length of a trie, the trie, and the texts that stand for letters."""
    content = (4).to_bytes(4, "little") + bytes(4) + text + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    "rules",
    [
        {"normalizer": sequence(*[replaced("e", "e" * 1000)] * 4)},
        {"normalizer": sequence(*[replaced("q", "q" * 60)] * 4)},
        {"normalizer": sequence(sequence(*[replaced("e", "E" * 30), {"type": "Lowercase"}] * 3))},
        {"normalizer": replaced("", "a" * 10**6, "Regex")},
        {"normalizer": sequence(*[replaced("", "a" * 50, "Regex")] * 4)},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}},
        {"normalizer": table(b"a" * 1000)},
        {"normalizer": sequence(*[replaced("a", "b")] * 300)},
        {"post_processor": {"type": "TemplateProcessing", "special_tokens": {"[X]": {"ids": [2] * 50_000}}}},
        {"model": {"type": "WordPiece", "continuing_subword_prefix": "#" * 10**6}},
    ],
)
def test_rules_that_make_a_text_without_end_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json of x .*64"):
        check_rules(rules, "tokenizer.json of x")


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"normalizer": BERT},
        {"normalizer": sequence(*(replaced(letter, f"{letter}e") for letter in "äöü"), {"type": "NFKC"})},
        {"normalizer": sequence({"type": "Prepend", "prepend": "▁"}, replaced(" ", "▁"))},
        {"normalizer": sequence(*(replaced(letter, "ss") for letter in "ß$€£¥½¼¾"))},  # 2 to the 8th, were they one
        {"model": {"vocab": {"a" * 1000: 0}, "merges": ["a b"] * 1000}, "decoder": replaced("▁", " " * 100)},
    ],
)
def test_rules_of_usual_tokenizers_are_taken(rules: dict[str, Any]) -> None:
    check_rules(rules, "tokenizer.json")


# --- types and ranges --------------------------------------------------------------------------------


MODEL = MODELS["SentenceTransformer"]


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (MODEL, {"prompts": {"query": "a" * 70_000}}, "prompts.query"),
        (MODEL, {"prompts": {"document": 5}}, "prompts.document"),
        (MODEL, {"truncate_dim": "x"}, "truncate_dim"),
        (MODEL, {"truncate_dim": 0}, "truncate_dim"),
        *((TRANSFORMER, {"max_seq_length": length}, "max_seq_length") for length in (-1, 0, "x", True, 1e9)),
        *(
            (TRANSFORMER, {"modality_config": {"text": {"method": method, "method_output_name": None}}}, "method")
            for method in ("save_pretrained", "__init__", "push_to_hub", "init_weights", "forward\n")
        ),
        *(
            (CONFIG, settings, "activation_f.*got 'torch.hub.os.getpid'")
            for settings in (
                {"sentence_transformers": {"activation_fn": "torch.hub.os.getpid"}},
                {"sbert_ce_default_activation_function": "torch.hub.os.getpid"},
            )
        ),
        (MODULES["Dense"], {"in_features": 100_000, "out_features": 100_000}, "in_features"),
        (TRANSFORMER, {"transformer_task": "x"}, "transformer_task"),
        (TRANSFORMER, {"module_output_name": "x"}, "module_output_name"),
        (TRANSFORMER, {"processing_kwargs": {"text": {"max_length": 10**9}}}, "max_length"),
        (TRANSFORMER, {"processing_kwargs": {"common": {"pad_to_multiple_of": 10**9}}}, "pad_to_multiple_of"),
    ],
)
def test_settings_have_types_and_ranges(kind: type[BaseModel], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"x\.json cannot be used: .*{said}.*Correct it"):
        check_settings(settings, kind, "x.json")


@pytest.mark.parametrize("name", ["modules.activation.Sigmoid", "modules.linear.Identity", "Tanh"])
def test_activations_of_torch_are_taken(name: str) -> None:
    for said in ({"activation_fn": f"torch.nn.{name}"}, {"activation_fn": None}, {}):
        check_settings({"sentence_transformers": {**said, "version": 5}}, CONFIG, "config.json")
