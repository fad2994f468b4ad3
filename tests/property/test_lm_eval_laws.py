"""What lm-eval computes of a question, and what we compute of its samples, is the same."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.evidence.record import Evidence
from quantdrift.finished.lm_eval_evidence import pair_samples
from quantdrift.metrics import parse_metric
from support.lm_eval_log import logged, question

N_CHOICES = 4
# few values, so that many choices are equal; and pairs that only float64 tells apart
LOGLIKELIHOODS = st.sampled_from([-1.0, -1.0 - 1e-12, -2.0, -2.5, -40.25])
ROWS = st.lists(st.lists(LOGLIKELIHOODS, min_size=N_CHOICES, max_size=N_CHOICES), min_size=1, max_size=12)


def evidence_of(*arms: list[list[float]], gold: list[int], form: Any) -> Evidence:
    both = [
        form(
            [
                question(n, row, right, metrics={"acc": float(np.argmax(row) == right)})  # lm_eval/api/task.py
                for n, (row, right) in enumerate(zip(arm, gold, strict=True))
            ]
        )
        for arm in arms
    ]
    evidence = pair_samples(both[0], both[1], task="t")["none"].evidence
    assert evidence is not None
    return evidence


@given(ROWS, st.data())
def test_flips_and_accuracies_are_those_of_argmax(rows: list[list[float]], data: Any) -> None:
    n = len(rows)
    after = data.draw(st.lists(st.permutations([-1.0, -1.0 - 1e-12, -2.0, -2.0]), min_size=n, max_size=n))
    gold = data.draw(st.lists(st.integers(0, N_CHOICES - 1), min_size=n, max_size=n))
    first, second = (np.argmax(np.array(arm), axis=1) for arm in (rows, after))
    expected = {
        "flip@1": first != second,
        "reference.accuracy": first == gold,
        "accuracy": second == gold,
        "harm": (first == gold) & (second != gold),
        "benefit": (first != gold) & (second == gold),
    }
    for form in (list, logged):
        evidence = evidence_of(rows, after, gold=gold, form=form)
        for name, wanted in expected.items():
            assert parse_metric(name).per_input(evidence).tolist() == wanted.tolist(), name
