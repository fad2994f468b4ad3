"""From a string to the metric it names."""

from __future__ import annotations

import math
import re
from typing import cast

from quantdrift.errors import UnknownNameError
from quantdrift.metrics.base import Arm, Family, MetricError
from quantdrift.metrics.metric import Metric, Slice, members

__all__ = ["parse_in"]

_ONE = re.compile(
    r"((?P<arm>candidate|reference|change|relative)\.)?"
    r"(?P<name>[A-Za-z_]+)(@(?P<k>[1-9][0-9]{0,8}|0\.(?=0*[1-9])[0-9]{1,6}))?"
)
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})?")


def parse_in(text: str, families: dict[str, Family]) -> Metric:
    """The metric a string names; `str` of it parses back to the same object.

    Args:
        text: `[ARM.]NAME[@CUTOFF][:METRIC=LOW..HIGH]`.
        families: the families there are, by name.

    Raises:
        UnknownNameError: no such family; carries the nearest.
        MetricError: a cut-off is missing or not taken, there is no such arm, or the slice cannot
            be read.
    """
    whole, colon, condition = text.strip().partition(":")
    metric = _one(whole, families)
    if not colon:
        return metric
    by, equals, limits = condition.partition("=")
    match = _RANGE.fullmatch(limits)
    if not equals or match is None:
        raise MetricError(
            f"expected a slice such as flip@1:separation=0.05..0.1 or flip@1:separation=1.. "
            f"after the colon; got {condition!r}"
        )
    high = math.inf if match["high"] is None else float(match["high"])
    where = Slice(by=_one(by, families), low=float(match["low"]), high=high)
    return Metric(family=metric.family, cutoff=metric.cutoff, arm=metric.arm, where=where)


def _one(text: str, families: dict[str, Family]) -> Metric:
    match = _ONE.fullmatch(text)
    if match is None or match["name"] not in families:
        known = [str(member) for family in families.values() for member in members(family)]
        raise UnknownNameError("metric", text, known, hint="(quantdrift list metrics shows all)")
    arm = cast(Arm, match["arm"] or "candidate")
    level = "." in (match["k"] or "")
    cutoff = float(match["k"]) if level else int(match["k"] or 0)
    return Metric(family=families[match["name"]], cutoff=cutoff, arm=arm)
