"""What is not in the weights: a tokenizer or a setting that differs makes another model."""

from __future__ import annotations

import pytest

pytest.importorskip("sentence_transformers")

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from quantdrift.engine.encoders.sentence import reading_digest, tokenizer_digest


def tokenizer(*words: str) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token=words[0]))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token=words[0], pad_token=words[0])


def model(**settings: object) -> BertModel:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=9, intermediate_size=8, **{**sizes, **settings}))


class Holder:
    def __init__(self, own: object) -> None:
        self.tokenizer = own


def test_a_permuted_vocabulary_is_another_tokenizer() -> None:
    one, same, other = tokenizer("a", "b", "c"), tokenizer("a", "b", "c"), tokenizer("a", "c", "b")
    assert tokenizer_digest(one) == tokenizer_digest(same) != tokenizer_digest(other)
    first, second = (reading_digest([Holder(t)], []) for t in (one, other))
    assert first != second


def test_padding_and_truncation_of_the_last_call_do_not_count() -> None:
    one = tokenizer("a", "b", "c")
    before = tokenizer_digest(one)
    one(["a b", "c"], padding=True, truncation=True, max_length=1)
    assert tokenizer_digest(one) == before


@pytest.mark.parametrize("settings", [{"hidden_act": "relu"}, {"num_attention_heads": 4}])
def test_a_setting_that_changes_no_weight_is_seen(settings: dict[str, object]) -> None:
    assert reading_digest([], [model()]) == reading_digest([], [model()])
    assert reading_digest([], [model()]) != reading_digest([], [model(**settings)])


def test_a_holder_without_a_tokenizer_is_passed_over() -> None:
    assert reading_digest([None, object(), Holder(None)], []) == reading_digest([], [])
