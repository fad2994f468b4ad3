"""The engine on every kind of model: one pass gives what a pass for each layer would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.calibration.in_order import LayerCandidate, plain_products, quantize_in_order
from quantdrift.engine.layers import LinearLayer, find_linears
from quantdrift.engine.quantizers.base import Moments, QuantizedWeight
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn
from quantdrift.engine.weights import weights_fingerprint
from support.model_zoo import ZOO, ZooModel, zoo_model

BITS, GROUP = 3, 16
RTN = RoundToNearest(bits=BITS, group_size=GROUP)
N_BATCHES = 3


@dataclass(frozen=True)
class Watching:
    """Round to nearest that keeps the moments it is given."""

    seen: list[Moments] = field(default_factory=list)

    needs_moments = True
    has_zero_points = False

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        assert moments is not None
        self.seen.append(moments)
        return quantize_rtn(weight, bits=BITS, group_size=GROUP)

    def describe(self) -> dict[str, str]:
        return {}


def calibrate(
    entry: ZooModel, model: nn.Module
) -> tuple[list[LinearLayer], list[int], dict[int, LayerCandidate], list[Moments]]:
    """Layers, their calling order, what became of them, and the moments in that order."""
    layers, order, made = find_linears([model]), [], {}
    method = Watching()

    def done(number: int, layer: LayerCandidate) -> None:
        order.append(number)
        made[number] = layer

    quantize_in_order(
        [model],
        layers,
        [lambda batch=batch: entry.run(model, batch) for batch in entry.batches(N_BATCHES)],
        quantizers=[method] * len(layers),
        fallbacks=[RTN] * len(layers),
        known={},
        done=done,
    )
    return layers, order, made, method.seen


def inputs_of(entry: ZooModel, model: nn.Module, layer: LinearLayer) -> list[Tensor]:
    """What all batches give a layer on its first call, padding left out; by plain hooks."""
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


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_each_layer_sees_the_quantized_ones_before_it(entry: ZooModel) -> None:
    """Against one full pass per layer over a model whose earlier layers are quantized by hand."""
    model = entry.make()
    layers, order, made, seen = calibrate(entry, model)
    assert sorted(order) == list(range(len(layers)))
    again = entry.make()
    by_hand = find_linears([again])
    reached = [number for number in order if made[number].fallback is None]
    compared = 0
    for number, moments in zip(reached, seen, strict=True):
        layer = by_hand[number]
        if inputs := inputs_of(entry, again, layer):
            rows = torch.cat(inputs)
            assert moments.n_tokens == len(rows), layer.name
            wanted = rows.T @ rows / len(rows)
            scale = wanted.diagonal().mean().clamp(min=1e-12)
            assert ((moments.second - wanted).abs() / scale).max() < 1e-4, layer.name
            assert moments.absmax == pytest.approx(float(rows.detach().abs().max()), rel=1e-4)
            compared += 1
        low = quantize_rtn(layer.weight, bits=BITS, group_size=GROUP)
        layer.weight.copy_(low.dequantize(layer.weight.dtype))
    assert compared + sum(not layer.modules for layer in layers) >= len(reached) / 2
    for number in set(order) - set(reached):
        assert made[number].fallback == "no calibration token reached it"
        layer = by_hand[number]
        low = quantize_rtn(layer.weight, bits=BITS, group_size=GROUP)
        layer.weight.copy_(low.dequantize(layer.weight.dtype))
    assert weights_fingerprint([model]) == weights_fingerprint([again])


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_every_layer_that_counts_is_calibrated(entry: ZooModel) -> None:
    """Layers without a token are those that the model never calls, and experts nobody asks."""
    layers, _, made, _ = calibrate(entry, entry.make())
    without = {made[number].name for number in made if made[number].fallback}
    # a projection whose parts get different inputs (a query of its own) has no one input
    allowed = (*entry.unreached, *(("head.attention.in_proj_weight",) * (entry.name == "siglip")))
    experts = {layer.name for layer in layers if layer.expert is not None}
    strangers = {name for name in without - experts if not name.endswith(allowed)}
    assert not strangers


def test_an_expert_that_saw_no_token_is_rounded_to_nearest() -> None:
    entry = zoo_model("qwen3-moe")
    model = entry.make()
    exact = {layer.name: layer.weight.clone() for layer in find_linears([model])}
    layers, _, made, _ = calibrate(entry, model)
    idle = [made[n] for n in made if made[n].fallback]
    busy = [made[n] for n in made if layers[n].expert is not None and not made[n].fallback]
    assert busy  # the routed ones are calibrated
    for layer in idle:
        wanted = quantize_rtn(exact[layer.name], bits=BITS, group_size=GROUP)
        assert layer.quantized is not None
        assert torch.equal(layer.quantized.codes, wanted.codes)
        assert layer.n_tokens == 0


def test_known_layers_are_put_in_place_and_not_made_again() -> None:
    entry = zoo_model("bert")
    _, _, made, seen = calibrate(entry, first := entry.make())
    again = entry.make()
    layers, method = find_linears([again]), Watching()
    known = {number: made[number] for number in list(made)[:7]}
    told: list[int] = []
    quantize_in_order(
        [again],
        layers,
        [lambda batch=batch: entry.run(again, batch) for batch in entry.batches(N_BATCHES)],
        quantizers=[method] * len(layers),
        fallbacks=[RTN] * len(layers),
        known=known,
        done=lambda number, _: told.append(number),
    )
    assert sorted(told) == list(range(len(layers)))
    assert len(method.seen) == len(seen) - 7
    assert weights_fingerprint([first]) == weights_fingerprint([again])


def test_hooks_and_settings_are_gone_afterwards() -> None:
    entry = zoo_model("torch-encoder")
    model = entry.make()
    fast = torch.backends.mha.get_fastpath_enabled()
    calibrate(entry, model)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    hooks = [(m._forward_pre_hooks, m._forward_hooks) for m in model.modules()]
    assert not any(before or after for before, after in hooks)


def test_a_model_that_fails_ends_the_calibration() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def failing() -> None:
        model[0](torch.ones(1, 4))
        raise ValueError("no such image")

    works: Sequence[object] = [lambda: model(torch.ones(1, 4)), failing]
    with pytest.raises(ValueError, match="no such image"):
        quantize_in_order(
            [model],
            find_linears([model]),
            works,  # type: ignore[arg-type]  # closures
            quantizers=[Watching()] * 2,
            fallbacks=[RTN] * 2,
            known={},
            done=lambda *_: None,
        )
