"""How much of a flip rate is the runtime's own: the model at full precision, run in other ways."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from quantdrift.metrics import parse_metric
from quantdrift.spec.grammar import parse_scheme
from quantdrift.stages import STAGES
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.results import Result

METRICS = ("flip@1", "gold_lost@10", "change.ndcg@10", "epsilon", "interchangeable")
_CONFIGURATIONS = {key: option.usual for key, option in STAGES["runtime"].options.items()}
"""Other than the usual: float32, batches of 32, texts filled up on the right, the attention that transformers takes."""


def ways(*, every: bool = False) -> list[str]:
    """Schemes that run a model at full precision in another way: one setting at a time, or every combination."""
    if not every:
        return [str(parse_scheme(f"fp+{name}={value}")) for name, values in _CONFIGURATIONS.items() for value in values]
    options = [["", *(f"+{name}={value}" for value in values)] for name, values in _CONFIGURATIONS.items()]
    return [str(parse_scheme(f"fp{''.join(chosen)}")) for chosen in product(*options) if any(chosen)]


def largest(found: Sequence[tuple[str, Estimate]]) -> tuple[str, Estimate] | None:
    """The way that changes most answers."""
    known = [each for each in found if each[1].value is not None]
    return max(known, key=lambda each: each[1].value or 0.0, default=None)


def of_results(results: Sequence[Result]) -> list[tuple[str, dict[str, Estimate]]]:
    """The way and the metrics of every cell that is done."""
    found = [(one.scheme.removeprefix("fp+").replace("+", ", "), one.metrics) for one in results if one.run is not None]
    return [(way, {str(parse_metric(name)): metrics[name] for name in METRICS}) for way, metrics in found]
