"""Which models can be walked block by block, and what is noticed where one cannot."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from quantdrift.engine.calibration.whole_model import block_list, check_blocks, examples_of, transformers_model
from quantdrift.errors import UnsupportedError
from support.model_zoo import ZooModel, zoo_model

BERT = zoo_model("bert")
DTYPES = [torch.float32, torch.bfloat16]


def walkable(entry: ZooModel, module: nn.Module) -> bool:
    """As a whole-model quantizer asks it, with no cache of keys and values."""
    batches = [lambda batch=batch: entry.run(module, batch) for batch in entry.batches(2)]
    with torch.no_grad():
        model = transformers_model([module])
        model.config.use_cache = False
        name = block_list(model)
        return bool(examples_of(model, batches)) and check_blocks(model, name, batches[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["bert", "albert", "qwen3", "cross-encoder", "gpt2", "llama", "qwen3-moe", "gpt-oss"])
def test_models_whose_blocks_need_nothing_more_can_be_walked(kind: str, dtype: torch.dtype) -> None:
    """The first text is padded in its batch, and without padding in the walk."""
    entry = zoo_model(kind)
    assert walkable(entry, entry.make(dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("modernbert", "runs each block by itself, .* block 1 then gives outputs that differ by"),
        ("t5", "block 1 then gives outputs that differ by"),  # a bias that only block 0 computes
        ("deberta", r"block 0 of encoder.layer cannot be run so \(TypeError"),  # mask by position
        ("vit", "drops the rest; ViTForImageClassification was given pixel_values"),
        ("torch-encoder", "optimum quantizes one transformers model, got none"),
    ],
)
def test_models_that_optimum_would_run_differently_are_refused(kind: str, message: str, dtype: torch.dtype) -> None:
    entry = zoo_model(kind)
    with pytest.raises(UnsupportedError, match=rf"{message}.*; use \+backend=gptqmodel"):
        walkable(entry, entry.make(dtype=dtype))


def test_a_causal_mask_given_by_position_is_missed() -> None:
    """GPT-2's blocks are causal by themselves in torch's attention, not in the eager one."""
    entry = zoo_model("gpt2")
    model: Any = entry.make()
    model.config._attn_implementation = "eager"
    with pytest.raises(UnsupportedError, match=r"by itself, .* block 0 then gives outputs that dif"):
        walkable(entry, model)


class Turned(hf.BertModel):  # type: ignore[misc]  # untyped there
    """Reads a text backwards where it is told to."""

    def forward(self, input_ids: Tensor, turn: bool = False, **more: Any) -> Any:
        return super().forward(input_ids.flip(1) if turn else input_ids, **more)


@pytest.mark.parametrize("turn", [False, True])
def test_a_setting_of_the_call_that_matters_is_noticed(turn: bool) -> None:
    torch.manual_seed(0)
    model = Turned(BERT.make().config).eval()
    batch = BERT.batches(1)[0]
    refused = pytest.raises(UnsupportedError, match="only, without padding; block 0 then gives")
    with torch.no_grad(), refused if turn else nullcontext():
        assert check_blocks(model, "encoder.layer", lambda: model(**batch, turn=turn))


def test_a_batch_that_calls_no_model_compares_nothing() -> None:
    assert not check_blocks(BERT.make(), "encoder.layer", lambda: None)


def test_the_blocks_are_the_largest_list_that_lies_in_no_other() -> None:
    model = nn.Module()
    model.heads = nn.ModuleList([nn.Linear(2, 2)])
    model.body = nn.Module()
    block = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(4, 4) for _ in range(9))})
    model.body.blocks = nn.ModuleList([block])
    assert block_list(model) == "body.blocks"
    assert block_list(BERT.make()) == "encoder.layer"
    with pytest.raises(UnsupportedError, match="optimum quantizes a list of blocks, and Linear"):
        block_list(nn.Linear(2, 2))


def test_one_transformers_model_is_expected() -> None:
    head = hf.BertForSequenceClassification(BERT.make().config)
    assert transformers_model([nn.Sequential(head, nn.Linear(2, 2))]) is head  # the outer one
    with pytest.raises(UnsupportedError, match="one transformers model, got none"):
        transformers_model([nn.Linear(2, 2)])
    with pytest.raises(UnsupportedError, match="one transformers model, got BertModel, BertModel"):
        transformers_model([BERT.make(), BERT.make()])
    config = hf.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=20)
    with pytest.raises(UnsupportedError, match="T5Model has an encoder and a decoder"):
        transformers_model([hf.T5Model(config)])
