"""What lm-eval computes of a question, and what we compute of its samples, is the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdrift.finished.lm_eval_evidence import pair_samples
from quantdrift.metrics import parse_metric

N_CHOICES = 4
# few values, so that many choices are equal; and pairs that only float64 tells apart
LOGLIKELIHOODS = st.sampled_from([-1.0, -1.0 - 1e-12, -2.0, -2.5, -40.25])
ROWS = st.lists(st.lists(LOGLIKELIHOODS, min_size=N_CHOICES, max_size=N_CHOICES), min_size=1, max_size=12)


def samples(rows: list[list[float]], gold: list[int], *, logged: bool) -> list[dict[str, Any]]:
    found = []
    for number, (row, right) in enumerate(zip(rows, gold, strict=True)):
        requests = [(f"q{number}", f" c{n}") for n in range(N_CHOICES)]
        own: dict[str, Any] = {
            "doc_id": number,
            "target": right,
            "arguments": requests,
            "filtered_resps": [(score, False) for score in row],
            "filter": "none",
            "metrics": ["acc"],
            "acc": 1.0 if np.argmax(row) == right else 0.0,  # lm_eval/api/task.py
        }
        if logged:
            own["target"] = str(right)
            own["filtered_resps"] = [[str(score), "False"] for score in row]
            own["arguments"] = {f"gen_args_{n}": {"arg_0": a, "arg_1": b} for n, (a, b) in enumerate(requests)}
            own = json.loads(json.dumps(own))
        found.append(own)
    return found


@settings(max_examples=30, deadline=None)
@given(ROWS, st.data())
def test_flips_and_accuracies_are_those_of_argmax(rows: list[list[float]], data: Any) -> None:
    n = len(rows)
    after = data.draw(st.lists(st.permutations([-1.0, -1.0 - 1e-12, -2.0, -2.0]), min_size=n, max_size=n))
    gold = data.draw(st.lists(st.integers(0, N_CHOICES - 1), min_size=n, max_size=n))
    first, second = (np.argmax(np.array(arm), axis=1) for arm in (rows, after))
    for logged in (False, True):
        both = [samples(arm, gold, logged=logged) for arm in (rows, after)]
        evidence = pair_samples(both[0], both[1], task="t").filters["none"].evidence
        assert evidence is not None

        def of(name: str) -> list[float]:
            return parse_metric(name).per_input(evidence).tolist()  # noqa: B023 -- called at once

        assert of("flip@1") == (first != second).tolist()
        assert of("reference.accuracy") == (first == gold).tolist()
        assert of("accuracy") == (second == gold).tolist()
        assert of("harm") == ((first == gold) & (second != gold)).tolist()
        assert of("benefit") == ((first != gold) & (second == gold)).tolist()


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_a_run_against_itself_has_no_drift(rows: list[list[float]]) -> None:
    same = samples(rows, [0] * len(rows), logged=True)
    evidence = pair_samples(same, same, task="t").filters["none"].evidence
    assert evidence is not None
    assert parse_metric("flip@1")(evidence).value == 0
    assert parse_metric("epsilon")(evidence).value == 0
    assert np.isposinf(parse_metric("separation").per_input(evidence)).all()
