"""What rescoring the candidate's first items gives back, from evidence."""

import numpy as np
import pytest

from quantdrift.features.route.advice import operating_point
from support.routing_samples import searched


def test_the_operating_point_of_a_search_counts_what_is_restored() -> None:
    # 12 items; item 0 is the reference's first, and the candidate's 2nd, 2nd, 11th and 1st
    reference = np.tile(np.arange(12, 0, -1.0), (4, 1))
    candidate = reference.copy()
    candidate[0, 0], candidate[1, 0], candidate[2, 0] = 10.75, 10.5, 1.5
    assert (np.argsort(-candidate, axis=1) == 0).argmax(1).tolist() == [1, 1, 10, 0]
    evidence = searched(reference, candidate)
    # gaps 0.25, 0.5, 1, 1: two of three top-1 changes come back with the first 10
    half = operating_point(evidence, share=0.4, speed_up=4)
    assert half is not None
    assert (half.k, half.routed, half.cost, half.changes) == (10, 0.5, 0.75, pytest.approx(2 / 3 * 2 / 3))
    assert half.threshold == np.nextafter(0.5, 1)
    assert operating_point(evidence, share=0.9) is None
    assert operating_point(searched(reference, reference)) is None
