"""--use_cache with a pair: both arms are filled in, and nobody takes another's answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quantdrift_lm_eval.model import QuantizedPairLM
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

KINDS = ("questions", "texts", "sums")
N = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tasks(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"), model, N)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests the model itself was given, call by call."""
    calls: list[int] = []
    for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        original = getattr(QuantizedPairLM.__mro__[1], name)

        def counted(self: Any, requests: Sequence[Any], *, _run: Any = original, **more: Any) -> Any:
            calls.append(len(requests))
            return _run(self, requests, **more)

        monkeypatch.setattr(QuantizedPairLM.__mro__[1], name, counted)
    return calls


def run(tasks: Path, model: str, scheme: str, cache: Path, **more: Any) -> dict[str, Any]:
    arguments = {"pretrained": model, "scheme": scheme}
    return evaluate("quantdrift", tasks, KINDS, model_args=arguments, use_cache=str(cache), **more)


def rows(results: dict[str, Any]) -> dict[str, Any]:
    return {
        task: {name: value for name, value in row.items() if name != "alias"}
        for task, row in results["results"].items()
    }


def test_answers_are_filled_in_for_both_arms(tasks: Path, model: str, tmp_path: Path, asked: list[int]) -> None:
    cache = tmp_path / "answers"
    plain = evaluate("quantdrift", tasks, KINDS, model_args=f"pretrained={model},scheme=W4")
    asked.clear()
    first = run(tasks, model, "W4", cache)
    assert asked == [3 * N, 3 * N, N, N, N, N]  # reference and candidate, of each kind of request
    asked.clear()
    again = run(tasks, model, "W4", cache)
    assert asked == []
    assert rows(first) == rows(again) == rows(plain)
    assert first["results"]["tiny_texts"]["drift_change_loglikelihood,none"] != 0


def test_the_next_scheme_needs_the_candidate_only(tasks: Path, model: str, tmp_path: Path, asked: list[int]) -> None:
    cache = tmp_path / "answers"
    four = run(tasks, model, "W4", cache)
    asked.clear()
    two = run(tasks, model, "W2", cache)
    assert asked == [3 * N, N, N]
    key = "drift_reference_acc,none"
    assert two["results"]["tiny_questions"][key] == four["results"]["tiny_questions"][key]
    plain = evaluate("quantdrift", tasks, KINDS, model_args=f"pretrained={model},scheme=W2")
    assert rows(two) == rows(plain)


def test_a_stock_run_and_a_pair_share_a_file_but_no_answer(tasks: Path, model: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "answers")
    stock = evaluate("hf", tasks, KINDS, model_args=f"pretrained={model}", use_cache=cache)
    paired = run(tasks, model, "W2", tmp_path / "answers")
    alone = evaluate("quantdrift", tasks, KINDS, model_args=f"pretrained={model},scheme=W2")
    assert rows(paired) == rows(alone)
    again = evaluate("hf", tasks, KINDS, model_args=f"pretrained={model}", use_cache=cache)
    assert rows(again) == rows(stock)
    assert rows(stock)["tiny_questions"]["acc,none"] == (rows(paired)["tiny_questions"]["drift_reference_acc,none"])
