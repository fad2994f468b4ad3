"""ONNX candidates of the real model in every cell, and of other architectures.

Minutes of one core; run when asked for: QUANTDRIFT_SLOW_TESTS=all
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from quantdrift.features.onnx.running import load_onnx
from support.candidate_samples import WORDS, apart, candidate, embed, encoder, rich, save

pytestmark = pytest.mark.very_slow

COMMON: dict[str, Any] = {
    **{"vocab_size": len(WORDS) + 4, "max_position_embeddings": 48, "use_cache": False},
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": GROUPED,
    "mistral": GROUPED,
    "gemma3_text": {**GROUPED, "sliding_window": 8},
    "gpt2": {},  # its layers are Conv1D
    "albert": {"embedding_size": 32},  # one block that runs twice
    "modernbert": {"local_attention": 8},
    "xlm-roberta": {"max_position_embeddings": 50},
    "mpnet": {"max_position_embeddings": 50},
    "distilbert": {"hidden_dim": 96},
    "t5": {"d_kv": 16, "d_ff": 96},  # sentence-transformers takes the encoder of it
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_other_architectures(name: str, side: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = hf.AutoConfig.for_model(name, **{**COMMON, **MODELS[name]})
    model = encoder(tmp_path / "tiny", hf.AutoModel.from_config(config))
    model.tokenizer.padding_side = side
    given = candidate("W4-g32", rich, model)
    record = save(given, tmp_path / "out", model_format="onnx")
    with given.candidate():
        wanted = embed(model)
    assert apart(embed(load_onnx(tmp_path / "out")), wanted) < 1e-5
    left_out = [layer["name"] for layer in record["layers"] if "left out" in layer["stored"]]
    assert all("pooler" in name for name in left_out)
