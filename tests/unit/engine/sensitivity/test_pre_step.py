"""Widths of a model in which it is known by construction what matters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.allocation.record import Allocation
from quantdrift.engine.layers import find_linears
from quantdrift.engine.sensitivity.allocate import CalibrationInputs, MeasuredModel, allocate, setting_of
from quantdrift.engine.sensitivity.problem import Batch, GapProblem
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import UnknownNameError, UnsupportedError
from quantdrift.progress import Silent
from quantdrift.spec import parse_scheme

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
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))

        def run() -> NDArray[np.float32]:
            with torch.inference_mode():
                return self.model(x).numpy()

        self.inputs = CalibrationInputs(
            problem=GapProblem(
                batches=[Batch(rows=np.arange(3), run=run)],
                rows=np.arange(3)[:, None, None],
                valid=np.ones((3, 1), dtype=np.bool_),
                gap=lambda outputs: outputs[:, :, 0, 0] - outputs[:, :, 0, 1],
            ),
            ids=["x", "y", "z"],
            dataset="toy",
            key={"texts": "xyz"},
        )
        self.measured = MeasuredModel(
            name="tiny",
            modules=[self.model],
            layers=find_linears([self.model]),
            fingerprint=weights_fingerprint([self.model]),
            runtime={"torch": "2"},
        )

    def allocate(self, scheme: str, *, inputs: Any = "", root: Path | None = None, **keep: int) -> Allocation:
        parsed = parse_scheme(scheme)
        given = self.inputs if inputs == "" else inputs
        setting = setting_of(self.measured, parsed, given, root=root, progress=Silent())
        patterns = {f"*.{name}": width for name, width in keep.items()}
        return allocate(self.measured, parsed, given, setting, keep=patterns)

    def widths(self, scheme: str, **keep: int) -> list[int]:
        return list(self.allocate(scheme, **keep).width_of.values())


@pytest.mark.parametrize("criterion", ["gap", "gap_exact"])
def test_the_wide_width_goes_where_rounding_moves_the_gap(criterion: str) -> None:
    world = World(k_proj=1.0)
    assert world.widths(f"W3.25-g4+{criterion}") == [3, 4, 3, 3]
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
    with pytest.raises(UnknownNameError, match="matches no layer"):
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
    assert (found.model, found.fingerprint) == ("tiny", world.measured.fingerprint)
    assert (found.criterion, found.quantizer, found.method) == ("gap", "adaround", "greedy")
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
    with pytest.raises(UnsupportedError, match=r"there are none; use one that needs none"):
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

    first = passes("W3.25-g4+gap")
    assert first > 0
    for same in ("W3.25-g4-adaround+gap", "W3.75-g4+gap", "W3.5-g4+gap+units=fused"):
        assert passes(same) == 0
    assert passes("W3.25-g4+gap", k_proj=16) == 0
    for other in ("W3.25-g2+gap", "W3.25-g4+gap+widths=2,4", "W3.25-g4+gap_exact"):
        assert passes(other) > 0
        assert passes(other) == 0
    assert passes("W3.25-g4+gap", inputs=replace(world.inputs, key={"texts": "other"})) > 0
    assert passes("W3.25-g4+gap", inputs=replace(world.inputs, key=None)) > 0
    assert passes("W3.25-g4+gap", inputs=replace(world.inputs, key=None)) > 0  # nothing is kept
    world.measured = replace(world.measured, fingerprint="other")
    assert passes("W3.25-g4+gap") > 0
