"""Numbers for readers: rates in percent, differences of rates in percentage points."""

from collections.abc import Callable
from math import isfinite, isinf

from quantdrift.metrics import Metric
from quantdrift.statistics.estimates import Estimate


def has_value(estimate: Estimate) -> bool:
    """Whether there is a finite value to show."""
    return estimate.value is not None and isfinite(estimate.value)


def show(metric: Metric, estimate: Estimate) -> str:
    """The value for readers, with "≥" or "≤" for a bound; "-" if there is none, ∞ if infinite."""
    if estimate.value is None:
        return "-"
    sign = {None: "", "lower": "≥ ", "upper": "≤ "}[estimate.bound]
    return sign + ("∞" if isinf(estimate.value) else _form(metric)(estimate.value))


def show_interval(metric: Metric, estimate: Estimate) -> str:
    """The 95 % interval for readers; empty if there is none, or if the value is a bound."""
    if (estimate.low is None and estimate.high is None) or estimate.bound is not None:
        return ""
    if estimate.low == estimate.high and "bootstrap" in metric.uncertainty:  # one value of all inputs shows no range
        return ""
    # a missing end is the end of the metric's range
    ends = [limit if end is None else end for end, limit in ((estimate.low, metric.low), (estimate.high, metric.high))]
    shown = ["∞" if isinf(end) else _form(metric)(end) for end in ends]
    return f"{shown[0]} to {shown[1]}"


def cell(metric: Metric, estimate: Estimate) -> str:
    """Value and interval for a table cell; "-" if there is no value, ∞ if it is infinite."""
    if not has_value(estimate):
        return show(metric, estimate)
    interval = show_interval(metric, estimate).replace(" %", "")  # the unit once is enough
    return show(metric, estimate) + (f" ({interval})" if interval else "")


def show_step(metric: Metric, estimate: Estimate) -> str:
    """A difference of two values of a metric, with its interval; "-" if there is none."""
    if estimate.value is None:
        return "-"
    rate = metric.unit == "rate"
    unit = " pp" if rate else ""

    def step(value: float) -> str:
        return f"{_no_minus(100 * value, 1):+.1f}" if rate else f"{_no_minus(value, 4):+.4f}"

    if estimate.low is None or estimate.high is None:
        return step(estimate.value) + unit
    return f"{step(estimate.value)}{unit} ({step(estimate.low)} to {step(estimate.high)})"


def show_p(value: float | None) -> str:
    """A p-value with three digits; "-" if there is none."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}"  # noqa: PLR2004 -- three digits are shown


def _form(metric: Metric) -> Callable[[float], str]:
    signed = "+" if metric.arm in {"change", "relative"} else ""
    if metric.unit == "rate":
        return lambda value: f"{_no_minus(100 * value, 1):{signed}.1f} %"
    if metric.unit in {"rank", "items"}:
        return lambda value: f"{value:{signed}g}"
    return lambda value: f"{_no_minus(value, 4):{signed}.{3 if abs(value) >= 1 else 4}f}"


def _no_minus(value: float, digits: int) -> float:
    """Replace a value that rounds to 0 by 0, as it could read -0."""
    return value if round(value, digits) else 0.0
