"""ONNX candidates of the real model in every cell, and of other architectures.

Minutes of one core; run when asked for: QUANTDRIFT_SLOW_TESTS=all
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from quantdrift.builtin.onnx.running import load_onnx
from support.candidate_samples import WORDS, apart, candidate, embed, encoder, rich, save

pytestmark = pytest.mark.very_slow

SIZES: dict[str, Any] = {"vocab_size": len(WORDS) + 4, "max_position_embeddings": 48}
WIDTHS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "use_cache": False}


@pytest.mark.parametrize(
    "config",
    [
        hf.Qwen3Config(**SIZES, **WIDTHS, **GROUPED),
        hf.Gemma3TextConfig(**SIZES, **WIDTHS, **GROUPED, sliding_window=8, bos_token_id=2, eos_token_id=3),
        hf.GPT2Config(  # its layers are Conv1D
            vocab_size=SIZES["vocab_size"],
            n_embd=64,
            n_layer=2,
            n_head=4,
            n_positions=48,
            use_cache=False,
            bos_token_id=2,
            eos_token_id=3,
        ),
        hf.AlbertConfig(**SIZES, **WIDTHS, embedding_size=32),  # one block that runs twice
        hf.ModernBertConfig(**SIZES, **WIDTHS, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3),
        hf.T5Config(  # sentence-transformers takes the encoder of it
            vocab_size=SIZES["vocab_size"], d_model=64, num_layers=2, num_heads=4, d_kv=16, d_ff=96
        ),
        hf.DebertaV2Config(**SIZES, **WIDTHS, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_other_architectures(config: Any, side: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = encoder(tmp_path / "tiny", hf.AutoModel.from_config(config))
    model.tokenizer.padding_side = side
    given = candidate("W4-g32", rich, model)
    record = save(given, tmp_path / "out", model_format="onnx")
    with given.candidate():
        wanted = embed(model)
    assert apart(embed(load_onnx(tmp_path / "out")), wanted) < 1e-5
    left_out = [layer["name"] for layer in record["layers"] if "left out" in layer["stored"]]
    assert all("pooler" in name for name in left_out)
