"""The block `capture` of a study.yaml, criteria x budgets x quantizers, and its schemes."""

from collections.abc import Collection, Iterator
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quantdrift.base.errors import SpecError, UnknownNameError
from quantdrift.base.records import Bits, Some, Whole
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import CRITERIA, calibrates, draws, needs_inputs, parse_scheme

_QUERIES = 128
"""Default number of calibration queries of a criterion."""


def known_name(kind: str, name: str, names: Collection[str]) -> str:
    """Return a known name; for another one, raise a ValueError, as pydantic needs, with the nearest."""
    if name not in names:
        raise ValueError(str(UnknownNameError(kind, name, names, hint=f"(one of {', '.join(names)})")))
    return name


class Part(BaseModel):
    """A part of a study.yaml."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        for key in value if isinstance(value, dict) else ():
            known_name("key", str(key)[:60], cls.model_fields)
        return value


class HeldOut(Part):
    """The share of queries that rates are computed over, drawn by a seed; criteria use the others."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.75
    seed: Whole = 0


class CaptureGrid(Part):
    """The criteria, budgets and quantizers that a capture study compares.

    Attributes:
        criteria: criteria that choose widths, with options of the choice after a plus: gap_exact+solver=greedy.
        budgets: bits per weight, none of them a width.
        quantizers: quantizers that round to the chosen widths.
        activations: bits of activations, in uniform schemes too; 16 for none.
        granularity: granularity, as in a scheme.
        widths: widths to choose from; by default the whole numbers on both sides of each budget.
        sizes: numbers of calibration queries of a criterion.
        seeds: seeds of random draws; by default those of the study.
        documents: number of documents that quantizers calibrate on; None for the default.
        query_only: whether only the query side is quantized.
        layers: linear, or None for all layers, as in a scheme.
    """

    criteria: list[str] = Field(["gap", "reconstruction", "random"], min_length=1)
    budgets: list[Bits] = Field([3.5], min_length=1)
    quantizers: list[str] = Field(["rtn"], min_length=1)
    activations: list[Some] = Field([FULL_BITS], min_length=1)
    granularity: str = "g128"
    widths: list[Some] = []
    sizes: list[Some] = Field([_QUERIES], min_length=1)
    seeds: list[Whole] = []
    documents: Some | None = None
    query_only: bool = False
    layers: Literal["linear"] | None = None

    @model_validator(mode="after")
    def _can_be_compared(self) -> Self:
        for criterion in self.criteria:
            known_name("criterion", criterion.partition("+")[0], CRITERIA)
        for quantizer in self.quantizers:
            known_name("quantizer", quantizer, QUANTIZERS)
        for name in ("criteria", "budgets", "quantizers", "activations", "sizes", "seeds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name}: expected each once")
        for budget in self.budgets:
            low, high = self.around(budget)
            if not low < budget < high:
                between = f"between two of the widths {self.widths}" if self.widths else "no whole number"
                raise ValueError(
                    f"budgets: capture is measured between the uniform widths around a budget: expected one {between}, "
                    f"such as 3.5; got {budget:g}"
                )
        try:
            list(self.schemes())
        except SpecError as error:
            raise ValueError(str(error)) from error
        return self

    def around(self, budget: float) -> tuple[int, int]:
        """Return the uniform widths around a budget: nothing is captured at the lower, all at the upper."""
        offered = self.widths or [int(budget), int(budget) + 1]
        below, above = [w for w in offered if w <= budget], [w for w in offered if w >= budget]
        return (max(below), min(above)) if below and above else (0, 0)

    def scheme(
        self,
        bits: float,
        quantizer: str,
        *,
        activations: int = FULL_BITS,
        seed: int = 0,
        criterion: str | None = None,
        size: int = _QUERIES,
    ) -> Scheme:
        """Return the scheme of one point, with widths by a criterion or one width for all layers."""
        width = f"W{bits:g}" if activations == FULL_BITS else f"W{bits:g}A{activations}"
        options = filter(None, ["query" * self.query_only, self.layers and f"layers={self.layers}", criterion])
        text = "+".join([f"{width}-{self.granularity}-{quantizer}", *options])
        if criterion is not None and self.widths and sorted(self.widths) != [int(bits), int(bits) + 1]:
            text += f"+widths={','.join(map(str, sorted(self.widths)))}"
        if needs_inputs(criterion) and size != _QUERIES:
            text += f"+queries={size}"
        if self.documents is not None and calibrates(parse_scheme(text)):
            text += f"+calib={self.documents}"
        return parse_scheme(f"{text}+seed={seed}" if seed and draws(parse_scheme(text)) else text)

    def schemes(self) -> Iterator[Scheme]:
        """Yield all schemes, with repetitions: the uniform ones, then the allocations."""
        axes = self.budgets, self.quantizers, self.activations, self.seeds or [0]
        for budget, quantizer, bits, seed in product(*axes):
            yield from (self.scheme(width, quantizer, activations=bits, seed=seed) for width in self.around(budget))
        for budget, quantizer, bits, seed, size, criterion in product(*axes, self.sizes, self.criteria):
            yield self.scheme(budget, quantizer, activations=bits, seed=seed, criterion=criterion, size=size)
