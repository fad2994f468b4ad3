"""The gradient by scales and codes is that of autograd through the weight put together, whatever a grid has."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor, nn
from torch.func import functional_call

from quantdrift.builtin.formats.bnb import from_scheme as nf4
from quantdrift.builtin.tuned.descent import Weight, free_parameters, slopes
from quantdrift.candidate.calibration.in_order import LayerCandidate
from quantdrift.candidate.calibration.inputs import plain_products
from quantdrift.candidate.quantized import QuantizedWeight
from quantdrift.models.layers import LinearLayer, find_linears
from quantdrift.spec.grammar import parse_scheme
from support.candidate_samples import rich
from support.model_zoo import zoo_model

KINDS = ("bert", "gpt2", "qwen3-tied", "qwen3-moe", "gpt-oss", "torch-encoder", "clip", "siglip")


def together(quantized: QuantizedWeight, moved: Tensor, codes: Tensor) -> Tensor:
    """The weight of such scales and codes, in float64."""
    codes = codes.double()
    if quantized.levels is not None:
        codes = quantized.levels[quantized.codes.int() + len(quantized.levels) // 2].double()
    if quantized.zero_point is not None:
        codes = codes - quantized.of_column(quantized.zero_point.double())
    weight = codes * quantized.of_column(moved)
    return weight if quantized.input_scaling is None else weight / quantized.input_scaling.double()


def of_autograd(quantized: QuantizedWeight, inputs: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """A loss of the weight that has these numbers, and its gradient by them, in float64; rounding's is 1."""
    numbers = numbers.double().requires_grad_()
    n = quantized.scale.numel()
    moved = quantized.scale.double() * numbers[:n].view(quantized.scale.shape).exp()
    latent = numbers[n:].view(quantized.codes.shape) if len(numbers) > n else quantized.codes.double()
    rounded = latent + (latent.round().clamp(*map(int, quantized.codes.aminmax())) - latent).detach()
    weight = together(quantized, moved, rounded)
    loss = torch.tanh(inputs.double() @ weight.T).square().sum()
    return weight.detach(), torch.autograd.grad(loss, numbers)[0]


def weight_of(parameter: nn.Parameter, quantized: QuantizedWeight, exact: Tensor, *, transposed: bool) -> Weight:
    layer = LinearLayer(name="layer", parameter=parameter, transposed=transposed)
    n, n_codes = quantized.scale.numel(), quantized.codes.numel() if quantized.levels is None else 0
    return Weight(
        layer=layer, quantized=quantized, exact=exact, place=slice(0, n + n_codes), n_scales=n, n_codes=n_codes
    )


