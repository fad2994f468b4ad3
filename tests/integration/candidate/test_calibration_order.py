"""The engine on every kind of model: one pass gives what a pass for each layer would."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quantdrift.builtin.rtn.work import RoundToNearest, quantize_rtn
from quantdrift.candidate.calibration.in_order import NOT_REACHED, NOT_SEEN, LayerCandidate, quantize_in_order
from quantdrift.candidate.calibration.inputs import plain_products
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.candidate.quantized import Moments
from quantdrift.models.layers import LinearLayer, find_linears
from quantdrift.models.weights import weights_fingerprint
from support.model_zoo import ZOO, ZooModel, zoo_model
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
        calls: list[tuple[Tensor, ...]] = []
        watched = layer.modules if layer.inside is None else (layer.inside,)
        hooks = [
            module.register_forward_pre_hook(lambda _, args, calls=calls: calls.append(args)) for module in watched
        ]
        with plain_products([model]):
            entry.run(model, batch)
        for hook in hooks:
            hook.remove()
        mask = batch.get("attention_mask")
        for call in calls[:1]:
            if layer.expert is not None:
                caught.append(to_expert(layer, call, mask))
            elif not layer.name.endswith("out_proj"):  # what attention gives it no hook sees
                fits = mask is not None and mask.shape == call[0].shape[:-1]
                caught.append(call[0][mask.bool()] if fits and mask is not None else call[0].flatten(0, -2))
    return caught


def to_expert(layer: LinearLayer, call: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
    """Return what a mixture gives to one matrix of one expert: the tokens that chose it, or what its first makes."""
    states, chosen, _ = call
    module: Any = layer.inside
    wanted = (chosen == layer.expert).any(dim=1)
    rows = states[wanted if mask is None else wanted & mask.bool().flatten()]
    if "down" not in layer.name:
        return rows
    up = module.gate_up_proj[layer.expert]
    if hasattr(module, "_apply_gate") and hasattr(module, "gate_up_proj_bias"):  # gpt-oss, transposed
        return module._apply_gate(rows @ up + module.gate_up_proj_bias[layer.expert])  # type: ignore[no-any-return]
    gate, value = (rows @ up.t()).chunk(2, dim=-1)
    return module.act_fn(gate) * value  # type: ignore[no-any-return]


class RoundedExperts(nn.Module):
    """The experts of a mixture, whose inputs have 127 levels up to each token's largest number."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, states: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        result = torch.zeros_like(states)
        for token, choice in enumerate(chosen.tolist()):
            for expert, share in zip(choice, shares[token], strict=True):
                gate, value = (self.experts.gate_up_proj[expert] @ to_levels(states[token])).chunk(2)
                result[token] += share * (self.experts.down_proj[expert] @ to_levels(gate.sigmoid() * gate * value))
        return result


def to_levels(x: Tensor) -> Tensor:
    step = (x.abs().amax(dim=-1, keepdim=True) / 127).clamp_min(1e-30)  # padding may be zeros
    return (x / step).round() * step


def test_the_inputs_of_experts_are_rounded_as_by_hand() -> None:
    entry = zoo_model("qwen3-moe")
    model, again, (batch,) = entry.make(), entry.make(), entry.batches(1)
    pair = QuantizedPair(model, "W16A8+act=token")
    with pair.observed():
        exact = entry.run(model, batch)
    for block in again.get_submodule("model.layers"):  # type: ignore[union-attr]  # a list of blocks
        block.mlp.experts = RoundedExperts(block.mlp.experts)
    for module in again.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, args: (to_levels(args[0]),))
    with pair.candidate():
        rounded = entry.run(model, batch)
    torch.testing.assert_close(rounded, entry.run(again, batch), rtol=1e-4, atol=1e-5)
    assert (rounded - exact).abs().max() > 1e-3
    seen = pair.describe()["activations"]["layers_covered"]
    assert seen == sum(not (x.expert is not None and not len(inputs_of(entry, model, x)[0])) for x in pair.layers)


@pytest.mark.parametrize("entry", KINDS)
def test_each_layer_sees_the_quantized_ones_before_it(entry: ZooModel) -> None:
    """Against one full pass per layer over a model whose earlier layers are quantized by hand.

    Layers without a token are those that the model never calls, and experts that no token chooses. Those of a head
    that attends with other queries than keys are none whose whole matrix is multiplied by.
    """
    model, again = entry.make(), entry.make()
    calibrated, by_hand = calibrate(entry, model), find_linears([again])
    assert sorted(calibrated.made) == list(range(len(calibrated.layers)))
    moments_left, compared = iter(calibrated.seen), 0
    for number, made in calibrated.made.items():
        layer = by_hand[number]
        moments = None if made.fallback else next(moments_left)
        if made.fallback:
            in_parts = made.name.endswith(entry.in_parts) if entry.in_parts else False
            assert (made.n_tokens, made.fallback) == (0, NOT_SEEN if in_parts else NOT_REACHED), made.name
            none = layer.expert is not None and not sum(map(len, inputs_of(entry, again, layer)))
            assert none or in_parts or made.name.endswith(entry.unreached)
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
