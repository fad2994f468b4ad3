"""Widths of models in which it is known by construction what matters, on searches and on classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift import perturbation
from quantdrift.allocation.record import Allocation
from quantdrift.engine.inputs import Settings
from quantdrift.engine.measure import Measured, measure
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.readings import Classes, Head
from quantdrift.engine.sensitivity.allocate import Calibration, allocate
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import DataError, UnknownNameError, UnsupportedError
from quantdrift.probe import LinearProbe
from quantdrift.progress import Silent
from quantdrift.spec import parse_scheme
from support.sensitivity import drawn, setting_of
from support.worlds import Rower, rows_of

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


class Branches(nn.Module):
    """Four layers beside each other; what they give is added up, each in its own measure."""

    def __init__(self, **strengths: float) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in NAMES})
        weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
        for layer in self.parts.values():
            layer.weight.data = weight.clone()
        self.strengths = {name: strengths.get(name, 0.0) for name in NAMES}
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return sum(layer(x) * self.strengths[n] for n, layer in self.parts.items())  # type: ignore[return-value]  # there are some


class World:
    def __init__(self, **strengths: float) -> None:
        self.model = Branches(**strengths)
        problem = setting_of(self.model, torch.randn(3, 4, generator=torch.Generator().manual_seed(1))).problem
        assert problem is not None
        self.inputs = Calibration(problem=problem, ids=["x", "y", "z"], dataset="toy", key={"texts": "xyz"})

    def allocate(self, scheme: str, *, inputs: Any = "", root: Path | None = None, **keep: int) -> Allocation:
        given = self.inputs if inputs == "" else inputs
        patterns = {f"*.{name}": width for name, width in keep.items()}
        pair = QuantizedPair([self.model], parse_scheme(scheme), name="tiny")
        return allocate(pair, given, root=root, progress=Silent(), keep=patterns)[0]

    def widths(self, scheme: str, **keep: int) -> list[int]:
        return list(self.allocate(scheme, **keep).width_of.values())


@pytest.mark.parametrize("criterion", ["gap", "gap_exact"])
def test_the_wide_width_goes_where_rounding_moves_the_gap(criterion: str) -> None:
    assert World(k_proj=1.0).widths(f"W3.25-g4+{criterion}") == [3, 4, 3, 3]
    assert World(v_proj=1.0, o_proj=2.0).widths(f"W3.25-g4+{criterion}") == [3, 3, 3, 4]
    assert World(v_proj=1.0, o_proj=2.0).widths(f"W3.5-g4+{criterion}") == [3, 3, 4, 4]


def test_losses_grow_with_the_square_of_what_a_layer_does() -> None:
    found = World(q_proj=1.0, k_proj=2.0, v_proj=-3.0).allocate("W3.5-g4+gap+widths=2,3,4,8")
    losses = np.array([layer.loss for layer in found.layers])
    np.testing.assert_allclose(losses[1], 4 * losses[0], rtol=1e-4)
    np.testing.assert_allclose(losses[2], 9 * losses[0], rtol=1e-4)
    assert losses[3].tolist() == [0, 0, 0, 0]
    assert (np.diff(losses, axis=1) <= 0).all()
    assert (losses[:, -1] == 0).all()


def test_layers_that_are_kept_take_no_part_in_the_budget() -> None:
    """k_proj would get the bits; among the others it is o_proj."""
    world = World(k_proj=9.0, o_proj=1.0)
    found = world.allocate("W3.34-g4+gap", k_proj=16)
    assert found.width_of == {"parts.q_proj": 3, "parts.k_proj": 16, "parts.v_proj": 3, "parts.o_proj": 4}
    assert found.layers[1].loss is None
    assert found.bits_per_weight == pytest.approx(10 / 3)
    assert found.linear_bits == (3 + 16 + 3 + 4) / 4
    assert world.widths("W3.34-g4+gap", k_proj=7) == [3, 7, 3, 4]
    with pytest.raises(UnsupportedError, match="all 4 layers are kept"):
        world.allocate("W3.5-g4+gap", **dict.fromkeys(NAMES, 8))
    with pytest.raises(UnknownNameError):
        world.allocate("W3.5-g4+gap", qproj=8)


def test_layers_that_runtimes_fuse_share_a_width_when_asked_to() -> None:
    world = World(k_proj=3.0, o_proj=1.0)
    assert world.widths("W3.5-g4+gap") == [3, 4, 3, 4]
    found = world.allocate("W3.75-g4+gap+units=fused")
    assert list(found.width_of.values()) == [4, 4, 4, 3]
    assert [layer.unit for layer in found.layers] == [0, 0, 0, 1]
    assert world.widths("W3.5-g4+gap+units=fused") == [3, 3, 3, 4]  # three do not fit
    with pytest.raises(UnsupportedError, match="tied to one width"):
        world.allocate("W3.5-g4+gap+units=fused", k_proj=8)


def test_the_record_says_how_it_came_about() -> None:
    world = World(k_proj=1.0)
    found = world.allocate("W3.25-g4-adaround+gap+seed=3+solver=greedy")
    assert (found.model, found.criterion, found.quantizer, found.method) == ("tiny", "gap", "adaround", "greedy")
    assert (found.seed, found.dataset, found.input_ids) == (3, "toy", ("x", "y", "z"))
    assert (found.widths, found.budget, found.group_size) == ((3, 4), 3.25, 4)
    assert found.data_digest == world.allocate("W3.25-g4+gap").data_digest
    other = replace(world.inputs, key={"texts": "other"})
    assert found.data_digest != world.allocate("W3.25-g4+gap", inputs=other).data_digest


def test_zero_points_are_counted_where_the_quantizer_has_them() -> None:
    """16 weights in 4 groups of 4: 64 bits of scales, and as many of zero points."""
    pytest.importorskip("hqq")
    world = World(k_proj=1.0)
    plain, shifted = (world.allocate(f"W3.25-g4-{name}+gap") for name in ("rtn", "hqq"))
    assert plain.all_parameters_bits == pytest.approx(3.25 + 16 / 4)
    assert shifted.all_parameters_bits == pytest.approx(3.25 + 32 / 4)


def test_a_criterion_that_measures_needs_something_to_measure_on() -> None:
    world = World(k_proj=1.0)
    with pytest.raises(UnsupportedError, match="there are none"):
        world.allocate("W3.25-g4+gap", inputs=None)
    found = world.allocate("W3.25-g4+random", inputs=None)
    assert (found.input_ids, found.dataset, found.data_digest) == ((), None, None)
    assert world.model.passes == 0


def test_measurements_are_shared_by_quantizers_and_by_nothing_else(tmp_path: Path) -> None:
    world = World(k_proj=1.0)

    def passes(scheme: str, **options: Any) -> int:
        before = world.model.passes
        world.allocate(scheme, root=tmp_path, **options)
        return world.model.passes - before

    assert passes("W3.25-g4+gap") > 0
    for same in ("W3.25-g4-adaround+gap", "W3.75-g4+gap", "W3.5-g4+gap+units=fused"):
        assert passes(same) == 0
    assert passes("W3.25-g4+gap", k_proj=16) == 0
    for other in ("W3.25-g2+gap", "W3.25-g4+gap+widths=2,4", "W3.25-g4+gap_exact"):
        assert passes(other) > 0
        assert passes(other) == 0
    assert passes("W3.25-g4+gap", inputs=replace(world.inputs, key={"texts": "other"})) > 0
    for _ in range(2):  # nothing is kept
        assert passes("W3.25-g4+gap", inputs=replace(world.inputs, key=None)) > 0
    world.model.parts["q_proj"].weight.data *= 2
    assert passes("W3.25-g4+gap") > 0


# --- classes -------------------------------------------------------------------------------------

CLASSES = ("red", "green", "blue")


def test_a_probe_reads_tensors_as_it_reads_arrays() -> None:
    rng = np.random.default_rng(0)
    probe = LinearProbe(classes=CLASSES, weight=rng.normal(size=(3, 5)), bias=rng.normal(size=3))
    outputs = rng.normal(size=(7, 5)).astype(np.float32)
    head = Head(classes=CLASSES, linear=probe, record={})
    np.testing.assert_allclose(head.graph(torch.from_numpy(outputs)).numpy(), head.logits(outputs), atol=1e-5)


class TwoBranches(nn.Module):
    """Logits are the sum of two layers, of which one hardly counts."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.quiet = (nn.Linear(16, len(CLASSES), bias=False) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        loud: Tensor = self.loud(inputs)
        return loud + 1e-3 * self.quiet(inputs)


