"""`+backend=optimum` on tiny models: what optimum itself would make, what it cannot walk, and nothing left behind."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optimum.gptq", reason="optimum is not installed")
pytest.importorskip("gptqmodel", reason="gptqmodel is not installed")

import torch
import transformers as hf
from torch import Tensor, nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.engine.calibration.in_order import LayerCandidate
from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.layers import find_linears
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers import optimum
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import import_gptqmodel
from quantdrift.engine.weights import weights_fingerprint
from support.model_zoo import ZooModel, zoo_model
from support.model_zoo_parts import decoder

BERT, LLAMA, GPT2 = zoo_model("bert"), zoo_model("llama"), zoo_model("gpt2")
WIDE = replace(
    LLAMA,
    name="wide llama",  # down_proj has 272 inputs: two groups of 128 and one of 16
    build=lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**decoder() | {"intermediate_size": 272})),
)
OPTIMUM = "+backend=optimum+grid=library"
N_BATCHES = 6


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    import_gptqmodel()
    yield
    torch.set_num_threads(before)


def batches(entry: ZooModel, model: nn.Module) -> list[Callable[[], object]]:
    return [lambda batch=batch: entry.run(model, batch) for batch in entry.batches(N_BATCHES)]


def prepared(entry: ZooModel, model: nn.Module, scheme: str, root: Path | None = None) -> QuantizedPair:
    pair = QuantizedPair([model], scheme)
    sample = Sample(batches=batches(entry, model), key={"texts": "zoo"}, record={})
    pair.prepare(sample, root=root, progress=Silent())
    return pair


def make(entry: ZooModel, model: nn.Module, scheme: str, root: Path | None = None) -> list[LayerCandidate]:
    return list(prepared(entry, model, scheme, root).candidate_layers())


def stock(entry: ZooModel, model: nn.Module, blocks: str, **settings: Any) -> dict[str, Tensor]:
    """The weights that optimum's own class leaves before it packs them; the model is used up."""
    from optimum.gptq import GPTQQuantizer  # noqa: PLC0415 -- after its quiet import

    texts = optimum._texts_of(model, batches(entry, model))
    quantizer = GPTQQuantizer(
        dataset=texts, damp_percent=0.01, act_group_aware=False, block_name_to_quantize=blocks, **settings
    )
    quantizer.pack_model = lambda **_: None
    quantizer.post_init_model = lambda model: model
    quantizer.quantize_model(model)
    return {layer.name: layer.weight for layer in find_linears([model])}


@pytest.mark.parametrize(
    ("entry", "dtype", "blocks", "scheme", "settings"),
    [
        (BERT, torch.float32, "encoder.layer", "W4-channel-gptq", {"bits": 4, "group_size": -1}),
        (GPT2, torch.bfloat16, "transformer.h", "W2-channel-gptq", {"bits": 2, "group_size": -1}),
        (WIDE, torch.float32, "model.layers", "W3-gptq", {"bits": 3, "group_size": 128}),
        (LLAMA, torch.bfloat16, "model.layers", "W4-g128-gptq_ao", {"bits": 4, "group_size": 128, "desc_act": True}),
    ],
    ids=["bert", "gpt2", "wide llama", "llama"],
)
def test_the_codes_stand_for_what_optimum_itself_leaves_in_the_layers(
    entry: ZooModel, dtype: torch.dtype, blocks: str, scheme: str, settings: dict[str, Any]
) -> None:
    """Where groups fit its blocks of 128 columns, and no input is always zero. Optimum goes from block to block."""
    made = make(entry, entry.make(dtype=dtype), scheme + OPTIMUM)
    wanted = stock(entry, entry.make(dtype=dtype), blocks, **settings)
    by_optimum = [layer for layer in made if layer.fallback is None]
    assert len(by_optimum) == entry.n_layers - (entry is not GPT2)  # the pooler, or the head
    for layer in by_optimum:
        assert layer.quantized is not None
        torch.testing.assert_close(layer.quantized.dequantize(dtype), wanted[layer.name], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        ("gpt-oss", "got GptOss"),  # every other block sees a window of tokens
        ("vit", "got ViT"),
        ("torch-encoder", "got none"),
    ],
)
def test_models_that_optimum_would_run_differently_are_refused(kind: str, fact: str) -> None:
    entry = zoo_model(kind)
    model = entry.make()
    before, attributes = weights_fingerprint([model]), state(model)
    with pytest.raises(UnsupportedError, match=rf"{fact}.*; use \+backend=gptqmodel"):
        make(entry, model, f"W4-gptq{OPTIMUM}")
    assert weights_fingerprint([model]) == before
    assert state(model) == attributes


def test_what_optimum_would_drop_is_refused() -> None:
    ids = torch.tensor([[2, 5, 6, 3]])
    for more in ({"token_type_ids": torch.ones_like(ids)}, {"position_ids": ids}):
        with pytest.raises(UnsupportedError, match=rf"drops the rest \({next(iter(more))}\); use"):
            list(optimum._taken_apart(input_ids=ids, use_cache=False, **more))


def state(model: nn.Module) -> list[dict[str, Any]]:
    """Of every module its attributes, with what is in its dictionaries; and the configuration."""
    plain = [{k: dict(v) if isinstance(v, dict) else v for k, v in vars(m).items()} for m in model.modules()]
    return [*plain, dict(vars(getattr(model, "config", nn.Module())))]


def test_an_interrupted_walk_leaves_the_model_as_it_was_and_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, scheme = BERT.make().train(), f"W4-gptq{OPTIMUM}"
    before, attributes = weights_fingerprint([model]), state(model)
    quantize, seen = Gptq.quantize, []

    def interrupted(self: Gptq, weight: Tensor, moments: Any) -> Any:
        if len(seen) == 8:
            raise KeyboardInterrupt
        seen.append(weight.shape)
        return quantize(self, weight, moments)

    with monkeypatch.context() as patch:
        patch.setattr(Gptq, "quantize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(BERT, model, scheme, tmp_path)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 8
    again, kept = (prepared(BERT, model, scheme, tmp_path) for _ in range(2))
    assert [pair.describe()["layers_kept_from_before"] for pair in (again, kept)] == [0, 13]
    for one, other in zip(kept.candidate_layers(), make(BERT, BERT.make(), scheme), strict=True):
        assert one.quantized and other.quantized  # noqa: PT018 -- one finding
        assert torch.equal(one.quantized.codes, other.quantized.codes)
    assert weights_fingerprint([model]) == before
    assert state(model) == attributes
