"""How long quantizers take for one layer, as ratios to a plain way of doing the same."""

import pytest
import torch
from timing import in_turn, report

from quantdrift.builtin.adaround.work import AdaRound
from support.paper_adaround import adaround
from support.paper_quantizers import outlying_inputs
from support.quantizer_samples import moments_of, weights
from support.threads import one_thread

__all__ = ["one_thread"]

BITS, GROUP_SIZE = 3, 128


@pytest.mark.parametrize(("out_features", "in_features", "steps"), [(384, 384, 400), (384, 1536, 200)])
def test_adaround_against_autograd_and_adam(out_features: int, in_features: int, steps: int) -> None:
    weight, inputs = weights(0, out_features, in_features), outlying_inputs(0, 4 * in_features, in_features)
    moments = moments_of(inputs)
    method = AdaRound(bits=BITS, group_size=GROUP_SIZE, steps=steps)

    def plain() -> None:
        adaround(weight, torch.tensor(inputs, dtype=torch.float32), bits=BITS, group_size=GROUP_SIZE, steps=steps)

    ratios = in_turn(lambda: method.quantize(weight, moments), plain, 2)
    shape = f"{out_features} x {in_features}, {steps} steps, W{BITS}-g{GROUP_SIZE}, 1 thread"
    report("AdaRound / autograd and torch.optim.Adam", ratios, shape)
