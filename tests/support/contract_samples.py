"""Cases for the contract of the metrics: scores, labels, a noise floor; changed one by one."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from quantdrift.evidence.record import Evidence, Noise
from quantdrift.statistics.conformal import calibrates
from support.metric_samples import names
from support.small_evidence import evidence_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """Whole-number scores [n_inputs, n_items], labels and a noise floor."""

    reference: Any
    candidate: Any
    qrels: dict[str, dict[str, int]]
    noisy: Any

    def evidence(self, *, input_ids: list[str] | None = None, **changed: Any) -> Evidence:
        case = replace(self, **changed)
        n_inputs, n_items = case.reference.shape
        noise = Noise(flips=case.noisy, epsilon=np.zeros(n_inputs, dtype=np.float32))
        named: Any = {"item_ids": names(n_items), "input_ids": input_ids, "qrels": case.qrels, "noise": noise}
        return evidence_of(case.reference, case.candidate, k=20, **named)


@st.composite
def cases(draw: st.DrawFn, *, ties: bool = True) -> Case:
    n_inputs, n_items = draw(st.integers(1, 6)), draw(st.integers(1, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([1, 3, 12]))
    reference = np.array([rng.permutation(n_items) for _ in range(n_inputs)], dtype=float) * 4
    if ties and draw(st.booleans()):
        reference = rng.integers(0, 5, reference.shape) * 4.0
    candidate = reference + rng.integers(-2 * spread, 2 * spread + 1, reference.shape)
    if not ties:
        candidate = np.argsort(np.argsort(candidate, axis=1), axis=1) * 4.0 + 1
    judged = rng.integers(-1, 4, reference.shape)
    shown = rng.random(reference.shape) < 0.4
    qrels = {
        f"q{row}": {f"d{item}": int(judged[row, item]) for item in np.flatnonzero(shown[row])}
        for row in range(n_inputs)
    }
    return Case(reference=reference, candidate=candidate, qrels=qrels, noisy=rng.random(n_inputs) < 0.3)


def example(n_inputs: int = 240) -> Case:
    rng = np.random.default_rng(5)
    reference = np.array([rng.permutation(12) for _ in range(n_inputs)], dtype=float) * 4
    rows = np.arange(n_inputs)
    reference += 15 * (reference == 44) * (rows[:, None] % 2)  # half of them are safe
    spread = rows[:, None] % 9 + 1
    candidate = reference + rng.integers(-1, 2, reference.shape) * spread
    # one that does not calibrate flips by a lead that no calibration input could expect
    odd = int(np.flatnonzero(~calibrates(np.array([f"q{row}" for row in rows], dtype=object)))[0])
    reference[odd] = np.arange(12) * 4 - 60
    candidate[odd] = reference[odd] + 32 * (np.arange(12) == 10)
    qrels = {f"q{row}": {f"d{item}": 1 for item in rng.integers(0, 12, 3)} for row in rows}
    return Case(reference=reference, candidate=candidate, qrels=qrels, noisy=rows % 9 == 0)
