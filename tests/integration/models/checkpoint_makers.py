"""Quantized checkpoints made by hand, in the layouts that quantizing tools write.

Each maker rounds the linear layers of the embedded MiniLM to nearest, packs the codes and writes a folder. What it
returns beside the folder are the weights that the codes stand for: what any loader has to compute with."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, Qwen3Config, Qwen3Model, TorchAoConfig

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


# --- GGUF: a small Qwen3, and MiniLM -----------------------------------------------------------------


BLOCK, N_LAYERS = 32, 2


def small_qwen3(folder: Path) -> Path:
    """The reference: the model at full precision as sentence-transformers saves it."""
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": N_LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    Qwen3Model(Qwen3Config(vocab_size=len(tokenizer), initializer_range=0.2, **sizes, **heads)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(64, "mean"), Normalize()]
    model = SentenceTransformer(modules=modules, prompts={"query": "query: "}, device="cpu")
    model.max_seq_length = 64
    model.save_pretrained(str(folder / "reference"))
    return folder / "reference"


def write_gguf(file: Path, tensors: Mapping[str, Tensor], **more: Tensor) -> dict[str, Tensor]:
    """Write the small Qwen3's weights, and more under names of llama.cpp; return what the blocks stand for."""
    import gguf  # noqa: PLC0415 -- an optional extra

    writer = gguf.GGUFWriter(file, "qwen3")
    for key, size in (("context_length", 128), ("embedding_length", 64), ("feed_forward_length", 128)):
        writer.add_uint32(f"qwen3.{key}", size)
    for key, size in (("block_count", N_LAYERS), ("attention.head_count", 4), ("attention.head_count_kv", 2)):
        writer.add_uint32(f"qwen3.{key}", size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_token_list((minilm() / "vocab.txt").read_text(encoding="utf-8").splitlines())
    names, meant = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, N_LAYERS), {}
    for name, tensor in tensors.items():
        theirs = names.get_name(f"model.{name}", try_suffixes=(".weight",))
        if tensor.ndim == 1:
            meant[name] = tensor
            writer.add_tensor(theirs, tensor.numpy())
        else:
            raw, meant[name] = _q8_0(tensor)
            writer.add_tensor(theirs, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name, tensor in more.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _q8_0(weight: Tensor) -> tuple[np.ndarray, Tensor]:
    """Blocks of 32 numbers along a row: a float16 scale, then the codes."""
    blocks = weight.reshape(-1, BLOCK)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half()
    codes = torch.round(blocks / scale.float()).clamp(-127, 127).to(torch.int8)
    raw = np.concatenate([scale.numpy().view(np.uint8), codes.numpy().view(np.uint8)], axis=1)
    return raw.reshape(len(weight), -1), (codes.float() * scale.float()).reshape(weight.shape)


def write_minilm(file: Path, kind: str = "F32") -> Path:
    """MiniLM as llama.cpp's own converter writes it, its matrices in one of gguf's types: F32, F16, Q8_0."""
    import gguf  # noqa: PLC0415 -- an optional extra

    config = json.loads((minilm() / "config.json").read_text())
    n_layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(file, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(n_layers)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    words = (minilm() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    special = [word.startswith("[") and word.endswith("]") for word in words]
    inside = [word[2:] if word.startswith("##") else f"\u2581{word}" for word in words]
    writer.add_token_list([word if kept else part for word, part, kept in zip(words, inside, special, strict=True)])
    writer.add_token_types([gguf.TokenType.CONTROL if kept else gguf.TokenType.NORMAL for kept in special])
    writer.add_token_type_count(config["type_vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, n_layers)
    for name, tensor in weights().items():
        if name.startswith("pooler."):
            continue
        theirs, matrix = names.get_name(name, try_suffixes=(".weight", ".bias")), tensor.numpy()
        if tensor.ndim == 2 and name.startswith("encoder."):  # as the converter: other tables stay as they are
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(theirs, gguf.quants.quantize(matrix, number), raw_dtype=number)
        else:
            writer.add_tensor(theirs, matrix.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
