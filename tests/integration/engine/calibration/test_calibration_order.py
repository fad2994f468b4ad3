"""The engine on every kind of model: one pass gives what a pass for each layer would."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.calibration.in_order import NOT_CALLED, NOT_REACHED, LayerCandidate, quantize_in_order
from quantdrift.engine.calibration.inputs import plain_products
from quantdrift.engine.layers import LinearLayer, find_linears
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn
from quantdrift.engine.weights import weights_fingerprint
from support.model_zoo import ZOO, ZooModel
from support.quantizer_samples import Watching

BITS, GROUP = 3, 16
N_BATCHES = 3
ALWAYS = ("bert", "gpt2", "torch-encoder", "qwen3-moe")
KINDS = [pytest.param(e, id=e.name, marks=[] if e.name in ALWAYS else pytest.mark.slow) for e in ZOO]


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """Layers, what became of them in calling order, and the moments that the method was given."""

    layers: list[LinearLayer]
    made: dict[int, LayerCandidate]
    seen: list[Moments]


def calibrate(entry: ZooModel, model: nn.Module) -> Calibrated:
    layers, method, made = find_linears([model]), Watching(bits=BITS, group_size=GROUP), dict[int, LayerCandidate]()
    quantize_in_order(
        [model],
        layers,
        [lambda batch=batch: entry.run(model, batch) for batch in entry.batches(N_BATCHES)],
        quantizers=[method] * len(layers),
        fallbacks=[RoundToNearest(bits=BITS, group_size=GROUP)] * len(layers),
        kept={},
        done=made.__setitem__,
    )
    return Calibrated(layers=layers, made=made, seen=method.seen)


def inputs_of(entry: ZooModel, model: nn.Module, layer: LinearLayer) -> list[Tensor]:
    """Return the inputs that all batches give a layer on its first call, padding left out; by plain hooks."""
    caught: list[Tensor] = []
    for batch in entry.batches(N_BATCHES):
        first: list[Tensor] = []
        hooks = [
            module.register_forward_pre_hook(lambda _, args, first=first: first.append(args[0]))
            for module in layer.modules
        ]
        with plain_products([model]):
            entry.run(model, batch)
        for hook in hooks:
            hook.remove()
        for x in first[:1]:
            mask = batch.get("attention_mask")
            fits = mask is not None and mask.shape == x.shape[:-1]
            caught.append(x[mask.bool()] if fits and mask is not None else x.flatten(0, -2))
    return caught


@pytest.mark.parametrize("entry", KINDS)
def test_each_layer_sees_the_quantized_ones_before_it(entry: ZooModel) -> None:
    """Against one full pass per layer over a model whose earlier layers are quantized by hand.

    Layers without a token are those that the model never calls, and those that are no modules.
    """
    model, again = entry.make(), entry.make()
    calibrated, by_hand = calibrate(entry, model), find_linears([again])
    assert sorted(calibrated.made) == list(range(len(calibrated.layers)))
    moments_left, compared = iter(calibrated.seen), 0
    for number, made in calibrated.made.items():
        layer = by_hand[number]
        moments = None if made.fallback else next(moments_left)
        if made.fallback:
            assert made.n_tokens == 0
            assert made.fallback == (NOT_REACHED if layer.modules else NOT_CALLED)
            assert not layer.modules or made.name.endswith(entry.unreached)
        if moments is not None and (inputs := inputs_of(entry, again, layer)):
            rows = torch.cat(inputs)
            assert moments.n_tokens == made.n_tokens == len(rows), layer.name
            wanted = rows.T @ rows / len(rows)
            scale = wanted.diagonal().mean().clamp(min=1e-12)
            assert ((moments.second - wanted).abs() / scale).max() < 1e-4, layer.name
            assert moments.absmax == pytest.approx(float(rows.detach().abs().max()), rel=1e-4)
            compared += 1
        low = quantize_rtn(layer.weight, bits=BITS, group_size=GROUP)
        layer.weight.copy_(low.dequantize(layer.weight.dtype))
    assert compared >= len(calibrated.seen) / 2
    assert weights_fingerprint([model]) == weights_fingerprint([again])
