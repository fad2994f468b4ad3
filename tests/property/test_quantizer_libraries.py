"""Library backends on the libraries' own grids and inputs, and on a layer of a real model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quantdrift.engine.quantizers.awq import Awq
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import import_gptqmodel
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


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_on_the_librarys_grid_is_the_library_fed_with_tokens(act_order: bool) -> None:
    skip_without("gptqmodel")
    weight, inputs, moments = layer_of(256)
    quantized = Gptq(bits=4, group_size=128, act_order=act_order, grid="library").quantize(weight, moments)
    found = plain_gptqmodel(weight, torch.tensor(inputs, dtype=torch.float32), act_order)
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
