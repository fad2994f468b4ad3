"""What SentenceEncoder makes of texts, which are tokenised once; sentence-transformers itself is the oracle."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from tokenizers.normalizers import Lowercase
from tokenizers.processors import TemplateProcessing

from quantdrift.checkpoints.named import ModelSource
from quantdrift.engine.encoders.sentence import SentenceEncoder, Tokens, encoder_of, tokenizer_digest
from support.candidate_samples import tiny
from support.tiny_command_line import text

TEXTS = [text(number, 2 + 5 * number % 23) for number in range(20)]
Calls = list[int]


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How many texts the library itself made tokens of, a number each call."""
    own, calls = Transformer.preprocess, []

    def counted(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(inputs))
        return own(self, inputs, *args, **kwargs)

    monkeypatch.setattr(Transformer, "preprocess", counted)
    return calls


@pytest.fixture
def model() -> Iterator[SentenceTransformer]:
    """The tiny encoder, with the weights and settings that it had, after the test as well."""
    made = tiny()
    weight = made[0].model.encoder.layer[0].output.dense.weight
    before, length, side = weight.detach().clone(), made.max_seq_length, made.tokenizer.padding_side
    yield made
    with torch.no_grad():
        weight.copy_(before)
    made.max_seq_length, made.tokenizer.padding_side = length, side


def encoder(model: SentenceTransformer) -> SentenceEncoder:
    return encoder_of(model, ModelSource(name="tiny", canonical="tiny", kind="local", location="tiny"))


def own(model: SentenceTransformer, role: str, texts: list[str]) -> Any:
    """What sentence-transformers makes of them by itself."""
    encode = model.encode_query if role == "query" else model.encode_document
    return encode(texts, batch_size=8, show_progress_bar=False)


def test_the_second_arm_takes_the_tokens_of_the_first_and_gets_the_librarys_own_embeddings(
    model: SentenceTransformer, tokenised: Calls
) -> None:
    one = encoder(model)
    first = one.encode(TEXTS, "document", 8)
    assert tokenised == [8, 8, 4]
    with torch.no_grad():
        model[0].model.encoder.layer[0].output.dense.weight.mul_(0.5)
    second = one.encode(TEXTS, "document", 8)
    assert tokenised == [8, 8, 4]
    np.testing.assert_array_equal(second, own(model, "document", TEXTS))
    assert np.abs(second - first).max() > 0.01
    assert "preprocess" not in vars(model)


@pytest.mark.parametrize("change", ["role", "padding", "length", "texts", "normalizer", "post_processor"])
def test_what_decides_tokens_is_told_apart(change: str, model: SentenceTransformer) -> None:
    """The last two are changed in the tokenizer that is in memory, as `quantdrift diagnose` does."""
    one, role, texts = encoder(model), "document", [text.upper() for text in TEXTS]
    backend = model.tokenizer.backend_tokenizer
    before = backend.normalizer, backend.post_processor
    first = one.encode(texts, role, 8)
    if change == "role":
        role = "query"
    elif change == "padding":
        model.tokenizer.padding_side = "left"
    elif change == "length":
        model.max_seq_length = 5
    elif change == "texts":
        texts = [*texts[:-1], texts[0]]
    elif change == "normalizer":
        backend.normalizer = Lowercase()
    else:
        backend.post_processor = TemplateProcessing(single="$A")
    try:
        found, expected = one.encode(texts, role, 8), own(model, role, texts)
    finally:
        backend.normalizer, backend.post_processor = before
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found - first).max() > 0


def test_a_model_that_writes_into_its_inputs_gets_them_whole_again(model: SentenceTransformer) -> None:
    class Spoiling(Normalize):
        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            features["input_ids"].zero_()
            features["attention_mask"].zero_()
            return super().forward(features)

    one = encoder(SentenceTransformer(modules=[*model.children(), Spoiling()], device="cpu").eval())
    first = one.encode(TEXTS, "document", 8)
    assert one.tokens.batches
    for _ in range(2):
        np.testing.assert_array_equal(one.encode(TEXTS, "document", 8), first)


def test_no_more_is_remembered_than_there_is_room(model: SentenceTransformer, tokenised: Calls) -> None:
    whole = encoder(model)
    whole.encode(TEXTS, "document", 8)
    one = SentenceEncoder(
        model=model, source=whole.source, similarity=whole.similarity, tokens=Tokens(room=whole.tokens.taken - 1)
    )
    for _ in range(2):
        np.testing.assert_array_equal(one.encode(TEXTS, "document", 8), own(model, "document", TEXTS))
    assert 0 < one.tokens.taken <= one.tokens.room
    assert one.tokens.taken == sum(
        part.nbytes for b in one.tokens.batches.values() for part in b.values() if torch.is_tensor(part)
    )
    assert len(tokenised) > 3


def test_a_model_that_reads_texts_in_its_own_way_is_left_alone(model: SentenceTransformer) -> None:
    class Moody(Transformer):
        said = 0

        def preprocess(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.said += 1
            return super().preprocess([f"{one} {TEXTS[self.said]}" for one in inputs], *args, **kwargs)

    moody = SentenceTransformer(modules=[*model.children()], device="cpu").eval()
    moody[0].__class__ = Moody
    one = encoder(moody)
    try:
        first = one.encode(TEXTS[:4], "document", 8)
        assert np.abs(one.encode(TEXTS[:4], "document", 8) - first).max() > 0
        assert not one.tokens.batches
    finally:
        moody[0].__class__ = Transformer


def test_a_tokenizers_digest_is_taken_again_when_it_changes(model: SentenceTransformer) -> None:
    before = tokenizer_digest(model.tokenizer)
    model.encode(TEXTS)  # leaves padding and truncation behind, which are no part of it
    assert tokenizer_digest(model.tokenizer) == before
    model.tokenizer.padding_side = "left"
    assert tokenizer_digest(model.tokenizer) != before