def measured(scheme: str, *, train: bool = True) -> tuple[QuantizedPair, Measured]:
    module, generator = drawn(TwoBranches()), torch.Generator().manual_seed(2)
    data = {part: torch.randn(n, 16, generator=generator) for part, n in (("test", 30), ("train", 40))}

    def run(part: str, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        batches = torch.from_numpy(rows).split(batch_size)
        with torch.inference_mode():
            return np.concatenate([module(data[part][batch]).numpy() for batch in batches])

    pair = QuantizedPair([module], parse_scheme(scheme), encoder=Rower(run))
    reading = Classes(
        inputs=rows_of("test", 30, prefix="", digest={}),  # ids are the same in both parts
        head=Head(classes=CLASSES, record={"reading": "logits"}),
        train=rows_of("train", 40, prefix="", digest={}) if train else None,
        dataset="colours",
    )
    settings = Settings(batch_size=8)
    return pair, measure(pair, reading, settings=settings, store=EmbeddingStore(None), progress=Silent())


@pytest.mark.parametrize("criterion", ["gap", "gap_exact"])
def test_the_layer_that_moves_the_gaps_between_classes_gets_the_bits(criterion: str) -> None:
    pair, found = measured(f"W2.5+{criterion}")
    allocation = pair.allocation
    assert allocation is not None
    assert allocation.width_of == {"loud": 3, "quiet": 2}
    assert found.left_out == 0  # it was measured on training inputs
    assert all(name.startswith("train part: ") for name in allocation.input_ids)
    epsilons = [np.median(perturbation.epsilon(one.evidence)) for one in (found, measured("W2")[1])]
    assert epsilons[0] < epsilons[1]


def test_evaluated_inputs_are_not_measured_on() -> None:
    with pytest.raises(DataError, match="never on those that are evaluated"):
        measured("W2.5+gap", train=False)
    assert measured("W2.5+sqnr", train=False)[0].allocation is not None  # looks at none
