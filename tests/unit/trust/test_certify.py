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
    certified = certify((reference, candidate), [0.1, 0.01], n_splits=50, share=0.9)
    lax, strict = certified.certificates
    assert (certified.n_inputs, certified.n_calibration, certified.flip_rate) == (10, 9, 0)
    assert (lax.coverage.value, lax.coverage.sd, lax.threshold, lax.violation.value) == (1, 0, 0, 0)
    assert (strict.coverage.value, strict.violation.value, strict.joint_violation.value) == (None,) * 3
    assert strict.threshold == math.inf
    assert "99" in (strict.coverage.reason or "")


@pytest.mark.parametrize("wrong", [{"n_splits": 0}, {"share": 0}, {"share": 1.0}])
def test_splits_that_are_none_are_refused(wrong: Any) -> None:
    scores = np.eye(4)
    with pytest.raises(QuantDriftError, match="at least one split"):
        certify((scores, scores), [0.1], **wrong)
    with pytest.raises(QuantDriftError, match="at least two inputs"):
        certify((scores[:1], scores[:1]), [0.1])
