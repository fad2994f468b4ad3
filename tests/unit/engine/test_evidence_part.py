"""Some of a run's inputs as evidence of their own: as if the others had never been there."""

import numpy as np
import pytest

from quantdrift.engine.flow import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.evidence.record import Evidence, Noise
from quantdrift.metrics import measure

N_INPUTS, N_ITEMS = 12, 9
RNG = np.random.default_rng(5)
REFERENCE = RNG.normal(size=(N_INPUTS, N_ITEMS)).astype(np.float32)
CANDIDATE = REFERENCE + 0.4 * RNG.normal(size=(N_INPUTS, N_ITEMS)).astype(np.float32)
IDS = [f"q{number}" for number in range(N_INPUTS)]
ITEMS = [f"d{number}" for number in range(N_ITEMS)]
QRELS = {
    f"q{row}": {f"d{item}": int(RNG.integers(0, 3)) for item in RNG.choice(N_ITEMS + 2, size=row % 4)}
    for row in range(N_INPUTS)
}
"""None for some inputs; some items that are not in the corpus."""
NOISE = Noise(flips=RNG.random(N_INPUTS) < 0.3, epsilon=RNG.random(N_INPUTS).astype(np.float32) / 100)


def evidence(rows: list[int], *, labels: bool = True, noise: bool = True, k: int = 5) -> Evidence:
    """Evidence that is assembled from some inputs alone."""
    return assemble(
        score_matrix(REFERENCE[rows], CANDIDATE[rows], k=k),
        input_ids=[IDS[row] for row in rows],
        item_ids=ITEMS,
        qrels=QRELS if labels else None,
        noise=Noise(flips=NOISE.flips[rows], epsilon=NOISE.epsilon[rows]) if noise else None,
    )


WHOLE = list(range(N_INPUTS))
PARTS = [WHOLE, [0, 2, 3, 7, 11], [5], [9, 1, 4], WHOLE[1::2]]


@pytest.mark.parametrize("rows", PARTS, ids=str)
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("noise", [True, False])
def test_metrics_are_those_of_these_inputs_alone(rows: list[int], labels: bool, noise: bool) -> None:
    metrics = measure(evidence(WHOLE, labels=labels, noise=noise).part(np.array(rows)))
    expected = measure(evidence(rows, labels=labels, noise=noise))
    assert metrics == expected
    assert len(metrics) > 10
