"""What a study of allocations compares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from quantdrift.allocation.settings import DEFAULT_QUERIES, DEPTH
from quantdrift.allocation.solving.solver import METHODS
from quantdrift.errors import QuantDriftError, UnknownNameError
from quantdrift.grammar import CRITERIA, QUANTIZERS
from quantdrift.spec import Scheme, parse_scheme
from quantdrift.widths import MAX_BITS, MIN_BITS

__all__ = ["AllocationPlan", "Draw"]

HELD_OUT = 256
"""Queries that flips are counted on, at most."""


@dataclass(frozen=True, slots=True, order=True)
class Draw:
    """One draw of calibration queries.

    Attributes:
        seed: of the draw.
        n_queries: wanted; at most a quarter of the pool is taken.
    """

    seed: int
    n_queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPlan:
    """The grid: criteria by budgets, quantizers and draws of calibration queries.

    Attributes:
        criteria: names; the first is the one that the others are compared with.
        budgets: bits per weight, all between the same two whole numbers.
        quantizers: that round to the widths; the widths are the same for all.
        seeds: of the draws of calibration queries.
        sizes: of these draws; more than one asks how many queries are needed.
        held_out: queries that answers are compared on, at most, beside those calibrated on.
        depth: first documents of every query that are looked at.
        group: input weights that share a scale, as a spec says it: `g128`, `channel`.
        solver: how widths follow from losses.
    """

    criteria: tuple[str, ...] = tuple(CRITERIA)
    budgets: tuple[float, ...] = (3.25, 3.5, 3.75)
    quantizers: tuple[str, ...] = ("rtn",)
    seeds: tuple[int, ...] = (0,)
    sizes: tuple[int, ...] = (DEFAULT_QUERIES,)
    held_out: int = HELD_OUT
    depth: int = DEPTH
    group: str = "g128"
    solver: str = "knapsack"

    def __post_init__(self) -> None:
        """Refuse what cannot be compared.

        Raises:
            QuantDriftError: nothing to compare, a name that is not known, or budgets that have not
                the same two widths.
        """
        axes = {
            "criteria": self.criteria,
            "budgets": self.budgets,
            "quantizers": self.quantizers,
            "seeds": self.seeds,
            "sizes": self.sizes,
        }
        for name, values in axes.items():
            if not values or len(set(values)) != len(values):
                raise QuantDriftError(
                    f"a study of allocations needs one or more {name}, each once; got "
                    f"{', '.join(map(str, values)) or 'none'}"
                )
        known = {"criterion": CRITERIA, "quantizer": QUANTIZERS, "solver": METHODS}
        given = {
            "criterion": self.criteria,
            "quantizer": self.quantizers,
            "solver": (self.solver,),
        }
        for kind, names in given.items():
            for name in names:
                if name not in known[kind]:  # not all that a scheme could say in its place, either
                    hint = f"(one of {', '.join(known[kind])})"
                    raise UnknownNameError(kind, name, known[kind], hint=hint)
        around = {(math.floor(budget), math.ceil(budget)) for budget in self.budgets}
        within = MIN_BITS <= self.low < self.high <= MAX_BITS
        if len(around) != 1 or not within:
            raise QuantDriftError(
                "the capture ratio is the share of the benefit of one more bit: expected budgets "
                f"between the same two whole numbers from {MIN_BITS} to {MAX_BITS}, e.g. "
                "3.25,3.5,3.75; got " + ", ".join(f"{budget:g}" for budget in self.budgets)
            )
        for criterion in self.criteria:
            self.scheme(criterion, self.budgets[0], self.draws()[0])
        for quantizer in self.quantizers:
            self.rounding(quantizer)

    @property
    def low(self) -> int:
        """The narrower width, where nothing is captured."""
        return math.floor(self.budgets[0])

    @property
    def high(self) -> int:
        """The wider width, where all is captured."""
        return math.ceil(self.budgets[0])

    def draws(self) -> list[Draw]:
        """Seeds by sizes."""
        return [Draw(seed, size) for seed in self.seeds for size in self.sizes]

    def schemes(self) -> Iterator[tuple[str, float, Draw, Scheme]]:
        """Criterion, budget, draw and the scheme whose widths they give."""
        for draw in self.draws():
            for criterion in self.criteria:
                for budget in self.budgets:
                    yield criterion, budget, draw, self.scheme(criterion, budget, draw)

    def scheme(self, criterion: str, budget: float, draw: Draw) -> Scheme:
        """The scheme that an allocation is measured for."""
        text = f"W{budget:g}-{self.group}-rtn+{criterion}+queries={draw.n_queries}"
        return parse_scheme(f"{text}+seed={draw.seed}+solver={self.solver}")

    def rounding(self, quantizer: str) -> Scheme:
        """The scheme that rounds with a quantizer to widths that are given."""
        middle = (self.low + self.high) / 2
        return parse_scheme(f"W{middle:g}-{self.group}-{quantizer}+gap")
