"""A GGUF file written by hand, of an architecture that transformers reads without the gguf package.

The model is an LFM2 of two small layers, one convolution and one attention, with random weights.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from torch import Tensor
from transformers import AutoTokenizer, Lfm2Config, Lfm2Model

from support.checkpoint_makers import minilm

ALIGNMENT = 32
F32, Q8_0 = 0, 8
BLOCK = 32
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9

NAMES = {
    "embed_tokens": "token_embd",
    "embedding_norm": "token_embd_norm",
    "layers": "blk",
    "operator_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "conv.conv": "shortconv.conv",
}
"""What transformers calls a part, and what llama.cpp does."""


def small_lfm2(folder: Path) -> Path:
    """The reference: the model at full precision as sentence-transformers saves it."""
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    Lfm2Model(config).save_pretrained(folder / "body")
    tokenizer.save_pretrained(folder / "body")
    body = Transformer(str(folder / "body"))
    model = SentenceTransformer(
        modules=[body, Pooling(config.hidden_size, "mean"), Normalize()], prompts={"query": "query: "}, device="cpu"
    )
    model.max_seq_length = 64
    model.save_pretrained(str(folder / "reference"))
    return folder / "reference"


def write_gguf(file: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write the small LFM2's weights as Q8_0, and return what the blocks stand for."""
    tokens = (minilm() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    pairs: dict[str, tuple[int, Any]] = {
        "general.architecture": (STRING, "lfm2"),
        "general.alignment": (UINT32, ALIGNMENT),
        "lfm2.context_length": (UINT32, 128),
        "lfm2.embedding_length": (UINT32, 64),
        "lfm2.feed_forward_length": (UINT32, 128),
        "lfm2.block_count": (UINT32, 2),
        "lfm2.attention.head_count": (UINT32, 4),
        "lfm2.attention.head_count_kv": (ARRAY, (UINT32, [0, 2])),
        "lfm2.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
        "lfm2.shortconv.l_cache": (UINT32, 3),
        "lfm2.rope.freq_base": (FLOAT32, 1e6),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
    }
    meant, data, table = {}, b"", b""
    for name, tensor in tensors.items():
        blocks = tensor.ndim == 2
        values = tensor.squeeze(1) if tensor.ndim == 3 else tensor
        raw, stands_for = _q8_0(values) if blocks else (values.numpy().tobytes(), values)
        meant[name] = stands_for.reshape(tensor.shape)
        dims = struct.pack(f"<I{values.ndim}Q", values.ndim, *values.shape[::-1])
        place = struct.pack("<IQ", Q8_0 if blocks else F32, len(data))
        table += _string(_name(name)) + dims + place
        data += raw + b"\0" * (-len(raw) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, (kind, value) in pairs.items():
        head += _string(key) + struct.pack("<I", kind) + _value(kind, value)
    head += table
    file.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + data)
    return meant


def _q8_0(weight: Tensor) -> tuple[bytes, Tensor]:
    """Blocks of 32 numbers along a row: a float16 scale, then the codes."""
    blocks = weight.reshape(-1, BLOCK)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half()
    codes = torch.round(blocks / scale.float()).clamp(-127, 127).to(torch.int8)
    raw = np.concatenate([scale.numpy().view(np.int8), codes.numpy()], axis=1)
    return raw.tobytes(), codes.float() * scale.float()


def _name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(f"{ours}.", f"{theirs}.")
    return name


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, i) for i in items)
    return struct.pack({UINT32: "<I", FLOAT32: "<f"}[kind], value)
