"""`certify` of 50,000 inputs, against the same thresholds by scipy's binomial tail at every rank.

The wanted figures: a ratio below 1, and less than a second for ours.
"""

import time

import numpy as np
from scipy import stats
from timing import in_turn, report

from quantdrift.trust.certify import ALPHAS, certify

N, SPLITS, ROUNDS = 50_000, 20, 5
CONFIDENT = 0.1
"""One minus the confidence."""


def test_fifty_thousand_inputs() -> None:
    rng = np.random.default_rng(0)
    reference = rng.random((N, 10), dtype=np.float32)
    candidate = reference + rng.normal(0, 0.02, reference.shape).astype(np.float32)
    first_two = np.sort(candidate, axis=1)[:, -2:]
    gap, changed = first_two[:, 1] - first_two[:, 0], reference.argmax(axis=1) != candidate.argmax(axis=1)
    accepted: list[float] = []

    def other() -> None:
        """What one would write from the definition; the conditional guarantee alone, without S."""
        accepted.clear()
        for alpha in ALPHAS:
            shares = []
            for split in range(SPLITS):
                order = np.random.default_rng(split).permutation(N)
                half, rest = order[: N // 2], order[N // 2 :]
                ranked = half[np.argsort(-gap[half], kind="stable")]
                passed = stats.binom.cdf(np.cumsum(changed[ranked]), np.arange(1, N // 2 + 1), alpha) <= CONFIDENT
                passed[: N // 16] = True  # the tests begin behind an eighth
                last = N // 2 if passed.all() else int(np.argmin(passed))
                shares.append(float((gap[rest] > gap[ranked[last - 1]]).mean()))
            accepted.append(float(np.mean(shares)))

    def ours() -> None:
        certify((reference, candidate), promises=[("conditional", "gap")], n_splits=SPLITS)

    other()
    found = certify((reference, candidate), promises=[("conditional", "gap")], n_splits=SPLITS).certificates
    np.testing.assert_allclose([entry.coverage.value for entry in found], accepted, atol=0.01)
    report("certify", in_turn(ours, other, ROUNDS), f"{N:,} inputs, {SPLITS} splits, {len(ALPHAS)} levels")
    start = time.perf_counter()
    certify((reference, candidate))
    print(f"certify with the joint check beside it: {time.perf_counter() - start:.2f} s")
