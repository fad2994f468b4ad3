"""What beir's models are given to embed, and what their embeddings are kept under."""

from typing import Any

import pytest
from torch import nn

pytest.importorskip("beir")

from beir.retrieval.models import SentenceBERT

from quantdrift_beir import QuantizedPair
from quantdrift_beir.pairs import description_of, inputs_of
from support.beir_letters import CORPUS, Letters


class Stub(SentenceBERT):  # type: ignore[misc]  # its type is not known
    """beir's class with a module in place of a language model."""

    def __init__(self, **settings: Any) -> None:
        self.q_model = self.doc_model = nn.Linear(2, 2)
        for name, value in settings.items():
            setattr(self, name, value)


Stub.__module__ = "beir.retrieval.models.sentence_bert"


def test_embeddings_are_kept_under_all_that_beir_gives_its_models() -> None:
    settings: dict[str, Any] = {
        "sep": " ",
        "max_length": None,
        "query_prefix": None,
        "query_prompt_name": None,
        "doc_prefix": None,
        "doc_prompt_name": None,
    }
    plain = description_of(Stub(**settings))
    assert plain is not None
    assert plain == description_of(Stub(**settings))
    for name in settings:
        assert description_of(Stub(**{**settings, name: "another"})) != plain
    capped = Stub(**settings)
    capped.q_model.max_seq_length = 7
    assert description_of(capped) != plain


def test_what_cannot_be_told_is_not_kept() -> None:
    assert description_of(Letters()) is None  # a class of the user's own may do anything
    assert description_of(Stub(sep=" ", normalize=lambda text: text)) is None
    assert description_of(Stub(sep=" ", tool=object())) is None
    pair = QuantizedPair(Letters(), "W4-channel")
    assert inputs_of(pair, "query", {"p": "a"}, {}).inputs.digest is None
    assert inputs_of(pair, "document", CORPUS, {}).inputs.digest is None
