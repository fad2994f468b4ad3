"""Depth: the first and the last blocks matter most (paper, "Allocation criteria")."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.by_width import fading_losses

__all__ = ["CRITERION", "Depth", "distances_from_the_middle"]

_Path = tuple[str, ...]


class Depth:
    """Distance from the middle of the stack, s_l = |d_l - mean d| / ((max d - min d) / 2).

    The common practice of keeping the first and last layers wide; looks at no weight.
    """

    name = "depth"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The distance, a fourth of it for each bit."""
        names = [layer.name for layer in setting.layers]
        scores = distances_from_the_middle(names, n_modules=len(setting.modules))
        return fading_losses(scores, setting.widths)


def distances_from_the_middle(names: Sequence[str], *, n_modules: int = 1) -> list[float]:
    """How far each layer is from the middle of its stack of blocks.

    A stack is the outermost list of numbered modules on a layer's path that repeats itself: most of
    its layers are in blocks that have a layer's name in common with another. Two towers are two
    stacks. d is the number of the block, and the middle lies halfway between the first and the last
    block, which is the mean of a stack without holes. What stands before or behind the blocks
    (embedding projections, pooler, head) is as far as the end it stands at. A model without blocks
    is one stack of layers in the order of definition.

    Args:
        names: of the layers, as `find_linears` gives them, in order of definition.
        n_modules: of the model; with more than one, names start with a module's number.

    Returns:
        Of each layer, from 0 in the middle to 1 at both ends.

    >>> distances_from_the_middle([f"blocks.{block}.fc" for block in range(5)] + ["head"])
    [1.0, 0.5, 0.0, 0.5, 1.0, 1.0]
    """
    paths = [tuple(name.split(".")) for name in names]
    places = _block_numbers(paths, n_leading=int(n_modules > 1))
    if not any(places):
        return _distances(range(len(names)))
    found = [1.0] * len(names)
    for stack in {place[0] for place in places if place}:
        inside = [
            (layer, place[1]) for layer, place in enumerate(places) if place and place[0] == stack
        ]
        distances = _distances([block for _, block in inside])
        for (layer, _), distance in zip(inside, distances, strict=True):
            found[layer] = distance
    return found


def _block_numbers(paths: Sequence[_Path], n_leading: int) -> list[tuple[_Path, int] | None]:
    """Stack and block of each layer; None outside."""
    lists: dict[_Path, dict[str, set[_Path]]] = defaultdict(lambda: defaultdict(set))
    for path in paths:
        for at in _numbers(path, n_leading):
            lists[path[:at]][path[at]].add(path[at + 1 :])
    stacks = {path for path, blocks in lists.items() if _repeats(blocks)}
    outermost = [
        next((at for at in _numbers(path, n_leading) if path[:at] in stacks), None)
        for path in paths
    ]
    return [
        None if at is None else (path[:at], int(path[at]))
        for path, at in zip(paths, outermost, strict=True)
    ]


def _numbers(path: _Path, n_leading: int) -> Iterable[int]:
    return (at for at in range(n_leading, len(path)) if path[at].isdecimal())


def _repeats(blocks: Mapping[str, set[_Path]]) -> bool:
    """Whether the modules of a list are blocks, rather than the parts of a sequence."""
    having = Counter(inner for block in blocks.values() for inner in block if inner)
    alike = [block for block in blocks.values() if any(having[inner] > 1 for inner in block)]
    return 2 * sum(map(len, alike)) > sum(map(len, blocks.values()))


def _distances(depths: Iterable[int]) -> list[float]:
    all_depths = list(depths)
    if not all_depths:
        return []
    first, last = min(all_depths), max(all_depths)
    if first == last:
        return [0.0] * len(all_depths)
    return [abs(2 * depth - first - last) / (last - first) for depth in all_depths]


CRITERION: Criterion = Depth()
