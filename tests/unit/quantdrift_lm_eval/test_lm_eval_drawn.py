"""Which answers of lm-eval are drawn at random, and what follows for keeping and replaying them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.models.utils import normalize_gen_kwargs

from quantdrift_lm_eval.answers import ArmCache
from quantdrift_lm_eval.randomness import is_drawn
from quantdrift_lm_eval.replay import all_answered


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"until": ["|"]},
        {"do_sample": True},
        {"do_sample": False},
        {"do_sample": True, "temperature": 0.7},
        {"do_sample": False, "temperature": 0.7},
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"temperature": 0},
        {"do_sample": None, "temperature": 1},
    ],
)
def test_an_answer_is_drawn_where_lm_eval_draws_it(settings: dict[str, Any]) -> None:
    wanted = normalize_gen_kwargs(settings)["do_sample"]
    assert is_drawn("generate_until", ("prompt", settings)) is wanted
    kept = ArmCache({}, "weights").key("generate_until", ("prompt", settings))
    assert (kept is None) is wanted


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling"])
def test_log_likelihoods_are_never_drawn(kind: str) -> None:
    assert not is_drawn(kind, ("prompt", " answer")[: 2 if kind == "loglikelihood" else 1])


def test_a_task_is_replayed_where_all_its_requests_have_an_answer() -> None:
    requests = [SimpleNamespace(), SimpleNamespace()]
    task = SimpleNamespace(instances=requests)
    first, second = ({id(request): ["a"]} for request in requests)
    assert all_answered(task, first | second)
    assert not all_answered(task, second)
    assert not all_answered(task, {})
