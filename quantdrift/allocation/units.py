"""Layers that share one width, and layers that an allocation leaves out, told by their names."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.scheme import FULL_BITS, MAX_BITS, MIN_BITS, POSSIBLE_BITS

FUSED: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("query_proj", "key_proj", "value_proj"),
    ("to_q", "to_k", "to_v"),
    ("q_lin", "k_lin", "v_lin"),
    ("wq", "wk", "wv"),
    ("q_proj_weight", "k_proj_weight", "v_proj_weight"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""Last parts of the names of layers with the same input, which runtimes fuse."""
_FIRST = {part: parts[0] for parts in FUSED for part in parts}
_EXPERT_OF_LIST = re.compile(r"(?P<stack>(?:.*\.)?experts)\.(?:expert_)?[0-9]+(?:\..+)?")
"""Experts as a module each: mlp.experts.3.gate_proj."""
_EXPERT_OF_STACK = re.compile(
    r"(?P<stack>.+?)(?:\.(?:gate_up_proj|up_proj|down_proj)|(?:\.(?:input|output)_linear)?\.weight)\.[0-9]+"
)
"""Experts in one parameter, whose parts `find_linears` names mlp.experts.down_proj.3; or in two modules with a stack
each."""


def runtime_units(names: Sequence[str]) -> NDArray[np.int64]:
    """Number the layers, with the same number for layers that runtimes fuse.

    vLLM and SGLang fuse query, key and value, and gate and up, which need one scheme in a file for them. All experts
    of a mixture, with all their matrices, also need one scheme, as one kernel computes them. The shared expert of a
    mixture is an ordinary layer.
    """
    numbers: dict[tuple[str, str], int] = {}
    return np.array([numbers.setdefault(_unit(name), len(numbers)) for name in names], dtype=np.int64)


def _unit(name: str) -> tuple[str, str]:
    if expert := _EXPERT_OF_LIST.fullmatch(name) or _EXPERT_OF_STACK.fullmatch(name):
        return expert["stack"], "experts"
    parent, _, last = name.rpartition(".")
    return parent, _FIRST.get(last, last)


def excluded(names: Sequence[str], patterns: Mapping[str, int], *, units: NDArray[np.int64]) -> dict[str, int]:
    """The layers that an allocation leaves out, and the widths that they keep; the last matching pattern decides."""
    kept: dict[str, int] = {}
    for pattern, width in patterns.items():
        if width not in POSSIBLE_BITS:
            raise UnsupportedError(
                f"layers {pattern} cannot be kept at {width} bits: expected {MIN_BITS} to {MAX_BITS}, or {FULL_BITS} "
                "for layers that are not quantized"
            )
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            hint = "(the pattern matches no layer's whole name; * stands for any characters)"
            raise UnknownNameError("layer", pattern, names, hint=hint)
        kept |= dict.fromkeys(matched, width)
    first: dict[int, str] = {}
    for name, unit in zip(names, units.tolist(), strict=True):
        other = first.setdefault(unit, name)
        if kept.get(other) != kept.get(name):
            raise UnsupportedError(f"{other} and {name} are tied to one width; keep both at one, or do not tie layers")
    return kept
