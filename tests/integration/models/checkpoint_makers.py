"""Quantized checkpoints made by hand, in the layouts that quantizing tools write.

Each maker rounds the linear layers of the embedded MiniLM to nearest, packs the codes and writes a
folder. What it returns beside the folder are the weights that the codes stand for: what any loader
has to compute with.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, TorchAoConfig

from quantdrift.models.files.named import resolve

GROUP = 128
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""Which column of eight lies in which nibble of an AWQ word, lowest first."""

Made = tuple[Path, dict[str, Tensor]]


def minilm() -> Path:
    return Path(resolve("minilm").location)


def weights() -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in load_file(minilm() / "model.safetensors").items()
        if not name.endswith("position_ids")
    }


def linear_names(tensors: Mapping[str, Tensor], *, pooler: bool = False) -> list[str]:
    return [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if name.endswith(".weight")
        and tensor.ndim == 2
        and (name.startswith("encoder.") or (pooler and name.startswith("pooler.")))
    ]


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], quantization: Mapping[str, Any] | None = None, *, modules: bool = False
) -> Path:
    """MiniLM's folder with other weights; without `modules` only what transformers writes."""
    kept = ["1_Pooling", "modules.json", "config_sentence_transformers.json"]
    names = ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    folder.mkdir(parents=True)
    for name in [*names, *(["sentence_bert_config.json", *kept] if modules else [])]:
        source = minilm() / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    if modules:
        (folder / "2_Normalize").mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    if quantization is not None:
        config["quantization_config"] = dict(quantization)
    (folder / "config.json").write_text(json.dumps(config))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def asymmetric(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes from 0 [out, in], zero points [out, groups] and float16 scales [out, groups]."""
    groups = weight.reshape(len(weight), -1, group)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).half()
    zero = torch.round(-low / scale.float()).clamp(1, 2**bits - 1)  # 0 overflows in "gptq"
    codes = torch.round(groups / scale.float()[..., None] + zero[..., None]).clamp(0, 2**bits - 1)
    return codes.reshape(weight.shape).int(), zero.int(), scale


def words(nibbles: Tensor, dim: int) -> Tensor:
    """Eight 4-bit numbers along a dimension as one 32-bit word, the first in the lowest bits."""
    split = nibbles.movedim(dim, -1).long()
    split = split.reshape(*split.shape[:-1], -1, 8) << torch.arange(0, 32, 4)
    word = split.sum(-1)
    signed = torch.where(word >= 2**31, word - 2**32, word)
    return signed.int().movedim(-1, dim)


def gptq(folder: Path, *, modules: bool = False, **more: Any) -> Made:
    """The layout of auto-gptq ("gptq"): rows packed, zero points stored one lower than they are."""

    def layout(codes: Tensor, zero: Tensor) -> dict[str, Tensor]:
        group = torch.arange(zero.shape[1]).repeat_interleave(codes.shape[1] // zero.shape[1]).int()
        return {"qweight": words(codes.T, 0), "qzeros": words((zero.T - 1) % 16, 1), "g_idx": group}

    config = {"quant_method": "gptq", "desc_act": False, "sym": False, "checkpoint_format": "gptq", **more}
    return _packed(folder, layout, config, modules=modules)


def awq(folder: Path, *, modules: bool = False, **more: Any) -> Made:
    """The layout of autoawq ("gemm"): columns packed in its own order."""

    def mixed(numbers: Tensor) -> Tensor:
        return words(numbers.reshape(len(numbers), -1, 8)[..., AWQ_ORDER].reshape(numbers.shape), 1)

    config = {"quant_method": "awq", "version": "gemm", "zero_point": True, **more}
    return _packed(
        folder, lambda codes, zero: {"qweight": mixed(codes.T), "qzeros": mixed(zero.T)}, config, modules=modules
    )


def _packed(
    folder: Path, layout: Callable[[Tensor, Tensor], dict[str, Tensor]], config: Mapping[str, Any], *, modules: bool
) -> Made:
    """MiniLM in four bits, each layer's codes and zero points in a layout."""
    tensors, meant, group = weights(), {}, config.get("group_size", GROUP)
    for name in linear_names(tensors):
        weight = tensors.pop(f"{name}.weight")
        size = weight.shape[1] if group == -1 else group
        codes, zero, scale = asymmetric(weight, 4, size)
        zeros, scales = (part.repeat_interleave(size, dim=1).float() for part in (zero, scale))
        meant[name] = (codes - zeros) * scales
        parts = {**layout(codes, zero), "scales": scale.T}
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    return write_folder(folder, tensors, {"bits": 4, "group_size": GROUP, **config}, modules=modules), meant


def torchao(folder: Path, *, modules: bool = False) -> Made:
    """What transformers writes for int8 weights, one scale for each output channel."""
    from torchao.quantization import Int8WeightOnlyConfig  # noqa: PLC0415 -- an optional extra

    how = TorchAoConfig(Int8WeightOnlyConfig())
    model = AutoModel.from_pretrained(minilm(), quantization_config=how)
    if modules:
        write_folder(folder, {}, modules=True)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    names = linear_names(weights(), pooler=True)
    return folder, {name: stored[f"{name}._weight_qdata"].float() * stored[f"{name}._weight_scale"] for name in names}


def compressed_tensors(folder: Path, preset: str, ranges: Mapping[str, float] | None = None) -> Path:
    """What compressed-tensors writes for a preset of it, as llm-compressor does: observed ranges, then packed.

    `ranges` are those of the inputs, layer name to the largest value, where the preset has fixed ones.
    """
    from compressed_tensors.compressors import ModelCompressor  # noqa: PLC0415 -- an optional extra
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config  # noqa: PLC0415
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam  # noqa: PLC0415

    model = AutoModel.from_pretrained(minilm(), dtype=torch.float32)
    config = QuantizationConfig(config_groups={preset: ["Linear"]}, ignore=[])
    apply_quantization_config(model, config)
    for name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            continue
        weight, args = module.weight.detach(), scheme.weights
        per = {"tensor": weight.reshape(1, -1), "channel": weight}.get(args.strategy)
        groups = weight.unflatten(-1, (-1, args.group_size)) if per is None else per
        whole = generate_gparam(weight.min(), weight.max()) if args.strategy == "tensor_group" else None
        keep = per is not None
        low, high = groups.amin(-1, keepdim=keep), groups.amax(-1, keepdim=keep)
        scale, _ = calculate_qparams(low, high, args, global_scale=whole)
        module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)
        if whole is not None:
            module.weight_global_scale.data = whole.reshape(module.weight_global_scale.shape)
        end = torch.tensor([1.0 if ranges is None else ranges[name]])
        if hasattr(module, "input_scale"):
            module.input_scale.data = calculate_qparams(-end, end, scheme.input_activations)[0]
        if hasattr(module, "input_global_scale"):
            module.input_global_scale.data = generate_gparam(-end, end)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    return folder


def bitsandbytes(folder: Path, **settings: Any) -> Path:
    """What transformers writes for a BitsAndBytesConfig."""
    from transformers import BitsAndBytesConfig  # noqa: PLC0415 -- it asks for the library

    how = BitsAndBytesConfig(**settings)
    model = AutoModel.from_pretrained(minilm(), quantization_config=how, dtype=torch.float32, device_map="cpu")
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    return folder
