"""How functions of a harness are replaced: only those that are as expected, and only once."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import pytest

from quantdrift.errors import RunError
from quantdrift.patching import errors_in_one_line, expected, is_replaced, replace


class Harness:
    def search(self, corpus: Any, top_k: int) -> Any:
        return corpus, top_k

    @staticmethod
    def judge(results: Any) -> Any:
        return results


def harness() -> type[Harness]:
    """A class of its own for every test, as they change it."""
    return type("Harness", (), dict(vars(Harness)))


def wrapper_of(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return "ours", function(*args, **kwargs)

    return wrapper


def test_a_method_is_replaced_once_and_what_it_was_can_be_had() -> None:
    kind = harness()
    original = expected(kind, "search", "corpus", "top_k")
    assert original is Harness.search
    assert not is_replaced(kind.search)
    replace(kind, "search", wrapper_of(original))
    assert is_replaced(kind.search)
    assert expected(kind, "search", "corpus") is None
    assert kind().search(["a"], 3) == ("ours", (["a"], 3))
    assert kind.search.__wrapped__ is original  # type: ignore[attr-defined]  # functools put it there
    assert not is_replaced(original)
    assert not is_replaced(kind.judge)


def test_a_static_method_stays_one() -> None:
    kind = harness()
    replace(kind, "judge", wrapper_of(expected(kind, "judge", "results")), static=True)
    assert kind.judge(1) == kind().judge(1) == ("ours", 1)
    assert is_replaced(kind.judge)


def test_what_was_wrapped_again_by_others_is_not_wrapped_twice() -> None:
    kind = harness()
    replace(kind, "search", wrapper_of(kind.search))
    kind.search = functools.wraps(kind.search)(lambda *_: 0)  # type: ignore[method-assign]
    assert expected(kind, "search", "corpus") is None


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("work", (), r"^harness has no function work$"),
        ("answer", (), r"^harness has no function answer$"),  # there, but not to be called
        ("run", ("model", "task", "cache"), r"^harness\.run has no parameter cache, task$"),
    ],
)
def test_a_module_that_is_not_as_expected_is_told(name: str, parameters: tuple[str, ...], message: str) -> None:
    module = ModuleType("harness")
    module.__dict__.update(answer=42, run=lambda model: model)
    with pytest.raises(TypeError, match=message):
        expected(module, name, *parameters)


def test_of_a_class_a_method_is_missing() -> None:
    with pytest.raises(TypeError, match=r"^Harness has no method encode$"):
        expected(Harness, "encode")


def test_a_function_that_does_not_say_what_it_takes_is_not_taken_for_another() -> None:
    module = ModuleType("harness")
    module.__dict__["run"] = next  # inspect finds no signature
    assert expected(module, "run") is next
    with pytest.raises(TypeError, match=r"harness\.run has no parameter model"):
        expected(module, "run", "model")


def test_only_our_own_errors_become_one_line_and_the_hook_is_put_in_place_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: others.append(error))
    errors_in_one_line()
    hook = sys.excepthook
    errors_in_one_line()
    assert sys.excepthook is hook
    assert is_replaced(hook)
    monkeypatch.delenv("QUANTDRIFT_DEBUG", raising=False)
    ours, other = RunError("expected a folder"), ValueError("theirs")
    for error in (ours, other):
        hook(type(error), error, None)
    assert others == [other]
    assert capsys.readouterr().err == "quantdrift: expected a folder\n"
    monkeypatch.setenv("QUANTDRIFT_DEBUG", "1")
    hook(RunError, ours, None)
    assert others == [other, ours]
