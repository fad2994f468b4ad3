"""A GGUF file of a small Qwen3 with random weights, its matrices rounded to Q8_0 by hand."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from torch import Tensor
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

from integration.models.checkpoint_makers import minilm, weights

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


def write_gguf(file: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write the small Qwen3's weights, and return what the blocks stand for."""
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
