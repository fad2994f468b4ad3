"""What stands behind the @: a rank, a percentile, or a level."""

from __future__ import annotations

from quantdrift.metrics.base import Family, MetricError

__all__ = ["LEVEL_DECIMALS", "check_cutoff", "cutoff_text"]

LEVEL_DECIMALS = 6
"""A level has no more decimals than these."""

_PERCENTILES = 100


def check_cutoff(family: Family, cutoff: float) -> None:
    """Refuse a cut-off that a family does not take.

    Args:
        family: of the metric.
        cutoff: 0 for none.

    Raises:
        MetricError: it needs one, or takes none, or not this one.
    """
    got = f"@{cutoff_text(cutoff)}" if cutoff else "none"
    if bool(family.cutoffs) != bool(cutoff):
        example = _example(family) if family.cutoffs else ""
        wants = f"needs a cut-off, e.g. {example}" if example else "takes no cut-off"
        raise MetricError(f"the metric {family.name!r} {wants}; got {got}")
    if family.cutoff_is == "level":
        if not 0 < cutoff < 1 or round(cutoff, LEVEL_DECIMALS) != cutoff:
            raise MetricError(
                f"{family.name!r} takes a level above 0 and below 1 with at most {LEVEL_DECIMALS} "
                f"decimals, e.g. {_example(family)}; got {got}"
            )
    elif cutoff != int(cutoff) or cutoff < 0:
        raise MetricError(f"{family.name!r} takes a whole number behind the @; got {got}")
    if not family.other_cutoffs and cutoff not in family.cutoffs:
        only = " and ".join(f"{family.name}@{cutoff_text(listed)}" for listed in family.cutoffs)
        raise MetricError(f"of {family.name!r} there is only {only}; got {got}")
    if family.cutoff_is == "percentile" and cutoff >= _PERCENTILES:
        raise MetricError(f"{family.name!r} takes a percentile from 1 to 99; got {got}")


def cutoff_text(cutoff: float) -> str:
    """A cut-off as it stands in a metric's string: a level has two decimals or more.

    >>> cutoff_text(10), cutoff_text(0.1), cutoff_text(0.005)
    ('10', '0.10', '0.005')
    """
    if cutoff == int(cutoff):
        return str(int(cutoff))
    whole, _, decimals = f"{cutoff:.{LEVEL_DECIMALS}f}".rstrip("0").partition(".")
    return f"{whole}.{decimals:0<2}"


def _example(family: Family) -> str:
    return f"{family.name}@{cutoff_text(family.cutoffs[0])}"
