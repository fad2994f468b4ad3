"""The number formats by hand: numbers of each, scales of blocks, bits, and inputs."""

import math

import pytest
import torch
from torch import Tensor, nn

from quantdrift.base.errors import DataError, SpecError, UnsupportedError
from quantdrift.base.registry import imported
from quantdrift.builtin.formats.floats import e2m1, e4m3
from quantdrift.candidate.calibration.candidate import LayerStore
from quantdrift.candidate.calibration.in_order import LayerCandidate
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.spec.grammar import only, parse, parse_scheme, stages_of
from quantdrift.spec.remedies import check_repairable
from support.quantizer_samples import made

FORMATS = [name for name, entry in QUANTIZERS.items() if entry.widths]


def rounded(name: str, *weights: float) -> list[float]:
    values: list[float] = made(name, torch.tensor([weights])).dequantize(torch.float32)[0].tolist()
    return values


def inputs(name: str, x: Tensor, *, absmax: float | None = None, bits: int = 8) -> Tensor:
    result: Tensor = imported(QUANTIZERS[name].inputs)(x, absmax=absmax, bits=bits)
    return result


def test_e2m1_has_eight_sizes_and_halves_go_to_the_even_neighbour() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7])
    assert e2m1(halves).tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert e2m1(-halves).tolist() == [0, -1, -1, -2, -2, -4, -4, -6]


def test_e4m3_has_three_binary_digits_and_ends_at_448() -> None:
    assert e4m3(torch.tensor([17.0, 19, 440, 500, 2.0**-9, 2.0**-11])).tolist() == [16, 20, 448, 448, 2.0**-9, 0]


def test_fp8_has_a_scale_of_every_row_or_of_the_matrix() -> None:
    """Rows of 448 and 2 x 448; 17 and 34 are halves between two numbers of the first and the second."""
    weight = torch.tensor([[448.0, 17], [896, 17]])
    assert made("fp8", weight).dequantize(torch.float32).tolist() == [[448, 16], [896, 16]]
    quantized = made("fp8_tensor", weight)
    assert quantized.scale.tolist() == [[2], [2]]
    assert quantized.dequantize(torch.float32).tolist() == [[448, 16], [896, 16]]


def test_mxfp4_rounds_the_largest_weight_of_a_block_before_it_takes_its_power_of_two() -> None:
    """5 and 6.5 are 1.25 and 1.625 x 4: 4 and a scale of 1. 7 is 1.75 x 4, so 8 and 2: 7 is 3.5 of these, hence 8."""
    assert rounded("mxfp4", *[5, 1.5] * 16, *[7, 3.5] * 16) == [*[4, 1.5] * 16, *[8, 4] * 16]
    assert made("mxfp4", torch.tensor([[5.0] * 32 + [6.5] * 32 + [7.0] * 3])).scale.tolist() == [[1, 1, 2]]


def test_mxfp8_reaches_eight_powers_of_two_further() -> None:
    assert made("mxfp8", torch.full((1, 32), 5.0)).scale.tolist() == [[2.0**-6]]
    assert rounded("mxfp8", *[5.0] * 31, 1.0625) == [*[5.0] * 31, 1.0]


def test_nvfp4_has_scales_in_e4m3_under_one_of_the_matrix() -> None:
    """The largest weight, 6 x 448, makes that 1; a block of up to 102 has the scale 17, whose nearest is 16."""
    quantized = made("nvfp4", torch.tensor([[6.0 * 448] * 16 + [102.0, 48] * 8]))
    assert quantized.scale.tolist() == [[448, 16]]
    assert quantized.dequantize(torch.float32)[0, 15:18].tolist() == [6 * 448, 96, 48]


def test_int8_spreads_its_255_steps_over_both_signs() -> None:
    assert rounded("int8", -127.5, 1.5, 100, 127.5) == [-128, 2, 100, 127]


def test_llm_int8_reads_weights_in_float16() -> None:
    assert rounded("llm_int8", 127, 1.5, 2.0**-30, -127) == [127, 2, 0, -127]


def test_nf4_and_fp4_are_numbers_from_a_table_times_the_largest_of_64() -> None:
    assert rounded("nf4", 2, *[1] * 63)[:2] == pytest.approx([2, 2 * 0.44070983])
    assert rounded("nf4", -2, *[1] * 63)[:2] == pytest.approx([-2, 2 * 0.44070983])
    assert rounded("fp4", 12, 7, 5.1, 0.05, *[0] * 60)[:4] == pytest.approx([12, 6, 6, 0.0625])


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_blocks_of_bitsandbytes_run_on_from_row_to_row(name: str) -> None:
    """Two rows of 96 are three blocks, and the second has halves of both."""
    weight = torch.tensor([[1.0] * 64 + [2] * 32, [2] * 32 + [4] * 64])
    quantized = made(name, weight)
    assert torch.equal(quantized.dequantize(torch.float32), weight)
    assert torch.equal(quantized.scale, weight)


