"""A candidate that is run in another way, its token embedding matrix, and what decides an embedding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from quantdrift.asking.opening import search_of
from quantdrift.asking.run import measure
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.builtin.sentence.work import SentenceEncoder, load_encoder, tokenizer_digest
from quantdrift.builtin.table.work import find_tables, round_tables
from quantdrift.candidate.calibration.sample import draw_sample
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.models.files.named import resolve
from quantdrift.models.files.saved import check_savable
from quantdrift.models.inputs import Settings, text_inputs
from quantdrift.models.store import EmbeddingStore
from quantdrift.runs.words import candidate_lines
from quantdrift.scoring.similarity import Similarity
from quantdrift.spec.grammar import parse_scheme
from support.candidate_samples import TEXTS, save_backbone, tiny, tokenizer
from support.model_zoo import zoo_model

UNEVEN = ["one", "two words", "and three of them", "a longer text with some more words than the others have", ""]
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
    before, state = encoder.encode(UNEVEN, "query", 2), {k: v.clone() for k, v in encoder.module.state_dict().items()}
    side, threads = encoder.model.tokenizer.padding_side, torch.get_num_threads()
    pair = pair_of(encoder, f"{base}+{option}")
    fingerprint = pair.fingerprint
    with pair.candidate():
        inside = pair.candidate_fingerprint()
        encoder.encode(UNEVEN, "query", 2)
    assert inside != fingerprint == pair.fingerprint
    assert np.array_equal(encoder.encode(UNEVEN, "query", 2), before)
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
    theirs = theirs.encode(UNEVEN, batch_size=2, convert_to_tensor=True).float().numpy()
    with pair_of(encoder, f"fp+dtype={name}").candidate():
        ours = encoder.encode(UNEVEN, "document", 2)
    assert np.array_equal(ours, theirs)
    assert not np.array_equal(ours, encoder.encode(UNEVEN, "document", 2))


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


# --- token embedding matrices ------------------------------------------------------------------------


WORDS = "embeddings.word_embeddings"


class Words(nn.Module):
    """A table of 3 tokens, which it says is one, a table of 2 positions, and a layer of [2, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.out = nn.Embedding(3, 4), nn.Embedding(2, 4), nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            rows = [[7.0, -3.4, 0.6, 0.0], [0.0, 0.0, 0.0, 0.0], [-70.0, 34.0, 6.0, 4.0]]
            self.tokens.weight.copy_(torch.tensor(rows))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.tokens


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_rows_are_what_torch_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.builtin.table.work._ROWS", 40)  # the last part is shorter
    table = nn.Embedding(100, 24)
    model, before = Words(), table.weight.detach().clone()
    model.tokens = table
    round_tables(find_tables([model], "mine"), 8)
    scales, zeros = before.abs().amax(dim=1) / 127, torch.zeros(100, dtype=torch.int32)
    made = torch.fake_quantize_per_channel_affine(before, scales, zeros, 0, -127, 127)
    assert torch.allclose(table.weight, made, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scheme", ["W4+table=8", "fp+table=4", "W16A8+act=token+table=4", "W4-hqq+table=8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_words_alone_are_rounded_and_come_back_bit_for_bit(scheme: str, dtype: torch.dtype) -> None:
    model = zoo_model("bert").build().to(dtype)
    before, pair = state(model), QuantizedPair([model], scheme)
    layers = {f"{layer.name}.weight" for layer in pair.layers}
    left_alone = "W16" in scheme or "fp" in scheme
    with pair.candidate():
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        rows = model.get_parameter(f"{WORDS}.weight").float()
        assert max(len(row.abs().unique()) for row in rows) <= 2 ** (int(scheme[-1]) - 1)
    assert changed == {f"{WORDS}.weight", *(() if left_alone else layers)}
    after = model.state_dict()
    assert all(torch.equal(after[name].view(torch.uint8), before[name].view(torch.uint8)) for name in before)


def test_bits_are_codes_and_a_scale_a_row() -> None:
    """8 weights of W4 and their 2 scales, 12 of the table and its 3 scales, 8 positions in float32."""
    for scheme, n_bits in (("W4-channel+table=8", 8 * 4 + 2 * 16), ("fp+table=8", 8 * 32)):
        report = QuantizedPair([Words()], scheme).bits()
        assert report.all_parameters == pytest.approx((n_bits + 12 * 8 + 3 * 16 + 8 * 32) / 28)
    assert (report.linear, report.n_quantized, report.n_parameters) == (32, 12, 28)
    allocated = QuantizedPair([Words()], "W3.5+gap+table=4")  # which asks before widths are chosen
    assert allocated.bits([4]).all_parameters == pytest.approx((8 * 4 + 2 * 16 + 12 * 4 + 3 * 16 + 8 * 32) / 28)


@pytest.mark.parametrize("name", ["gpt2", "qwen3-tied"])
def test_a_tied_head_stays_tied_is_counted_once_and_is_told(name: str) -> None:
    model = zoo_model(name).build()
    pair, plain = QuantizedPair([model], "W4+table=8"), QuantizedPair([model], "W4")
    table = model.get_input_embeddings().weight
    with pair.candidate():
        assert model.lm_head.weight is table
        assert max(len(row.abs().unique()) for row in table) <= 128
    saved = (32 - 8) * table.numel() - 16 * len(table)
    bits = [quantized.bits() for quantized in (plain, pair)]
    assert (bits[0].all_parameters - bits[1].all_parameters) * bits[0].n_parameters == pytest.approx(saved)
    record = pair.describe()
    assert (record["embedding_table"]["tied"], record["layers_left_out"]) == (["lm_head"], {})
    assert "lm_head" in plain.describe()["layers_left_out"]
    lines = [line for line in candidate_lines({"quantization": record}) if "token embeddings" in line]
    assert len(lines) == 1
    assert "8 bits" in lines[0]
    assert "lm_head, tied to it" in lines[0]


def test_a_model_without_one_is_refused_in_one_line() -> None:
    for model in (zoo_model("vit").build(), zoo_model("torch-encoder").build()):
        with pytest.raises(UnsupportedError, match=r"^\+table= .*mine has none") as e:
            QuantizedPair([model], "W4+table=8", name="mine")
        assert "\n" not in str(e.value)
    model = Words().to(torch.float8_e4m3fn)
    with pytest.raises(UnsupportedError, match="floating-point weights"):
        find_tables([model], "mine")


def test_calibration_sees_what_comes_out_of_the_rounded_table(encoder: SentenceEncoder, tmp_path: Path) -> None:
    """The largest input of the first layer is the candidate's, and kept layers are not those of another table."""
    texts = ["wing flow", "a boundary layer of a wing", "heat"] * 3
    ranges = {}
    for scheme in ("W16A8", "W16A8+table=4"):
        pair = QuantizedPair([encoder.module], scheme, encoder=encoder)
        inputs = (text_inputs(texts),)
        sample = draw_sample(pair.encoder, inputs, pair.scheme, 16, source="corpus")
        pair.prepare(sample, root=tmp_path / "cache", progress=Silent())
        record = pair.describe()
        assert record["layers_kept_from_before"] == 0
        ranges[scheme] = record["layers"][0]["input_absmax"]
    seen: list[float] = []
    first = pair.layers[0].modules[0]
    hook = first.register_forward_pre_hook(lambda _, given: seen.append(float(given[0].abs().max())))
    with pair.under_layers():
        encoder.encode(texts, "document", 16)
    hook.remove()
    assert ranges["W16A8+table=4"] == pytest.approx(max(seen))
    assert ranges["W16A8"] != pytest.approx(max(seen))


def test_what_no_file_of_weights_holds_is_refused_before_a_model_is_loaded() -> None:
    check_savable(parse_scheme("W4+table=8+tuned"))
    with pytest.raises(UnsupportedError, match=r"\+emb= is about .* no file of weights can hold; leave it out"):
        check_savable(parse_scheme("W4+emb=int8"))


# --- tokenizers --------------------------------------------------------------------------------------


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
