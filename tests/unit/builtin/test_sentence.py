"""What decides an embedding beside a model's weights."""

from quantdrift.builtin.sentence.work import tokenizer_digest
from support.candidate_samples import TEXTS, tiny, tokenizer


def test_a_tokenizers_digest_is_taken_again_when_it_changes() -> None:
    model = tiny()
    before = tokenizer_digest(model.tokenizer)
    model.encode(TEXTS)  # leaves padding and truncation behind, which are no part of it
    assert tokenizer_digest(model.tokenizer) == before
    model.tokenizer.padding_side = "left"
    try:
        assert tokenizer_digest(model.tokenizer) != before
    finally:
        model.tokenizer.padding_side = "right"
    # which text a token is of decides scores, too
    told = tokenizer(model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    assert tokenizer_digest(told) != tokenizer_digest(tokenizer())
