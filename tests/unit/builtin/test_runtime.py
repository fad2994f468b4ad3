"""A candidate that is run in another way, and a reference that never is."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from quantdrift.asking.opening import search_of
from quantdrift.asking.run import measure
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.scoring.similarity import Similarity
from support.candidate_samples import save_backbone

TEXTS = ["one", "two words", "and three of them", "a longer text with some more words than the others have", ""]
OPTIONS = ["dtype=bf16", "dtype=fp16", "attention=eager", "padding=left", "threads=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runtime") / "tiny"
    save_backbone(place)
    return place


@pytest.fixture
def encoder(folder):
    return load_encoder(resolve(str(folder)), device=torch.device("cpu"))


def pair_of(encoder, scheme):
    return QuantizedPair([encoder.module], scheme, encoder=encoder)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("base", ["fp", "W4"])
def test_everything_is_as_before_bit_for_bit(encoder, option, base):
    before, state = encoder.encode(TEXTS, "query", 2), {k: v.clone() for k, v in encoder.module.state_dict().items()}
    side, threads = encoder.model.tokenizer.padding_side, torch.get_num_threads()
    pair = pair_of(encoder, f"{base}+{option}")
    fingerprint = pair.fingerprint
    with pair.candidate():
        inside = pair.candidate_fingerprint()
        encoder.encode(TEXTS, "query", 2)
    assert inside != fingerprint == pair.fingerprint
    assert np.array_equal(encoder.encode(TEXTS, "query", 2), before)
    assert all(torch.equal(v, state[k]) and v.dtype == state[k].dtype for k, v in encoder.module.state_dict().items())
    assert (encoder.model.tokenizer.padding_side, torch.get_num_threads()) == (side, threads)


def test_no_two_ways_share_a_fingerprint(encoder):
    fingerprints = set()
    others = ["batch=1", "batch=2", "dtype=bf16+batch=1", "table=8", "table=4"]
    for option in [*OPTIONS, *others]:
        pair = pair_of(encoder, f"fp+{option}")
        with pair.candidate():
            fingerprints.add(pair.candidate_fingerprint())
    assert len(fingerprints) == len(OPTIONS) + len(others)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_halves_are_those_of_sentence_transformers(folder, encoder, name, dtype):
    theirs = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})
    theirs = theirs.encode(TEXTS, batch_size=2, convert_to_tensor=True).float().numpy()
    with pair_of(encoder, f"fp+dtype={name}").candidate():
        ours = encoder.encode(TEXTS, "document", 2)
    assert np.array_equal(ours, theirs)
    assert not np.array_equal(ours, encoder.encode(TEXTS, "document", 2))


def test_attention_and_padding_arrive(encoder):
    body = encoder.model[0].auto_model
    usual = body.config._attn_implementation
    with pair_of(encoder, "fp+attention=eager").candidate():
        assert body.config._attn_implementation == "eager"
    assert body.config._attn_implementation == usual
    with pair_of(encoder, "fp+padding=left").candidate():
        mask = encoder.model.tokenizer(["a", "a b c d"], padding=True)["attention_mask"]
    assert mask[0][0] == 0


def test_a_module_without_tokenizer_or_attention_is_refused():
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8))
    for option, message in (("padding=left", "quantdrift run"), ("attention=eager", "transformers")):
        with pytest.raises(UnsupportedError, match=message), QuantizedPair(plain, f"fp+{option}").candidate():
            pass


def test_a_candidate_that_depends_on_its_batch_is_run_again_for_its_own_noise(encoder):
    """With CLS pooling and padding on the left a text's embedding depends on the longest text beside it."""
    encoder.model[1].pooling_mode = "cls"
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["one", "two", "three", "words", "some"], size)) for size in rng.integers(1, 12, 40)]
    queries, documents = (dict(zip(map(str, range(20)), part, strict=True)) for part in (texts[:20], texts[20:]))
    reading = search_of(RetrievalDataset.of(queries, documents), Similarity.COSINE)
    settings, floors = Settings(batch_size=8), {}
    for option in ("padding=left", "threads=2"):
        pair = pair_of(encoder, f"fp+{option}")
        measured = measure(pair, reading, settings=settings, store=EmbeddingStore(None), progress=Silent())
        floors[option] = measured.floor
        assert measured.evidence.noise is not None
        assert measured.evidence.noise.epsilon.max() < 1e-4  # the reference answers twice alike
    assert floors["padding=left"]["candidate"]["share"] > 0
    assert floors["padding=left"]["candidate"]["largest"] > 1e-3
    assert "candidate" not in floors["threads=2"]
