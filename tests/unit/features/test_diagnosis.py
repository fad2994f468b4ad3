"""What differs between two runtimes of one model is found, named, and undone."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from tokenizers.normalizers import Lowercase, Sequence
from tokenizers.processors import TemplateProcessing

from quantdrift.base.progress import Silent
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.features.diagnose.diagnosis import ROUNDING, diagnose
from quantdrift.models.files.named import resolve
from support.candidate_samples import HIDDEN, WORDS, save_backbone

RNG = np.random.default_rng(0)


def words(n):
    return " ".join(RNG.choice(WORDS, n))


TEXTS = {
    "query": [words(2 + i) for i in range(4)],
    "document": [*(words(3 + 3 * i) for i in range(16)), words(9).upper()],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with prompts, a limit of 32 tokens and a Dense module."""
    place = tmp_path_factory.mktemp("diagnosis")
    save_backbone(place / "backbone")
    body = Transformer(str(place / "backbone"), max_seq_length=32)
    parts = [body, Pooling(HIDDEN, "mean"), Dense(HIDDEN, HIDDEN)]
    made = SentenceTransformer(modules=parts, device="cpu", prompts={"query": "wing flow ", "document": ""})
    made.save(str(place / "model"))
    return place / "model"


@pytest.fixture(scope="module")
def mine(folder):
    return load_encoder(resolve(str(folder)), device=torch.device("cpu"))


class Elsewhere:
    """The same model in another runtime, which does one thing in its own way."""

    def __init__(self, folder, change=None, after=None, prompts=True):
        self.model, self.after, self.prompts = SentenceTransformer(str(folder), device="cpu"), after, prompts
        if change is not None:
            change(self.model)

    def encode(self, texts, role, batch_size, progress=None):
        prompt = self.model.prompts.get(role, "") if self.prompts else ""
        prompted = [prompt + text for text in texts]
        vectors = self.model.encode(prompted, prompt="")
        return vectors if self.after is None else self.after(vectors)


def cls(model):
    model[1].pooling_mode = "cls"


def bare(model):
    model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])


def second_end(model):
    backend, ids = model.tokenizer.backend_tokenizer, model.tokenizer.convert_tokens_to_ids
    names = ["[CLS]", "[SEP]"]
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP] [SEP]", pair="$A $B", special_tokens=list(zip(names, ids(names), strict=True))
    )


def lower(model):
    backend = model.tokenizer.backend_tokenizer
    backend.normalizer = Sequence([Lowercase(), *filter(None, [backend.normalizer])])


def short(model):
    model.max_seq_length = 31


@pytest.mark.parametrize(
    ("other", "name", "words"),
    [
        ({"change": cls}, "pooling", "pools by cls"),
        ({"prompts": False}, "prompt", "has no prompts"),
        ({"change": bare}, "special tokens", "lacks [CLS] and [SEP]"),
        ({"change": second_end}, "special tokens", "another [SEP] behind"),
        ({"change": short}, "truncation", "cuts texts at 31 tokens, this one at 32"),
        ({"change": lower}, "case", "lower-cases"),
        ({"change": lambda model: model._modules.pop("2")}, "modules", "no Dense"),
        ({"after": lambda vectors: 2 * vectors}, "length", "differ in length by 50.0 %"),
        ({"after": lambda vectors: vectors[:, :24]}, "dimensions", f"24 and {HIDDEN} dimensions"),
    ],
)
def test_one_cause_is_named_alone(folder, mine, other, name, words):
    diagnosis = diagnose(mine, Elsewhere(folder, **other), TEXTS, batch_size=8, progress=Silent())
    assert [tried.name for tried in diagnosis.found] == [name]
    assert words in diagnosis.found[0].told
    assert diagnosis.found[0].verdict == "explains it"
    assert diagnosis.left <= ROUNDING


def test_two_causes_are_put_together(folder, mine):
    other = Elsewhere(folder, change=cls, prompts=False)
    diagnosis = diagnose(mine, other, TEXTS, batch_size=8, progress=Silent())
    assert {tried.name for tried in diagnosis.found} == {"pooling", "prompt"}
    assert diagnosis.left <= ROUNDING < diagnosis.found[0].after


def test_the_same_model_needs_no_explanation_and_is_left_as_it_was(folder, mine):
    before = mine.encode(TEXTS["document"], "document", 8)
    diagnose(mine, Elsewhere(folder, change=cls, prompts=False), TEXTS, batch_size=8, progress=Silent())
    assert np.array_equal(mine.encode(TEXTS["document"], "document", 8), before)
    diagnosis = diagnose(mine, Elsewhere(folder), TEXTS, batch_size=8, progress=Silent())
    assert diagnosis.found == ()
    assert diagnosis.before < ROUNDING


def test_the_candidate_is_changed_where_the_reference_cannot_be(folder, mine):
    diagnosis = diagnose(Elsewhere(folder, change=cls), mine, TEXTS, batch_size=8, progress=Silent())
    assert (diagnosis.changed, diagnosis.found[0].name) == ("candidate", "pooling")


def test_of_two_that_cannot_be_changed_vectors_are_compared(folder):
    other = Elsewhere(folder, after=lambda vectors: vectors[:, :24])
    diagnosis = diagnose(Elsewhere(folder), other, TEXTS, batch_size=8, progress=Silent())
    assert [tried.name for tried in diagnosis.found] == ["dimensions"]
    assert diagnosis.changed == ""
