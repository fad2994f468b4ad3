"""Types and ranges of what a model's files say, where a few bytes could ask for gigabytes or have any method called."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from quantdrift.base.display import clean
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import Some, problem_of

TRIED = "The 2nd café: don't pay $3.50 for ﬁne ÀÉ,  Zürich's 東京\n x_y #1"
"""A text of which other rules make other tokens."""
_GROWTH, _LISTED, _REPLACED = 64, 256, 128
"""Letters that rules may make of one, entries of a list of rules, and bytes that stand for a letter in a table."""
_INSERTED = {"content", "prepend", "replacement", "continuing_subword_prefix", "end_of_word_suffix"}
_WORDS = {"vocab", "merges", "added_tokens", "decoder", "pattern"}
"""Parts of a tokenizer.json that add no letters: words, how they become text again, and what is replaced."""

Prompt = Annotated[str, StringConstraints(max_length=1 << 16)]
Size = Annotated[int, Field(ge=0, le=1 << 13)]


class _Said(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Model(_Said):
    """What config_sentence_transformers.json says."""

    prompts: dict[str, Prompt | None] | None = None
    default_prompt_name: str | None = None
    truncate_dim: Some | None = None
    query_prefix: Prompt | None = None
    document_prefix: Prompt | None = None
    query_length: Some | None = None
    document_length: Some | None = None
    max_active_dims: Some | None = None


class _Modality(_Said):
    method: Annotated[str, StringConstraints(pattern="^(forward|get_[a-z]+_features)$")]
    method_output_name: str | list[str] | None


class _Processing(_Said):
    max_length: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    pad_to_multiple_of: Size | None = None


class Transformer(_Said):
    """What sentence_bert_config.json and its kind say."""

    max_seq_length: Some | None = None
    do_lower_case: bool | None = None
    unpad_inputs: bool | None = None
    transformer_task: Literal[
        "feature-extraction", "sequence-classification", "text-generation", "any-to-any", "fill-mask", "retrieval"
    ] = "feature-extraction"
    module_output_name: Literal["token_embeddings", "sentence_embedding", "scores", "causal_logits"] | None = None
    modality_config: dict[str, _Modality] | None = None
    processing_kwargs: dict[str, _Processing] | None = None


def check_ranges(settings: Mapping[str, Any], kind: type[BaseModel], where: str) -> None:
    """Refuse settings of a wrong type, or out of range."""
    try:
        kind.model_validate(settings)
    except ValidationError as error:
        raise UnsupportedError(f"{where} cannot be used: {clean(problem_of(error))}. Correct it") from error


def check_rules(rules: Mapping[str, Any], where: str) -> None:
    """Refuse a tokenizer.json whose rules make many letters, or tokens, of one.

    Each rule is bounded by itself. What one inserts, and every other letter of a text, then goes through them all.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 -- an optional package

    inserted: list[str] = [TRIED[:_GROWTH]]
    many = any(_grows(key, value, inserted) for key, value in _values(rules))
    stages = [rules.get("normalizer")]
    while not many and (nested := next((at for at, it in enumerate(stages) if _inner(it)), None)) is not None:
        stages[nested : nested + 1] = _inner(stages[nested])
    for stage in stages if not many else ():
        one = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": stage}
        rule = Tokenizer.from_str(json.dumps(one)).normalizer
        inserted = [text if rule is None else rule.normalize_str(text) for text in inserted]
        many |= any(len(text) > _GROWTH**2 for text in inserted)
        if many:
            break
    if many:
        raise UnsupportedError(
            f"the rules in {where} make more than {_GROWTH} letters or tokens of one, or are more than {_LISTED:,}; "
            "expected those that the model was trained with"
        )


def _inner(stage: Any) -> list[Any]:
    """The rules of a sequence of rules; empty for anything else."""
    inner = stage.get("normalizers") if isinstance(stage, Mapping) else None
    return inner if isinstance(inner, list) else []


def _values(rules: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All lists and other values of rules, at any depth, with their keys."""
    if isinstance(rules, Mapping):
        for name, value in rules.items():
            if name not in _WORDS:
                yield from _values(value, name)
        return
    yield key, rules
    for value in rules if isinstance(rules, list) else ():
        yield from _values(value, key)


def _grows(key: str, value: Any, inserted: list[str]) -> bool:
    """Whether a rule by itself makes many letters of one; texts that rules insert are added to the list."""
    if isinstance(value, list):
        return len(value) > _LISTED
    if key in _INSERTED and isinstance(value, str):
        inserted.append(value)
        return len(value) > _GROWTH
    if key == "precompiled_charsmap" and isinstance(value, str):
        table = base64.b64decode(re.sub(r"\s", "", value))
        return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0"))) > _REPLACED
    return False