def test_double_quantization_keeps_the_maxima_less_their_mean_in_eight_bits() -> None:
    """Of two blocks, 1 and 3, that is -1 and 1: the dynamic format has 1, and -0.9929688 in place of -1."""
    weight = torch.tensor([[1.0] * 64 + [3.0] * 64])
    quantized = made("nf4_dq", weight)
    assert quantized.scale.tolist() == [[pytest.approx(2 - 0.9929688), 3]]


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_stay_zeros_and_the_smallest_numbers_stay_finite(name: str) -> None:
    weight = torch.zeros(3, 100)  # a last block of 4 weights, or of 36
    weight[1, 64:] = 1
    weight[2] = 2.0**-149
    values = made(name, weight).dequantize(torch.float32)
    assert not values[0].any()
    assert not values[1, :64].any()
    assert torch.isfinite(values).all()
    assert values[2].abs().max() <= 2.0**-100
    assert values[1, 64:].tolist() == pytest.approx([1.0] * 36, rel=0.04)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_weights_that_are_not_finite_are_refused(name: str, wrong: float) -> None:
    weight = torch.ones(2, 64)
    weight[1, 3] = wrong
    with pytest.raises(DataError, match=r"finite weights.*2 x 64"):
        made(name, weight)


BITS = {
    "W8-fp8": 8 + 16 / 256,
    "W8-fp8_tensor": 8 + 16 / (256 * 64),
    "W8-int8": 8 + 16 / 256,
    "W8-llm_int8": 8 + 32 / 256,
    "W8-mxfp8": 8 + 8 / 32,
    "W4-mxfp4": 4 + 8 / 32,
    "W4-nvfp4": 4 + 8 / 16 + 32 / (256 * 64),
    "W4-nf4": 4 + 32 / 64,
    "W4-g128-nf4": 4 + 32 / 128,
    "W4-nf4_dq": 4 + 8 / 64 + 32 / (64 * 256) + 32 / (256 * 64),
    "W4-fp4_dq": 4 + 8 / 64 + 32 / (64 * 256) + 32 / (256 * 64),
}


@pytest.mark.parametrize("scheme", BITS)
def test_bits_count_the_scales_of_the_format(scheme: str) -> None:
    """One matrix of 64 x 256."""
    report = QuantizedPair(nn.Linear(256, 64, bias=False), scheme).bits()
    assert report.linear == int(scheme[1])
    assert report.linear_with_scales == report.all_parameters == pytest.approx(BITS[scheme], rel=1e-12)


# --- inputs -------------------------------------------------------------------------------------------


def test_inputs_in_fp8_on_a_range_or_token_by_token() -> None:
    x = torch.tensor([[[448.0, 17], [896, 17]]])
    assert inputs("fp8", x).tolist() == [[[448, 16], [896, 16]]]
    assert inputs("fp8", x, absmax=448.0).tolist() == [[[448, 16], [448, 16]]]  # clipped
    assert inputs("fp8", x, absmax=0.0).tolist() == [[[0, 0], [0, 0]]]
    assert inputs("fp8", x.bfloat16()).dtype == torch.bfloat16
    assert inputs("fp8", x[:, :0]).shape == (1, 0, 2)  # an expert without tokens


def test_inputs_of_four_and_eight_bits_in_blocks() -> None:
    x = torch.tensor([[5.0] * 32 + [7.0] * 3])
    assert inputs("mxfp8", x, bits=8).tolist() == x.tolist()
    assert inputs("mxfp4", x, bits=8).tolist() == x.tolist()  # W4A8-mxfp4: weights of 4 bits, inputs of 8
    assert inputs("mxfp4", x, bits=4).tolist() == [[4.0] * 32 + [8.0] * 3]
    assert inputs("nvfp4", torch.tensor([[102.0, 48]]), absmax=6.0 * 448, bits=4).tolist() == [[96, 48]]


def test_columns_of_outliers_stay_as_they_are_for_all_tokens_of_a_batch() -> None:
    x = torch.tensor([[[1.27, 0.004, 100.25]], [[-1.27, 0.016, 0.5]]])
    wanted = [[[1.27, 0, 100.25]], [[-1.27, 0.02, 0.5]]]
    torch.testing.assert_close(inputs("llm_int8", x), torch.tensor(wanted), rtol=1e-3, atol=0)
    alone = inputs("llm_int8", x[1:])
    torch.testing.assert_close(alone, torch.tensor([[[-1.27, 0.02, 0.5]]]), rtol=1e-3, atol=0)


