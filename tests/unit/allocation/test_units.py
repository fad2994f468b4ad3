"""Layers that share a width because a runtime fuses them, and layers that are left out."""

import numpy as np
import pytest

from quantdrift.allocation.units import excluded, runtime_units
from quantdrift.base.errors import QuantDriftError, UnknownNameError, UnsupportedError


@pytest.mark.parametrize(
    ("names", "units"),
    [
        (["a.q_proj", "a.k_proj", "a.v_proj", "a.o_proj", "b.q_proj"], [0, 0, 0, 1, 2]),
        (["m.gate_proj", "m.down_proj", "m.up_proj"], [0, 1, 0]),
        (["x.w1", "x.w2", "x.w3", "to_q", "q"], [0, 1, 0, 2, 3]),
        # all of a mixture is one kernel's; the shared expert and the router are not in it
        (["e.experts.gate_up_proj.0", "e.experts.down_proj.1", "f.experts.down_proj.0"], [0, 0, 1]),
        (["e.experts.0.w1", "e.experts.12.w2", "e.shared_expert.up_proj", "e.gate"], [0, 0, 1, 2]),
        # numbers at the end do not make experts of layers in a list
        (["head.0", "head.2", "mlp.fc1.0", "mlp.fc1.1"], [0, 1, 2, 3]),
    ],
)
def test_layers_that_runtimes_fuse_are_units(names: list[str], units: list[int]) -> None:
    numbers = runtime_units(names)
    assert (numbers.dtype, numbers.tolist()) == (np.int64, units)


NAMES = [f"layer.{i}.{part}" for i in range(2) for part in ("attn.query", "attn.key", "dense")]


def test_layers_are_left_out_by_pattern_and_the_last_one_decides() -> None:
    units = runtime_units(NAMES)
    assert excluded(NAMES, {}, units=units) == {}
    assert excluded(NAMES, {"*.dense": 8, "layer.0.*": 16}, units=units) == {
        "layer.0.attn.query": 16,
        "layer.0.attn.key": 16,
        "layer.0.dense": 16,
        "layer.1.dense": 8,
    }


@pytest.mark.parametrize(
    ("patterns", "error", "says"),
    [
        ({"layer.0.denze": 8}, UnknownNameError, "layer.0.dense"),
        ({"layer.0": 8}, UnknownNameError, "no layer's whole name"),
        ({"*.dense": 9}, UnsupportedError, "at 9 bits: expected 2 to 8, or 16"),
        ({"*.query": 8}, UnsupportedError, "query and layer.0.attn.key are tied"),
    ],
)
def test_impossible_patterns_are_refused(patterns: dict[str, int], error: type[QuantDriftError], says: str) -> None:
    with pytest.raises(error, match=says):
        excluded(NAMES, patterns, units=runtime_units(NAMES))