@given(
    st.tuples(st.integers(1, 5), st.integers(2, 40)),
    st.none() | st.integers(2, 50),
    st.integers(2, 8),
    st.integers(0, 99),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_the_gradient_by_scales_and_codes_is_that_of_autograd(
    shape: tuple[int, int], group_size: int | None, bits: int, seed: int, transposed: bool
) -> None:
    """With an order of columns, an input scaling, zero points with fractions and a short last group."""
    n_out, n_in = shape
    assume(group_size is None or n_in % group_size != 1)  # a group of one has no range
    torch.manual_seed(seed)
    exact, inputs = torch.randn(n_out, n_in), torch.randn(7, n_in)
    quantized = rich(exact, bits=bits, group_size=group_size, seed=seed)
    parameter = nn.Parameter((exact.T if transposed else exact).clone().contiguous())
    weight = weight_of(parameter, quantized, exact, transposed=transposed)
    n = quantized.scale.numel()
    numbers = weight.start()
    assert torch.equal(weight.at(numbers).codes, quantized.codes)
    apart = (exact - weight.at(numbers).dequantize(torch.float32)).abs()
    latent = together(quantized, quantized.scale.double(), numbers[n:].view(quantized.codes.shape))
    assert bool(((exact - latent).abs() <= apart + 1e-5).all())
    numbers[:n] += 0.1 * torch.randn(n)
    numbers[n:] += torch.randn(len(numbers) - n)
    weight.put(numbers)
    made, wanted = of_autograd(quantized, inputs, numbers)
    assert torch.allclose(weight.layer.weight.double(), made, rtol=1e-4, atol=1e-5)
    torch.tanh(inputs @ (parameter.T if transposed else parameter).T).square().sum().backward()
    assert parameter.grad is not None
    assert torch.allclose(weight.slope(parameter.grad, numbers).double(), wanted, rtol=1e-3, atol=1e-3)
    weight.put(None)
    assert torch.equal(weight.layer.weight, exact)


def test_levels_of_a_format_are_in_the_weight() -> None:
    torch.manual_seed(0)
    exact, inputs = torch.randn(6, 128), torch.randn(5, 128)
    quantized = nf4(parse_scheme("W4-nf4")).quantize(exact, None)
    assert quantized.levels is not None
    parameter = nn.Parameter(exact.clone())
    weight = weight_of(parameter, quantized, exact, transposed=False)
    weight.put(weight.start())
    torch.tanh(inputs @ parameter.T).square().sum().backward()
    assert parameter.grad is not None
    _, wanted = of_autograd(quantized, inputs, weight.start())
    assert torch.allclose(weight.slope(parameter.grad, weight.start()).double(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_model_it_is_that_of_a_model_whose_weights_are_made_of_scales(kind: str) -> None:
    """Modules that are called, GPT-2's turned ones, stacks of experts, and what torch's attention multiplies by."""
    known = zoo_model(kind)
    model, batch = known.make(), known.batches(1)[0]
    layers = find_linears([model])
    candidates = [
        LayerCandidate(name=layer.name, quantized=rich(layer.weight, bits=4, group_size=16, seed=number))
        for number, layer in enumerate(layers)
    ]
    free = free_parameters([model], layers, candidates, scales=True, codes=True, but=())
    numbers = free.start()[0] + 0.05 * torch.randn(free.size, generator=torch.Generator().manual_seed(1))
    free.put(numbers)
    with plain_products([model]), slopes([model], free, numbers) as gradient:
        answer = known.answer(model, batch)
        turned = torch.randn(answer.shape, generator=torch.Generator().manual_seed(2))
        found = gradient((answer * turned).sum()).clone()
    assert all(parameter.grad is None for parameter in model.parameters())

    leaf = numbers.clone().requires_grad_()
    names = {parameter: name for name, parameter in model.named_parameters()}
    weights: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for part in free.weights.values():
        own = leaf[part.place]
        moved = part.quantized.scale * own[: part.n_scales].view(part.quantized.scale.shape).exp()
        latent = own[part.n_scales :].view(part.quantized.codes.shape)
        rounded = latent + (part.at(numbers).codes - latent).detach()
        matrix = together(part.quantized, moved.double(), rounded).float()
        matrix = matrix.t() if part.layer.transposed else matrix
        name = names[part.layer.parameter]
        if part.layer.expert is None:
            weights[name] = matrix
        else:
            stacks.setdefault(name, {})[part.layer.expert] = matrix
    weights |= {name: torch.stack([of[number] for number in sorted(of)]) for name, of in stacks.items()}
    weights |= {names[other.parameter]: other.at(leaf) for other in free.others}

    class Answer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return known.answer(self.model, batch)

    with plain_products([model]):
        made = {f"model.{name}": value for name, value in weights.items()}
        loss = (functional_call(Answer(), made, ()) * turned).sum()
    wanted = torch.autograd.grad(loss, leaf)[0]
    assert found.abs().max() > 0
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def test_other_parameters_are_those_of_one_dimension_outside_of_heads() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Embedding(3, 4), nn.Linear(4, 2))
    layers = find_linears([model])[:1]
    none = [LayerCandidate(name="0", quantized=None)]
    free = free_parameters([model], layers, none, scales=True, codes=True, but=["3"])
    assert free.weights == {}
    assert [other.parameter for other in free.others] == [model[0].bias, model[1].weight, model[1].bias]
    assert free.size == 4 + 4 + 4