# --- schemes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("W8-fp8", "W8-channel-fp8"),
        ("W8A8-fp8+act=tensor", "W8A8-channel-fp8"),
        ("W8A8-int8+act=token", "W8A8-channel-int8+act=token"),
        ("W8A8-llm_int8+act=token", "W8A8-channel-llm_int8"),
        ("W4-nf4", "W4-g64-nf4"),
        ("W4-nf4-g128", "W4-g128-nf4"),
        ("W4A8-mxfp4", "W4A8-g32-mxfp4"),
        ("W16A4-nvfp4", "W16A4-g16-nvfp4"),
    ],
)
def test_a_format_has_a_group_of_its_own(written: str, canonical: str) -> None:
    assert str(parse_scheme(written)) == str(parse_scheme(canonical)) == canonical


@pytest.mark.parametrize(
    ("scheme", "where", "message"),
    [
        ("W8-nf4", "W8", "unsuitable weights for nf4 .*expected W4"),
        ("W8A4-fp8", "W8A4", "unsuitable inputs for fp8 .*expected A8"),
        ("W4-g128-mxfp4", "g128", "unsuitable granularity for mxfp4 .*expected g32"),
        ("W4-nf4+gap", "gap", "unsuitable criterion for nf4 .*one width for all layers"),
        ("W8A8-mxfp8+act=token", "act=token", "unsuitable act for mxfp8 .*each block"),
    ],
)
def test_what_a_format_does_not_have_is_one_error_at_its_place(scheme: str, where: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse(f"minilm@{scheme}")
    assert caught.value.text[caught.value.start : caught.value.end] == where


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fp8", "W8-fp8 or W8A8-fp8 .inputs, too."),
        ("nf4", "W4-nf4"),
        ("4bit", "W4 .weights. or W4-nf4"),
        ("int8", "W8 .weights. or fp.emb=int8 .* or W8-int8 or W8A8-int8"),
        ("nvfp4", "W4-nvfp4 or W4A4-nvfp4"),
        ("fp4", "W4-mxfp4 .*W4-nvfp4 .*W4-fp4"),
        ("q4_k_m", "W4 .weights. or MODEL vs FILE.gguf"),
        ("W4A16", "W4 .weights."),
        ("gptq", "W4-gptq"),
    ],
)
def test_what_a_newcomer_types_is_answered_with_the_spelling(typed: str, meant: str) -> None:
    with pytest.raises(SpecError, match=f"did you mean {meant}"):
        parse(f"minilm@{typed}")


def test_shares_of_weights_and_inputs_keep_the_format() -> None:
    scheme = parse_scheme("W8A8-fp8+act=token+emb=int8")
    parts = {stage: str(only(scheme, {stage})) for stage in stages_of(scheme)}
    of_layers = {"weights": "W8-channel-fp8", "activations": "W16A8-channel-fp8+act=token"}
    assert parts == {**of_layers, "embeddings": "fp+emb=int8"}


def test_repair_has_nothing_to_try_beside_a_format() -> None:
    with pytest.raises(UnsupportedError, match="nf4"):
        check_repairable(parse_scheme("W4-nf4"))
    check_repairable(parse_scheme("W4-nf4+emb=int8"))


# --- candidates ---------------------------------------------------------------------------------------


def test_a_candidate_has_the_formats_weights_and_inputs_and_is_undone() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 8)
    before, x = model.weight.detach().clone(), torch.randn(2, 3, 64)
    pair = QuantizedPair(model, "W8A8-fp8+act=token")
    with torch.no_grad(), pair.candidate():
        answer = model(x)
        low = model.weight.detach().clone()
    assert torch.equal(low, made("fp8", before).dequantize(torch.float32))
    assert torch.equal(answer, nn.functional.linear(inputs("fp8", x), low, model.bias))
    assert torch.equal(model.weight, before)
    record = pair.describe()
    assert (record["quantizer"], record["grid"]) == ("fp8", "fp8")
    assert [record["activations"][key] for key in ("bits", "scale", "format")] == [8, "token", "fp8"]


def test_a_kept_layer_is_read_back_with_its_levels(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = LayerStore(tmp_path_factory.mktemp("kept"), "ab" * 16)
    quantized = made("nvfp4", torch.randn(4, 40, generator=torch.Generator().manual_seed(1)))
    store.write(0, LayerCandidate(name="layer", quantized=quantized))
    kept = store.read(1)[0].quantized
    assert kept is not None
    assert torch.equal(kept.dequantize(torch.float32), quantized.dequantize(torch.float32))
