"""The baselines of bit allocation on one tiny model of every kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.layers import LinearLayer, find_linears
from quantdrift.engine.sensitivity import criteria as base
from quantdrift.engine.sensitivity.criteria import criterion, input_moments
from quantdrift.engine.sensitivity.problem import Batch as Rows
from quantdrift.engine.sensitivity.problem import GapProblem
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.progress import Silent
from support.model_zoo import ZOO, Batch, ZooModel, zoo_model

DATA_FREE = ("reconstruction", "sqnr", "depth", "random")
ON_INPUTS = ("activation_error", "activation_salience", "activation_norm")
every_model = pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads only stand in each other's way in models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def setting_of(entry: ZooModel, model: nn.Module, batches: list[Batch]) -> base.Setting:
    def run(batch: Batch) -> NDArray[np.float32]:
        return entry.run(model, batch).float().numpy()

    return base.Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=(2, 3, 4),
        group_size=16,
        seed=0,
        progress=Silent(),
        problem=GapProblem(
            batches=[
                Rows(rows=3 * number + np.arange(3), run=lambda batch=batch: run(batch))
                for number, batch in enumerate(batches)
            ],
            rows=np.zeros((1, 1, 1), np.int64),
            valid=np.ones((1, 1), np.bool_),
            gap=lambda outputs: outputs[..., 0, 0],
        ),
    )


def unreached(entry: ZooModel, layer: LinearLayer) -> bool:
    return bool(entry.unreached) and layer.name.endswith(entry.unreached)


@every_model
def test_every_criterion_scores_every_layer(entry: ZooModel) -> None:
    """Layers without a token lose nothing, where activations are looked at."""
    model = entry.make()
    setting = setting_of(entry, model, entry.batches(2))
    before = weights_fingerprint([model])
    n_tokens = [moments.n_tokens for moments in input_moments(setting)]
    for name in (*DATA_FREE, *ON_INPUTS):
        losses = criterion(name).losses(setting)
        assert losses.shape == (entry.n_layers, 3)
        assert np.isfinite(losses).all()
        assert not losses[:, 2].any()
        assert (np.diff(losses, axis=1) <= 0).all()
        for layer, tokens, at_two_bits in zip(setting.layers, n_tokens, losses[:, 0], strict=True):
            if name != "depth":
                assert (at_two_bits > 0) == (name in DATA_FREE or tokens > 0), (name, layer.name)
    if "experts" not in entry.unseen:  # a router may pass over an expert
        for layer, tokens in zip(setting.layers, n_tokens, strict=True):
            # a pooler may be called, though the answer does not depend on it
            assert tokens > 0 or unreached(entry, layer), layer.name
    assert weights_fingerprint([model]) == before


@every_model
def test_moments_are_those_of_the_tokens_that_modules_are_given(entry: ZooModel) -> None:
    """In float64, from hooks of our own on a model whose texts have no padding."""
    model = entry.make()
    (batch,) = entry.batches(1)
    batch = {key: value[1:] for key, value in batch.items()}
    setting = setting_of(entry, model, [batch])
    moments = input_moments(setting)
    seen: dict[int, list[Tensor]] = {}
    for number, layer in enumerate(setting.layers):
        for module in layer.modules:
            module.register_forward_pre_hook(
                lambda _, args, number=number: seen.setdefault(number, []).append(args[0].detach())
            )
    torch.backends.mha.set_fastpath_enabled(False)
    entry.run(model, batch)
    torch.backends.mha.set_fastpath_enabled(True)
    assert seen
    for number, inputs in seen.items():
        tokens = torch.cat([x.reshape(-1, x.shape[-1]) for x in inputs]).double()
        assert moments[number].n_tokens == len(tokens)
        found = moments[number].mean_square.double(), moments[number].mean_abs.double()
        torch.testing.assert_close(found[0], tokens.square().mean(0), rtol=1e-5, atol=1e-12)
        torch.testing.assert_close(found[1], tokens.abs().mean(0), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "modernbert", "t5", "qwen3", "gpt2"])
def test_what_padding_holds_does_not_count(name: str) -> None:
    """The first text has two tokens of padding; other ones there change no token before them."""
    entry = zoo_model(name)
    model = entry.make()
    (batch,) = entry.batches(1)
    other = {key: value.clone() for key, value in batch.items()}
    other["input_ids"][0, -2:] = 9
    before, after = (input_moments(setting_of(entry, model, [each])) for each in (batch, other))
    for one, two in zip(before, after, strict=True):
        assert one.n_tokens == two.n_tokens
        torch.testing.assert_close(one.mean_square, two.mean_square, rtol=1e-5, atol=1e-7)
    n_tokens = int(batch["attention_mask"].sum())
    assert max(moments.n_tokens for moments in before) == n_tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_gives_nearly_the_same(dtype: torch.dtype) -> None:
    entry = zoo_model("bert")
    batches = entry.batches(2)
    for name in (*DATA_FREE, *ON_INPUTS):
        full, half = (
            criterion(name).losses(setting_of(entry, entry.make(dtype=each), batches))
            for each in (torch.float32, dtype)
        )
        np.testing.assert_allclose(half, full, rtol=0.1)


def test_experts_count_their_own_tokens() -> None:
    """Each of 21 tokens, padding included, goes to two of eight experts in each of two blocks."""
    entry = zoo_model("qwen3-moe")
    setting = setting_of(entry, entry.make(), entry.batches(1))
    moments = input_moments(setting)
    for part in ("gate_up_proj", "down_proj"):
        of_experts = [
            found.n_tokens
            for layer, found in zip(setting.layers, moments, strict=True)
            if f"experts.{part}" in layer.name
        ]
        assert len(of_experts) == 2 * 8
        assert sum(of_experts) == 2 * 21 * 2


def test_a_projection_that_is_multiplied_part_by_part_counts_all_its_tokens() -> None:
    """SigLIP's pooling: the query is one learnt token, keys and values are four patches."""
    entry = zoo_model("siglip")
    setting = setting_of(entry, entry.make(), entry.batches(2))
    (found,) = [
        moments.n_tokens
        for layer, moments in zip(setting.layers, input_moments(setting), strict=True)
        if layer.name == "head.attention.in_proj_weight"
    ]
    assert found == 6 * (1 + 4)
