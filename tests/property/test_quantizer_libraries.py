"""Library backends on the libraries' own grids and inputs, and on a layer of a real model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quantdrift.engine.quantizers.awq import Awq
from quantdrift.engine.quantizers.gptq import BACKENDS, Gptq
from quantdrift.engine.quantizers.libraries import import_auto_gptq, import_gptqmodel
from support.quantizer_samples import SAME_OUTPUT, as_float64, difference, layer_of, linear, skip_without


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


@pytest.mark.parametrize(("in_features", "group_size"), [(256, 64), (192, 64)])
def test_awq_on_the_librarys_grid_is_the_library_fed_with_tokens(in_features: int, group_size: int) -> None:
    skip_without("autoawq")
    weight, inputs, moments = layer_of(in_features)
    method = Awq(bits=3, group_size=group_size, grid="library")
    quantized = method.quantize(weight, moments)
    library: Any = method._library(group_size)
    layer = linear(weight)
    # On a CPU the search restores the weights from what it has changed itself, unless it is a copy.
    layer.state_dict = lambda: {"weight": layer.weight.data.clone()}
    tokens = torch.tensor(inputs, dtype=torch.float32)
    _, _, scaling = library._search_best_scale(layer, layer, [layer], tokens)
    assert quantized.input_scaling is not None
    torch.testing.assert_close(quantized.input_scaling / quantized.input_scaling[0], scaling / scaling[0])
    found = library.pseudo_quantize_tensor(weight * scaling)[0] / scaling
    assert difference(quantized, as_float64(found), weight, moments) <= SAME_OUTPUT
