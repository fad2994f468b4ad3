"""How sure a model looks: by hand, and against scipy's softmax and entropy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from quantdrift.conformal import CONFIDENCES, ConfidenceName, as_array, confidence_in, confidence_of, softmax_confidence
from quantdrift.engine.classes import evidence_of_logits
from quantdrift.errors import RunError, ScoreError, UnknownNameError

SCORES = np.array([[1.0, 4.0, 2.5], [0.0, 0.0, -1.0]])


def test_the_gap_is_first_minus_second_in_any_order() -> None:
    assert confidence_of(SCORES).tolist() == [1.5, 0.0]
    assert confidence_of(SCORES[:, [2, 0, 1]]).tolist() == [1.5, 0.0]
    assert confidence_of(SCORES[:, :2]).tolist() == [3.0, 0.0]


@pytest.mark.parametrize("n_items", [2, 3, 77])
def test_softmax_confidences_are_scipys(n_items: int) -> None:
    scores = np.random.default_rng(0).normal(scale=4, size=(50, n_items))
    p = softmax(scores, axis=1)
    assert np.allclose(confidence_of(scores, "msp"), p.max(axis=1))
    assert np.allclose(confidence_of(scores, "entropy"), -entropy(p, axis=1), atol=1e-12)


def test_even_scores_are_least_sure_and_far_ones_do_not_overflow() -> None:
    even = softmax_confidence(np.zeros((1, 4)))
    assert even.msp[0] == pytest.approx(0.25)
    assert even.entropy[0] == pytest.approx(np.log(4))
    far = softmax_confidence([[2000.0, 0.0, -2000.0]])
    assert (far.msp[0], far.entropy[0]) == (1.0, 0.0)


@pytest.mark.parametrize("name", CONFIDENCES)
def test_larger_is_surer(name: ConfidenceName) -> None:
    leads = np.array([[lead, 0.0, 0.0] for lead in (0.1, 0.5, 2.0, 9.0)])
    assert (np.diff(confidence_of(leads, name)) > 0).all()


@pytest.mark.parametrize(
    "scores",
    [
        [1.0, 2.0],
        [[1.0], [2.0]],
        [[1.0, math.nan]],
        [[math.nan, 3.0, 2.0, 1.0]],
        [[1.0, math.inf]],
        [[-math.inf, 1.0]],
        [[1.0, 2.0], [3.0]],
        [["a", "b"]],
    ],
)
@pytest.mark.parametrize("name", CONFIDENCES)
def test_scores_that_have_no_lead_are_refused(scores: Any, name: ConfidenceName) -> None:
    with pytest.raises(ScoreError, match="expected"):
        confidence_of(scores, name)


def test_what_was_masked_behind_the_first_two_does_not_matter_to_the_gap() -> None:
    masked = [[4.0, -math.inf, 2.5]]
    assert confidence_of(masked).tolist() == [1.5]


def test_a_masked_class_has_no_part_in_the_softmax() -> None:
    masked, without = [[4.0, -math.inf, 2.5]], [[4.0, 2.5]]
    assert confidence_of(masked, "msp") == pytest.approx(softmax(without).max())
    assert confidence_of(masked, "entropy") == pytest.approx(-entropy(softmax(without[0])))


def test_the_gap_does_not_change_the_scores_it_is_of() -> None:
    served = np.array([[1.0, 3.0, 2.5]], dtype=np.float32)
    assert confidence_of(served).tolist() == [0.5]
    assert served.tolist() == [[1.0, 3.0, 2.5]]
    assert confidence_of([[3, 1, 1]]).tolist() == [2]
    assert confidence_of(np.zeros((0, 3))).tolist() == []


@pytest.mark.parametrize("name", CONFIDENCES)
def test_tensors_are_read_whatever_their_type(name: ConfidenceName) -> None:
    tensor = torch.tensor([[1.5, 0.25, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    assert as_array(tensor).tolist() == [[1.5, 0.25, -2.0]]
    assert confidence_of(tensor, name) == confidence_of([[1.5, 0.25, -2.0]], name)  # type: ignore[arg-type]  # of a tensor


def evidence(classes: int = 3) -> Any:
    rng = np.random.default_rng(1)
    reference, candidate = rng.normal(size=(2, 6, classes)).astype(np.float32)
    made = evidence_of_logits(
        reference,
        candidate,
        input_ids=[f"i{number}" for number in range(6)],
        classes=[f"c{number}" for number in range(classes)],
    )
    return made, candidate


@pytest.mark.parametrize("name", CONFIDENCES)
def test_of_a_run_it_is_the_candidates(name: ConfidenceName) -> None:
    made, candidate = evidence()
    assert np.allclose(confidence_in(made, name), confidence_of(candidate, name), atol=1e-6)


def test_a_run_of_similarities_has_no_probabilities() -> None:
    made, _ = evidence(classes=1)  # one class leaves no probabilities either
    for name in ("msp", "entropy"):
        with pytest.raises(RunError, match="Use gap"):
            confidence_in(made, name)  # type: ignore[arg-type]  # a loop over names
    with pytest.raises(UnknownNameError, match="msp"):
        confidence_in(made, "mps")  # type: ignore[arg-type]  # the point of the test
