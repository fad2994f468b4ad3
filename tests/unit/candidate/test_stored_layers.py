"""How checkpoints store linear layers, by files of a few numbers."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.candidate.checkpoint import completed
from quantdrift.models.files.checkpoint import Checkpoint
from quantdrift.models.files.tensors import StoredTensor
from quantdrift.models.stored import stored_layers


def checkpoint(method: str) -> Checkpoint:
    here = Path("here")
    quantization: dict[str, Any] = {} if method == "none" else {"quant_method": method, "bits": 4}
    return Checkpoint(
        name="x", canonical="x", kind="local", folder=here, body=here, method=method, quantization=quantization
    )


class Body(nn.Module):
    """Two blocks of a layer of 8 x 16, an embedding of 10 x 16, and a pooler."""

    base_model_prefix = "bert"

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.layers = nn.ModuleList(nn.ModuleDict({"q": nn.Linear(16, 8)}) for _ in range(2))
        self.pooler = nn.Linear(16, 16, bias=False)


def tensor(dtype: str, *shape: int) -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=shape)


def gptq_like(prefix: str = "") -> dict[str, StoredTensor]:
    """4-bit codes of 128 weights: 64 bytes, with 16 bytes of scales and 8 of zero points."""
    layer = {"qweight": tensor("I32", 2, 8), "scales": tensor("F16", 1, 8), "qzeros": tensor("I32", 1, 2)}
    layer["bias"] = tensor("F32", 8)
    packed = {f"{prefix}layers.{n}.q.{part}": stored for n in range(2) for part, stored in layer.items()}
    plain = {f"{prefix}embed.weight": tensor("F32", 10, 16), f"{prefix}pooler.weight": tensor("F32", 16, 16)}
    return {**plain, **packed, "lm_head.weight": tensor("F32", 10, 16)}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_bits_are_counted_in_what_is_stored(prefix: str) -> None:
    layers = stored_layers(gptq_like(prefix), Body())
    assert layers.packed == ("layers.0.q", "layers.1.q")
    assert layers.plain == ("pooler",)
    assert layers.missing == ()
    assert layers.bits.linear == 4  # 64 bytes for 128 weights
    assert layers.bits.linear_with_scales == 5.5  # 88 bytes
    assert layers.bits.n_quantized == 256
    n_parameters = 160 + 2 * (128 + 8) + 256
    assert layers.bits.n_parameters == n_parameters
    stored = 640 + 2 * (64 + 16 + 8 + 32) + 1024  # the head is not part of the model
    assert layers.bits.all_parameters == 8 * stored / n_parameters


def test_an_unquantized_checkpoint_has_the_width_of_its_weights() -> None:
    body = Body()
    tensors = {name: tensor("BF16", *p.shape) for name, p in body.named_parameters()}
    layers = stored_layers(tensors, body, others=[nn.Linear(16, 4, bias=False)])
    assert layers.packed == ()
    assert (layers.bits.linear, layers.bits.linear_with_scales, layers.bits.n_quantized) == (16, 16, 0)
    n = layers.bits.n_parameters
    assert (n, layers.bits.all_parameters) == (688 + 64, (688 * 16 + 64 * 32) / n)
    del tensors["layers.1.q.weight"], tensors["layers.1.q.bias"]
    assert stored_layers(tensors, body).missing == ("layers.1.q",)


def test_config_and_files_that_contradict_each_other_are_refused() -> None:
    packed = stored_layers(gptq_like(), Body())
    body = Body()
    floats = {name: tensor("F32", *p.shape) for name, p in body.named_parameters()}
    plain = stored_layers(floats, body)
    with pytest.raises(UnsupportedError, match="no quantization_config"):
        completed(checkpoint("none"), packed)
    with pytest.raises(UnsupportedError, match=r"quantization_config \(gptq\)"):
        completed(checkpoint("gptq"), plain)
    tensors = {**gptq_like(), "pooler.qweight": tensor("I32", 2, 16)}
    del tensors["pooler.weight"]
    with pytest.raises(UnsupportedError, match="list of blocks"):
        completed(checkpoint("gptq"), stored_layers(tensors, body))


@pytest.mark.parametrize(
    ("name", "codes", "refused"),
    [
        ("embed.weight", {"embed.weight": tensor("I8", 10, 16)}, True),  # codes alone
        ("embed.weight", {"embed.weight": tensor("I8", 10, 16), "embed.weight_scale": tensor("F32", 10, 1)}, False),
        ("layers.0.q.bias", {"layers.0.q.bias": tensor("I32", 8)}, True),  # with the layer's scales beside it
        ("pooler.weight", {"pooler.weight": tensor("F8_E4M3", 16, 16)}, True),
        ("pooler.weight", {"pooler.weight": tensor("U8", 128, 1), "pooler.weight.absmax": tensor("F32", 4)}, False),
    ],
)
def test_a_weight_is_floating_point_or_has_its_scale(name: str, codes: dict[str, StoredTensor], refused: bool) -> None:
    for prefix in ("", "bert."):
        stored = {**gptq_like(prefix), **{f"{prefix}{part}": held for part, held in codes.items()}}
        if not refused:
            stored_layers(stored, Body())
            continue
        with pytest.raises(UnsupportedError, match=f"{name} is stored as "):
            stored_layers(stored, Body())
