"""What a model's files may ask for: the rules of a tokenizer make no text without end, and settings are in range."""

import base64
from typing import Any

import pytest
from pydantic import BaseModel

from quantdrift.base.errors import UnsupportedError
from quantdrift.engine.encoders.endless import check_rules
from quantdrift.engine.encoders.schemas import MODELS, TRANSFORMER, check_settings

MODEL = MODELS["SentenceTransformer"]
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
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json of x make more than 64 letters"):
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
        (TRANSFORMER, {"transformer_task": "x"}, "transformer_task"),
        (TRANSFORMER, {"module_output_name": "x"}, "module_output_name"),
        (TRANSFORMER, {"processing_kwargs": {"text": {"max_length": 10**9}}}, "max_length"),
        (TRANSFORMER, {"processing_kwargs": {"common": {"pad_to_multiple_of": 10**9}}}, "pad_to_multiple_of"),
    ],
)
def test_settings_have_types_and_ranges(kind: type[BaseModel], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"x\.json cannot be used: .*{said}.*Correct it"):
        check_settings(settings, kind, "x.json")
