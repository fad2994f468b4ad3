"""How a check would do, on splits small enough to do by hand."""

import math
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.trust.certify import certify


def test_a_split_by_hand() -> None:
    """Nine of ten calibrate at level 0.1; whichever they are, their largest S is the threshold."""
    reference = np.tile([10.0, 0.0], (10, 1))
    candidate = reference + np.array([[0.0, size] for size in range(10)])  # S = 0, gap = 10 - size
    certified = certify((reference, candidate), [0.1, 0.01], [("joint", "S")], n_splits=50, share=0.9)
    lax, strict = certified.certificates
    assert (certified.n_inputs, certified.n_calibration, certified.flip_rate) == (10, 9, 0)
    assert (lax.coverage.value, lax.coverage.sd, lax.threshold, lax.violation.value) == (1, 0, 0, 0)
    assert (strict.coverage.value, strict.violation.value, strict.joint_violation.value) == (None,) * 3
    assert strict.threshold == math.inf
    assert "99" in (strict.coverage.reason or "")


def test_coverage_and_violation_are_of_the_inputs_that_did_not_calibrate() -> None:
    rng = np.random.default_rng(3)
    reference = rng.normal(size=(60, 5))
    candidate = reference + 0.5 * rng.normal(size=(60, 5))
    check, generic = certify((reference, candidate), [0.3], [("joint", "S"), ("joint", "gap")], n_splits=1).certificates
    order, delta, ranked = np.random.default_rng(0).permutation(60), candidate - reference, np.sort(candidate, axis=1)
    gap, changed = ranked[:, -1] - ranked[:, -2], reference.argmax(axis=1) != candidate.argmax(axis=1)
    s = delta[np.arange(60), candidate.argmax(axis=1)] - delta.min(axis=1)
    fit, rest = order[:30], order[30:]
    accepted = gap[rest] >= np.sort(s[fit])[22 - 1]  # ceil(31 * 0.7)
    assert check.coverage.value == pytest.approx(accepted.mean())
    flipped = np.sort(gap[fit][changed[fit]])
    accepted = gap[rest] > flipped[math.ceil((len(flipped) + 1) * 0.7) - 1]
    joint = (accepted & changed[rest]).mean()
    assert [generic.coverage.value, generic.joint_violation.value, generic.violation.value] == pytest.approx(
        [accepted.mean(), joint, joint / accepted.mean()]
    )
    assert joint > 0


@pytest.mark.parametrize("wrong", [{"n_splits": 0}, {"share": 0}, {"share": 1.0}])
def test_splits_that_are_none_are_refused(wrong: Any) -> None:
    scores = np.eye(4)
    with pytest.raises(QuantDriftError, match="at least one split"):
        certify((scores, scores), [0.1], **wrong)
    with pytest.raises(QuantDriftError, match="at least two inputs"):
        certify((scores[:1], scores[:1]), [0.1])
