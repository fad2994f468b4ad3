"""The linear layers of models as libraries really build them."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from quantdrift.kinds.quantizer import group_bits
from quantdrift.models.bits import count_bits
from quantdrift.models.layers import LinearLayer, WeightUse, find_linears, left_out
from quantdrift.models.weights import weights_fingerprint
from support.model_zoo import ZOO, ZooModel

every_model = pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)


def used(entry: ZooModel, model: nn.Module) -> frozenset[str]:
    with WeightUse(find_linears([model])) as use:
        entry.run(model, *entry.batches(1))
    return use.used


def disturb(layer: LinearLayer) -> Tensor:
    """Change a matrix in place; returns what it was."""
    before = layer.weight.clone()
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(1))
    layer.weight.add_(noise.to(before.dtype) * before.std())
    return before


@every_model
def test_every_matrix_is_found_exactly_once(entry: ZooModel) -> None:
    """Ones added through all layers to a model of zeros are ones in the model."""
    model = entry.make()
    layers = find_linears([model])
    assert len(layers) == entry.n_layers == len({layer.name for layer in layers})
    assert tuple(left_out([model])) == entry.left_out
    for parameter in model.parameters():
        parameter.detach().zero_()
    for layer in layers:
        layer.weight.add_(1)
    for name, parameter in model.named_parameters():
        is_linear = parameter.dim() > 1 and not any(part in name for part in entry.others)
        assert torch.equal(parameter, torch.full_like(parameter, is_linear)), name
    report = count_bits([model], layers, [4] * len(layers), scale_bits=lambda n, m: group_bits(n, m, 128))
    assert report.n_quantized == sum(int(p.count_nonzero()) for p in model.parameters())
    assert report.n_parameters == sum(p.numel() for p in model.parameters())


@every_model
def test_a_layer_is_reached_if_and_only_if_the_answer_changes_with_it(entry: ZooModel) -> None:
    model = entry.make()
    (batch,) = entry.batches(1)
    reached, answer = used(entry, model), entry.run(model, batch)
    original = weights_fingerprint([model])
    for layer in find_linears([model]):
        before = disturb(layer)
        changed = not torch.equal(entry.run(model, batch), answer)
        layer.weight.copy_(before)
        if not any(part in layer.name for part in entry.doubtful):
            assert changed == (layer.name in reached), layer.name
        assert not changed or layer.name in reached  # what matters is never missed
        if entry.unreached and layer.name.endswith(entry.unreached):
            assert not changed
    assert weights_fingerprint([model]) == original
    assert torch.equal(entry.run(model, batch), answer)


@every_model
def test_modules_multiply_by_their_layers_matrix(entry: ZooModel) -> None:
    """And what no module is called for is known: a hook does not see its input."""
    model = entry.make()
    layers, called = find_linears([model]), set()

    def check(layer: LinearLayer, module: nn.Module) -> None:
        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            called.add(layer.name)
            tokens = torch.cat(args[0].unbind()) if args[0].is_nested else args[0]
            wanted = linear(tokens, layer.weight, module.bias)
            if isinstance(output, Tensor):  # a router gives its choice
                given = torch.cat(output.unbind()) if output.is_nested else output
                torch.testing.assert_close(wanted, given)

        module.register_forward_hook(hook)

    for layer in layers:
        for module in layer.modules:
            check(layer, module)
    unseen = used(entry, model) - called
    assert all(any(part in name for part in entry.unseen) for name in unseen)
    assert all(any(part in name for name in unseen) for part in entry.unseen)
    assert all(name.endswith(entry.unreached) for name in called - used(entry, model))
