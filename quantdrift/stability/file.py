"""A stability check as a small JSON file, read strictly: a server trusts what it says."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from quantdrift.origin import Origin
from quantdrift.records import is_number, read_object, refuse_other, sealed, write_text
from quantdrift.stability.check import SAMPLE, StabilityCheck
from quantdrift.stability.errors import MAKE, StabilityError
from quantdrift.stability.nonconformity import STATISTICS, bounds_gap
from quantdrift.stability.threshold import least_inputs

__all__ = ["FORMAT", "FORMAT_VERSION", "read_check", "write_check"]

FORMAT = "quantdrift-stability-check"
FORMAT_VERSION = 2

_COUNTS = ("n_calibration", "n_flipped", "n_items_min", "n_items_max")


def write_check(check: StabilityCheck, path: Path) -> None:
    """Write a check whole, replacing an earlier one. JSON has no infinity: it is null, and why.

    Args:
        check: to write.
        path: the file.

    Raises:
        RunError: the place holds something else, or it cannot be written.
    """
    refuse_other(path, FORMAT, "a stability check")
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(check)}
    if math.isinf(check.threshold):
        content["threshold"] = None
        content["accepts"] = "nothing" if check.threshold > 0 else "everything"
        content["reason"] = check.reason
    content = sealed(content)
    text = json.dumps(content, indent=2, ensure_ascii=False)
    # one number a line would make a thousand lines of the sample
    listed = json.dumps(content["sample"], indent=2).replace("\n", "\n  ")
    write_text(
        path, text.replace(listed, json.dumps(content["sample"])) + "\n", what="the stability check"
    )


def read_check(path: Path) -> StabilityCheck:
    """Read a check.

    Args:
        path: the file.

    Raises:
        StabilityError: it is missing, damaged, something else, or of another version.
    """
    content = read_object(
        path, FORMAT, FORMAT_VERSION, what="a stability check", make=MAKE, error=StabilityError
    )
    try:
        return _check(content)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise StabilityError(
            f"{path} is damaged: {what}. Calibrate and save the check again"
        ) from error


def _check(content: dict[str, Any]) -> StabilityCheck:
    _need(content["statistic"] in STATISTICS, f"there is no statistic {content['statistic']!r}")
    alpha, threshold = _number(content, "alpha"), content["threshold"]
    _need(0 < alpha < 1, f"alpha is {alpha}")
    counts = {name: content[name] for name in _COUNTS}
    for name, count in counts.items():
        whole = isinstance(count, int) and not isinstance(count, bool)
        _need(whole and count >= 0, f"{name} is {count!r}")
    if threshold is None:
        accepted = content["accepts"]
        _need(accepted in {"nothing", "everything"}, f"it accepts {accepted!r}")
        _need(accepted == "nothing" or not bounds_gap(content["statistic"]), "S accepts everything")
        threshold = math.inf if accepted == "nothing" else -math.inf
    else:
        threshold = _number(content, "threshold")
    few = counts["n_calibration"] < least_inputs(alpha)
    _need(few == (threshold == math.inf), "threshold and number of calibration inputs do not fit")
    _need(counts["n_flipped"] <= counts["n_calibration"], "more flips than inputs")
    _need(counts["n_items_min"] <= counts["n_items_max"], "n_items_min is above n_items_max")
    coverage = _number(content, "expected_coverage")
    _need(0 <= coverage <= 1, f"expected_coverage is {coverage}")
    sample = content["sample"]
    _need(isinstance(sample, list), "sample is no list")
    numbers = all(is_number(x) for x in sample)
    _need(numbers and all(low <= high for low, high in pairwise(sample)), "sample is not sorted")
    wanted = min(SAMPLE, counts["n_calibration"])
    _need(len(sample) == wanted > 0, f"sample holds {len(sample)} of {wanted} confidences")
    _need(isinstance(content["version"], str), "version is no text")
    return StabilityCheck(
        statistic=content["statistic"],
        alpha=alpha,
        threshold=threshold,
        **counts,
        expected_coverage=coverage,
        origin=Origin.read(content["origin"]),
        version=content["version"],
        sample=tuple(float(x) for x in sample),
    )


def _number(content: dict[str, Any], name: str) -> float:
    value = content[name]
    _need(is_number(value), f"{name} is {value!r:.40}")
    return float(value)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
