"""Models that a library walks: what it is given, what it leaves out, and that nothing stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from quantdrift.engine.calibration.in_order import LayerCandidate
from quantdrift.engine.calibration.whole_model import (
    WholeModelQuantizer,
    examples_of,
    quantize_whole_model,
    taken_apart,
)
from quantdrift.engine.layers import find_linears
from quantdrift.engine.quantizers.base import Moments, QuantizedWeight
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn
from quantdrift.errors import UnsupportedError

RTN = RoundToNearest(bits=3, group_size=None)
IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0], [0, 3, 4, 5]])
MASK = (IDS != 0).long()


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2
    )
    return hf.BertModel(config).eval()


# --- what the library is given -------------------------------------------------------------------


def test_texts_lose_their_padding_and_those_of_one_length_go_together() -> None:
    """Padded at the end or in front: 5 6 7 and 3 4 5 are of three tokens, 8 9 of two."""
    two, three = taken_apart(bert(), {"input_ids": IDS, "attention_mask": MASK})
    assert two["input_ids"].tolist() == [[8, 9]]
    assert three["input_ids"].tolist() == [[5, 6, 7], [3, 4, 5]]
    assert two["attention_mask"].tolist() == [[1, 1]]
    assert three["attention_mask"].tolist() == [[1, 1, 1]] * 2


def test_ids_without_a_mask_are_all_tokens() -> None:
    (whole,) = taken_apart(bert(), {"input_ids": IDS})
    assert torch.equal(whole["input_ids"], IDS)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"token_type_ids": torch.tensor([[0, 1, 1, 0]])}, "token_type_ids"),
        ({"pixel_values": torch.zeros(1, 3, 8, 8)}, "pixel_values"),
        ({"inputs_embeds": torch.zeros(3, 4, 8), "input_ids": None}, "inputs_embeds"),
        ({"task": "retrieval"}, "task"),
        ({"attention_mask": MASK[:, None, None]}, r"attention_mask \[3, 1, 1, 4\]"),
        ({"input_ids": None, "attention_mask": None}, "no input_ids"),
    ],
)
def test_what_would_be_dropped_is_named(more: dict[str, Any], named: str) -> None:
    given = {"input_ids": IDS, "attention_mask": MASK} | more
    with pytest.raises(UnsupportedError, match=rf"BertModel was given {named}; use \+backend="):
        list(taken_apart(bert(), given))


def test_what_changes_nothing_may_be_dropped() -> None:
    given = {"token_type_ids": torch.zeros_like(IDS), "return_dict": True, "use_cache": None}
    assert len(list(taken_apart(bert(), {"input_ids": IDS, **given}))) == 1


def test_calls_are_seen_however_the_model_is_called() -> None:
    """Sentence-transformers calls `forward` itself, others give the ids by position."""
    model = bert()
    ids, mask = IDS[:1, :3], MASK[:1, :3]
    batches: list[Callable[[], object]] = [
        lambda: model(input_ids=ids, attention_mask=mask),
        lambda: model.forward(ids, mask),
        lambda: model.forward(input_ids=ids, attention_mask=mask, return_dict=True),
    ]
    examples = examples_of(model, batches)
    assert [example["input_ids"].tolist() for example in examples] == [[[5, 6, 7]]] * 3
    assert "forward" not in vars(model)
    with pytest.raises(UnsupportedError, match="no calibration input was a call of it"):
        examples_of(model, [lambda: None])


# --- the layers ----------------------------------------------------------------------------------


class Walker:
    """Stops at the blocks' linear layers, twice; no token reaches their first, the query."""

    needs_moments = True
    has_zero_points = False

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        assert moments is not None
        return quantize_rtn(weight, bits=8, group_size=None)

    def describe(self) -> dict[str, str]:
        return {"backend": "walker"}

    def walk_blocks(
        self,
        model: nn.Module,
        blocks: str,
        examples: Sequence[Mapping[str, Tensor]],
        arrive: Callable[[nn.Module, Moments], None],
    ) -> None:
        model.train()
        found = [m for m in model.get_submodule(blocks).modules() if isinstance(m, nn.Linear)]
        for number, module in enumerate([nn.Linear(3, 3), *found, *found]):  # one is not ours
            n_tokens = 0 if module is found[0] else 100 + number
            second = torch.eye(module.in_features)
            arrive(module, Moments(second=second, mean_abs=second[0], absmax=2, n_tokens=n_tokens))


def test_layers_that_the_walk_leaves_out_are_rounded_and_named() -> None:
    model = bert()
    layers = find_linears([model])
    exact = [layer.weight.clone() for layer in layers]
    order, made = [], dict[int, LayerCandidate]()

    def done(number: int, layer: LayerCandidate) -> None:
        order.append(number)
        made[number] = layer

    walker = Walker()
    assert isinstance(walker, WholeModelQuantizer)
    assert not isinstance(RTN, WholeModelQuantizer)
    batches: list[Callable[[], object]] = [lambda: model(input_ids=IDS, attention_mask=MASK)]
    quantize_whole_model([model], layers, batches, quantizer=walker, fallback=RTN, done=done)
    assert order == [*range(1, 12), 0, 12]  # the walk comes first
    assert {made[n].name: made[n].fallback for n in order if made[n].fallback} == {
        "encoder.layer.0.attention.self.query": "no calibration token reached it",
        "pooler.dense": "outside the blocks that walker quantizes",
    }
    for number, layer in enumerate(layers):
        low = quantize_rtn(exact[number], bits=3 if number in {0, 12} else 8, group_size=None)
        assert torch.equal(layer.weight, low.dequantize(torch.float32)), layer.name
        assert made[number].called
    assert [made[n].n_tokens for n in (0, 1, 11, 12)] == [8, 102, 112, 3]  # 3 texts, 8 tokens
    assert not model.training
    assert model.config.use_cache == bert().config.use_cache


def test_layers_that_are_called_again_have_the_range_of_all_calls() -> None:
    """ALBERT runs one block twice, and a walk goes through it once."""
    torch.manual_seed(0)
    size = {"hidden_size": 8, "intermediate_size": 12, "embedding_size": 8, "vocab_size": 20}
    model = hf.AlbertModel(hf.AlbertConfig(**size, num_attention_heads=2, num_hidden_layers=2))
    layers, seen = find_linears([model.eval()]), dict[int, list[float]]()
    later = quantize_whole_model(
        [model], layers, [lambda: model(input_ids=IDS)], quantizer=Walker(), fallback=RTN, done=lambda *_: None
    )
    for number, layer in enumerate(layers):
        layer.modules[0].register_forward_pre_hook(
            lambda _, x, n=number: seen.setdefault(n, []).append(float(x[0].detach().abs().max()))
        )
    model(input_ids=IDS)
    twice = {number: calls[1] for number, calls in seen.items() if len(calls) == 2}
    assert len(twice) == 6
    assert later == pytest.approx(twice)
