"""What a run says in sentences."""

import numpy as np

from quantdrift.evidence.record import Noise
from quantdrift.metrics import measure
from quantdrift.runs.words import findings
from support.small_evidence import CANDIDATE, REFERENCE, evidence_of


def told(reference: list[list[int]], candidate: list[list[int]], noise: float) -> list[str]:
    n = len(reference)
    floor = Noise(flips=np.zeros(n, dtype=bool), epsilon=np.full(n, noise, dtype=np.float32))
    estimates = measure(evidence_of(reference, candidate, noise=floor))
    return list(findings({"data": {}, "metrics": {name: estimate.to_json() for name, estimate in estimates.items()}}))


def test_flips_that_rest_on_ties_or_noise_are_told() -> None:
    """q2 flips over a gap of 1, q3 over a tie that the reference could have broken the other way."""
    ties, near = told(REFERENCE, CANDIDATE, 0.25)[:2]
    assert ties.startswith("Exact ties: over all ways to break them 25.0 % to 50.0 % of the inputs flip, 37.5 %")
    assert "; 1 of the flips rest" in ties
    assert near.startswith("1 of 2 flips are interchangeable")


def test_where_there_are_neither_nothing_is_said_of_them() -> None:
    assert not [line for line in told(REFERENCE[:3], CANDIDATE[:3], 0.25) if "ties" in line or "interchange" in line]
