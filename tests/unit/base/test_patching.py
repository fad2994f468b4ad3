"""How functions of a harness are replaced: only those that are as expected, and only once."""

import sys
from typing import Any

import pytest

from quantdrift.base.errors import RunError
from quantdrift.base.patching import errors_in_one_line, is_replaced, wrap


class Harness:
    def search(self, corpus: Any, top_k: int) -> Any:
        return corpus, top_k

    @staticmethod
    def judge(results: Any) -> Any:
        return results


def test_a_method_is_replaced_once_and_what_it_was_can_be_had() -> None:
    kind = type("Harness", (), dict(vars(Harness)))  # a class of its own, as it is changed
    for _ in range(2):  # once
        wrap(kind, "search", ("corpus", "top_k"), lambda original, *args: ("ours", original(*args)))
    assert is_replaced(kind.search)
    assert kind().search(["a"], 3) == ("ours", (["a"], 3))
    assert kind.search.__wrapped__ is Harness.search
    assert not is_replaced(Harness.search)
    assert not is_replaced(kind.judge)


def test_what_is_not_as_expected_is_not_replaced() -> None:
    with pytest.raises(TypeError, match="no function find"):
        wrap(Harness, "find", (), lambda original, *args: None)
    with pytest.raises(TypeError, match="no parameter k"):
        wrap(Harness, "search", ("k",), lambda original, *args: None)


def test_our_own_errors_become_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert (others, capsys.readouterr().err) == ([other], "quantdrift: expected a folder\n")
    monkeypatch.setenv("QUANTDRIFT_DEBUG", "1")
    hook(RunError, ours, None)
    assert others == [other, ours]
