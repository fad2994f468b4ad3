"""Token embedding matrices: which they are, that they come back bit for bit, what they cost and who shares them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.builtin.table.work import find_tables, round_tables
from quantdrift.candidate.calibration.sample import draw_sample
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.files.named import resolve
from quantdrift.models.files.saved import check_savable
from quantdrift.models.inputs import text_inputs
from quantdrift.runs.words import candidate_lines
from quantdrift.spec.grammar import parse_scheme
from support.candidate_samples import save_backbone
from support.model_zoo import zoo_model

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


def test_calibration_sees_what_comes_out_of_the_rounded_table(tmp_path: Path) -> None:
    """The largest input of the first layer is the candidate's, and kept layers are not those of another table."""
    save_backbone(tmp_path / "tiny")
    encoder = load_encoder(resolve(str(tmp_path / "tiny")), device=torch.device("cpu"))
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


def test_onnx_is_refused_before_a_model_is_loaded() -> None:
    check_savable(parse_scheme("W4+table=8"))
    with pytest.raises(UnsupportedError, match="--format safetensors"):
        check_savable(parse_scheme("W4+table=8"), model_format="onnx")
