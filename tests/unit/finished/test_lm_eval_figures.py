from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quantdrift.finished.lm_eval_evidence import (
    PairedFilter,
    details_of,
    medians_of,
    pair_samples,
    per_document,
    pooled_details,
    scores_of,
    with_noise,
)
from support.lm_eval_log import document, generated, question, text

BEFORE = [question(0, [-1.0, -2.0]), question(1, [-3.0, -1.0], 1), question(2, [-5.0, -4.0])]
AFTER = [question(0, [-3.0, -2.5]), question(1, [-3.0, -2.0], 1), question(2, [-1.0, -4.0])]


def paired(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> PairedFilter:
    return pair_samples(before, after, task="t").filters["none"]


def test_figures_of_every_question() -> None:
    of = paired(BEFORE, AFTER)
    assert {name: column.tolist() for name, column in per_document(of).items()} == {
        "drift_flip_at_1": [1, 0, 1],
        "drift_at_risk": [1, 0, 1],
        "drift_right_to_wrong_acc": [1, 0, 0],
        "drift_wrong_to_right_acc": [0, 0, 1],
    }
    assert {name: column.tolist() for name, column in scores_of(of).items()} == {
        "drift_gap": [1, 2, 1],
        "drift_epsilon": [2, 1, 4],
        "drift_separation": [0.25, 1, 0.125],
    }


def test_figures_of_one_text() -> None:
    of = paired([text(0, -1.0, True), text(1, -4.0, True)], [text(0, -3.0, False), text(1, -3.5, True)])
    assert {name: column.tolist() for name, column in per_document(of).items()} == {
        "drift_flip_at_1": [1, 0],
        "drift_right_to_wrong_acc": [1, 0],
        "drift_wrong_to_right_acc": [0, 0],
        "drift_change_loglikelihood": [-2, 0.5],
    }
    medians = medians_of([of])
    assert list(medians) == ["drift_epsilon_median"]
    assert medians["drift_epsilon_median"].value == 1.25


def test_a_perplexity_has_a_change_and_nothing_else() -> None:
    of = paired([document(0, -70.0)], [document(0, -72.0)])
    assert {name: column.tolist() for name, column in per_document(of).items()} == {"drift_change_loglikelihood": [-2]}
    details = details_of(of, warn=pytest.fail)
    assert details["no_evidence"] == "a document's perplexity has no answer that could change"
    assert details["drift_epsilon_median"] == 2
    assert "drift_flip_at_1" not in details


def test_generated_text_has_no_scores() -> None:
    of = paired([generated(0, "4", 1.0), generated(1, "5", 0.0)], [generated(0, "3", 0.0), generated(1, "5", 0.0)])
    assert set(per_document(of)) == {
        "drift_flip_at_1",
        "drift_right_to_wrong_exact_match",
        "drift_wrong_to_right_exact_match",
    }
    assert medians_of([of]) == {}
    assert scores_of(of) == {}
    assert details_of(of, warn=pytest.fail)["drift_separation_median"] is None


def test_details_have_the_metrics_of_both_arms_with_intervals() -> None:
    details = details_of(paired(BEFORE, AFTER), warn=pytest.fail)
    assert details["kind"] == "multiple_choice"
    assert details["drift_n_inputs"] == 3
    assert details["judged_by"] == "acc"
    assert details["drift_reference_acc"] == pytest.approx(2 / 3)
    assert details["drift_change_acc"] == 0
    assert details["drift_separation_median"] == 0.25
    assert details["drift_harm"] == details["drift_right_to_wrong_acc"] == pytest.approx(1 / 3)
    # Wilson, 1 of 3: center (1/3 + z^2/6) / (1 + z^2/3), as scipy has it
    assert details["drift_right_to_wrong_acc_low"] == pytest.approx(0.0615, abs=1e-4)
    assert details["drift_right_to_wrong_acc_high"] == pytest.approx(0.7923, abs=1e-4)


def test_several_tasks_are_pooled_over_their_documents() -> None:
    small, large = paired(BEFORE[1:2], AFTER[1:2]), paired(BEFORE, AFTER)
    pooled = pooled_details([small, large])
    assert pooled["drift_n_inputs"] == 4
    assert pooled["drift_flip_at_1"] == 2 / 4  # and not the mean of 0 and 2/3
    assert pooled["drift_right_to_wrong_acc"] == 1 / 4
    # separations 1, 1/4, 1, 1/8
    assert pooled["drift_separation_median"] == 0.625
    assert medians_of([small, large])["drift_separation_median"].value == 0.625


def test_a_group_of_perplexities_has_no_flips() -> None:
    pooled = pooled_details([paired([document(0, -70.0)], [document(0, -72.0)])])
    assert pooled["drift_flip_at_1"] is None
    assert pooled["drift_change_loglikelihood"] == -2


def test_an_exact_copy_has_no_finite_separation() -> None:
    of = paired(BEFORE, BEFORE)
    assert medians_of([of]) == {}
    assert np.isposinf(scores_of(of)["drift_separation"]).all()
    assert details_of(of, warn=pytest.fail)["drift_separation_median"] is None


def test_a_change_to_minus_infinity_is_left_out() -> None:
    of = paired([text(0, -1.0, True)], [text(0, -math.inf, False)])
    assert "drift_change_loglikelihood" not in per_document(of)
    assert "drift_epsilon_median" not in medians_of([of])


def test_the_noise_floor_is_of_the_reference_against_itself() -> None:
    before, again = (pair_samples(BEFORE, arm, task="t") for arm in (AFTER, BEFORE))
    still = with_noise(before, again).filters["none"]
    assert per_document(still)["drift_noise_floor"].tolist() == [0, 0, 0]
    noisy = with_noise(before, before).filters["none"]
    assert per_document(noisy)["drift_noise_floor"].tolist() == [1, 0, 1]
    assert noisy.evidence is not None
    assert noisy.evidence.noise is not None
    assert noisy.evidence.noise.epsilon.tolist() == [2, 1, 4]
