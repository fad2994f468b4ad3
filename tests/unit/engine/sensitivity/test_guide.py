"""Moments weighted by the gradient of the gap, by hand, and what GPTQ makes of them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from quantdrift.base.errors import DataError
from quantdrift.base.progress import Silent
from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.sensitivity.guide import BLOCKS, guided_moments, pseudo_queries
from support.quantizer_samples import moments_by_hand, skip_without, weights
from support.sensitivity import linear, setting_of


def test_tokens_weigh_as_much_as_they_move_the_gap_in_each_block_of_rows() -> None:
    # four outputs, a block each; the gap is y0 - 2 y3, so rows 1 and 2 move nothing: then no guide can be given
    layer = nn.Sequential(linear([1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]))
    inputs = torch.tensor([[1.0, 2.0], [3.0, 0.0]])

    def all_rows(outputs: Tensor) -> Tensor:
        y = outputs[:, :, 0]
        return y[..., 0] + 3 * y[..., 1] - 2 * y[..., 2] + y[..., 3]

    def gapless(outputs: Tensor) -> Tensor:
        return outputs[:, :, 0, 0] - 2 * outputs[:, :, 0, 3]

    (blocks,) = _moments(layer, inputs, all_rows)
    by_hand = inputs.T @ inputs  # the gradient is the same for both inputs, so blocks differ by a factor alone
    assert blocks is not None
    assert blocks.shape == (BLOCKS, 2, 2)
    for block in blocks:
        torch.testing.assert_close(block, by_hand / by_hand.diagonal().mean())
    assert _moments(layer, inputs, gapless) == [None]


def test_a_token_whose_output_is_cut_off_does_not_count() -> None:
    model = nn.Sequential(linear([1.0, 1.0], [1.0, -1.0]), nn.ReLU())
    inputs = torch.tensor([[2.0, 1.0], [1.0, 2.0]])  # of the second, row 1 is negative: no gradient there
    (blocks,) = _moments(model, inputs, lambda outputs: outputs[:, :, 0, 0] - outputs[:, :, 0, 1])
    assert blocks is not None
    assert blocks.shape == (2, 2, 2)
    first, second = (rows.T @ rows for rows in (inputs, inputs[:1]))
    torch.testing.assert_close(blocks[0], first / first.diagonal().mean())
    torch.testing.assert_close(blocks[1], second / second.diagonal().mean())


def _moments(model: nn.Module, inputs: Tensor, gap: object) -> list[Tensor | None]:
    setting = setting_of(model, inputs, gap=gap)  # type: ignore[arg-type]
    before = [parameter.requires_grad for parameter in model.parameters()]
    moments = guided_moments(setting.modules, setting.layers, setting.gaps, progress=Silent())
    assert [parameter.requires_grad for parameter in model.parameters()] == before  # nothing is left behind
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    return moments


METHODS = [Gptq(bits=3, group_size=16), Gptq(bits=3, group_size=16, act_order=True), AdaRound(bits=3, group_size=16)]


@pytest.fixture(params=METHODS, ids=["gptq", "gptq_ao", "adaround"])
def method(request: pytest.FixtureRequest) -> Gptq | AdaRound:
    if isinstance(request.param, Gptq):
        skip_without("gptqmodel")
    return request.param


def test_a_guide_that_says_what_the_inputs_say_changes_nothing(method: Gptq | AdaRound) -> None:
    weight, moments = weights(0, 12, 32), _drawn(1, 32)
    plain = method.quantize(weight, moments)
    same = (moments.second / moments.second.diagonal().mean()).expand(BLOCKS, -1, -1)
    guided = replace(method, guided=True).quantize(weight, replace(moments, guide=same))
    torch.testing.assert_close(guided.dequantize(torch.float32), plain.dequantize(torch.float32))


def test_each_block_makes_its_own_error_small(method: Gptq | AdaRound) -> None:
    weight, moments = weights(0, 16, 32), _drawn(1, 32)
    guide = torch.stack([_drawn(seed, 32).second for seed in range(2, 2 + BLOCKS)])
    guide /= guide.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    plain, guided = (
        method.quantize(weight, block).dequantize(torch.float32) for block in (moments, replace(moments, guide=guide))
    )

    def error(low: Tensor) -> float:
        parts = torch.tensor_split(weight - low, BLOCKS)
        return sum(float(((part @ second) * part).sum()) for part, second in zip(parts, guide, strict=True))

    assert error(guided) < 0.9 * error(plain)


def _drawn(seed: int, n: int) -> Moments:
    rows = torch.randn(24, n, generator=torch.Generator().manual_seed(seed))
    return moments_by_hand(rows.T @ rows / len(rows))


def test_pseudo_queries_are_sentences_of_the_documents() -> None:
    documents = ["One sentence that is long enough. Short. Another one that is long enough!", "x" * 300, ""]
    assert pseudo_queries(documents, 5, seed=0) == [
        "One sentence that is long enough.",
        "Another one that is long enough!",
    ]
    many = [f"This is the sentence with the number {number}." for number in range(50)]
    some = pseudo_queries(many, 10, seed=1)
    assert len(set(some)) == 10
    assert some == [text for text in many if text in some]
    assert some == pseudo_queries(many, 10, seed=1) != pseudo_queries(many, 10, seed=2)
    with pytest.raises(DataError, match="and there is none; leave \\+guided out"):
        pseudo_queries(["short", "y" * 500], 3, seed=0)
