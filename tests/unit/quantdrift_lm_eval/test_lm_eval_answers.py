from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.models.utils import normalize_gen_kwargs

from quantdrift_lm_eval.answers import ArmCache, is_drawn
from quantdrift_lm_eval.prompts import prompts_of


def request(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


def alone(here: bool) -> bool:
    return here


class Model:
    """Answers with the number of the call and the request's last argument."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []

    def __call__(self, some: Sequence[Any]) -> list[Any]:
        self.asked.append([one.args[-1] for one in some])
        return [(len(self.asked), one.args[-1]) for one in some]


REQUESTS = [request("c", " a"), request("c", " b"), request("d", " a")]


def test_an_answer_is_kept_as_soon_as_there_is_one() -> None:
    kept: dict[str, Any] = {}
    hook = ArmCache(kept, "w")

    def breaks(some: Sequence[Any]) -> list[Any]:
        hook.add_partial("loglikelihood", ("c", " a"), (-1.0, True))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hook.fill("loglikelihood", REQUESTS, breaks, alone)
    again = hook.fill("loglikelihood", REQUESTS, Model(), alone)
    assert again[1] == 1
    assert again[0][0] == (-1.0, True)


def test_prompts_are_what_stands_before_an_answer() -> None:
    requests = [
        request("the question", " choice one"),
        request("the question", " choice two"),
        request("", "a sentence whose choice is the whole"),
        request("a document whose perplexity is measured"),
        request("a sum", {"until": ["\n"]}),
    ]
    assert prompts_of(requests) == ["a sum", "the question"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_sample": True},
        {"do_sample": False},
        {"do_sample": True, "temperature": 0.7},
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"do_sample": None, "temperature": 1},
    ],
)
def test_an_answer_is_drawn_where_lm_eval_draws_it(settings: dict[str, Any]) -> None:
    wanted = normalize_gen_kwargs(settings)["do_sample"]
    assert is_drawn("generate_until", ("prompt", settings)) is wanted
    kept = ArmCache({}, "weights").key("generate_until", ("prompt", settings))
    assert (kept is None) is wanted
