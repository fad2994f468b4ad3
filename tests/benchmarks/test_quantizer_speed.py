"""How long quantizers take for one layer, as ratios to a plain way of doing the same."""

from collections.abc import Iterator

import pytest
import torch
from timing import in_turn, report

from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.quantizers.base import Moments
from support.paper_adaround import adaround

BITS, GROUP_SIZE = 3, 128

Layer = tuple[torch.Tensor, Moments]


def _layer(out_features: int, in_features: int) -> Layer:
    """Gaussian weights, and inputs that are mixtures of fewer causes around a mean."""
    generator = torch.Generator().manual_seed(0)
    n_causes = in_features // 4
    mixing = torch.randn(n_causes, in_features, generator=generator) / n_causes**0.5
    inputs = torch.randn(4 * in_features, n_causes, generator=generator) @ mixing
    inputs += torch.randn(in_features, generator=generator)
    inputs += 0.3 * torch.randn(inputs.shape, generator=generator)
    moments = Moments(
        second=inputs.T @ inputs / len(inputs),
        mean_abs=inputs.abs().mean(dim=0),
        absmax=inputs.abs().max().item(),
        n_tokens=len(inputs),
    )
    return torch.randn(out_features, in_features, generator=generator), moments


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that share an operation wait for each other: on a busy machine, 50 times its time."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("out_features", "in_features", "steps"), [(384, 384, 400), (384, 1536, 200)])
def test_adaround_against_autograd_and_adam(out_features: int, in_features: int, steps: int) -> None:
    weight, moments = _layer(out_features, in_features)
    method = AdaRound(bits=BITS, group_size=GROUP_SIZE, steps=steps)

    def plain() -> None:
        adaround(weight, moments.second, bits=BITS, group_size=GROUP_SIZE, steps=steps, noise=True)

    ratios = in_turn(lambda: method.quantize(weight, moments), plain, 2)
    shape = f"{out_features} x {in_features}, {steps} steps, W{BITS}-g{GROUP_SIZE}, 1 thread"
    report("AdaRound / autograd and torch.optim.Adam", ratios, shape)
