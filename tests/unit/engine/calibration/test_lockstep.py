"""Computations that stop and go: order, errors, and that nothing is left running."""

from __future__ import annotations

import contextvars
import threading

import pytest
import torch

from quantdrift.engine.calibration.in_order import Lockstep, lockstep


def wait(steps: Lockstep) -> None:
    """Stop the calling runner at place 0."""
    runner = steps.current()
    assert runner is not None
    runner.wait_at(0, None)


def test_each_runs_to_its_next_place_one_after_another() -> None:
    said: list[str] = []

    def work(name: str) -> None:
        for place in (0, 1):
            said.append(f"{name}{place}")
            runner = steps.current()
            assert runner is not None
            runner.wait_at(place, name)
        said.append(f"{name} ends")

    with lockstep([lambda: work("a"), lambda: work("b")]) as steps:
        steps.advance(steps.runners)
        assert said == ["a0", "b0"]
        place, here = steps.next_place() or (None, [])
        assert (place, [runner.value for runner in here]) == (0, ["a", "b"])
        steps.advance(here[:1])
        assert said == ["a0", "b0", "a1"]
        assert [len(found) for found in [(steps.next_place() or (0, []))[1]]] == [1]  # b, at 0
        steps.advance(here[1:])
        steps.advance((steps.next_place() or (0, []))[1])
    assert said == ["a0", "b0", "a1", "b1", "a ends", "b ends"]
    assert steps.next_place() is None


def test_an_error_in_one_comes_out_and_the_others_are_ended() -> None:
    ended: list[str] = []

    def waits() -> None:
        try:
            wait(steps)
        except Exception:  # what code on the way may hold
            pytest.fail("an abandoned pass is not to be caught")
        finally:
            ended.append("waits")

    def fails() -> None:
        raise ValueError("no such token")

    with pytest.raises(ValueError, match="no such token"), lockstep([waits, fails]) as steps:
        steps.advance(steps.runners)
    assert ended == ["waits"]
    assert not any(runner._thread.is_alive() for runner in steps.runners)


def test_an_interrupt_leaves_no_thread_behind() -> None:
    before = threading.active_count()

    def interrupted() -> None:
        with lockstep([lambda: wait(steps)] * 3) as steps:
            steps.advance(steps.runners[:2])  # the third has not begun
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == before


def test_another_thread_is_no_runner() -> None:
    found: list[object] = []
    with lockstep([lambda: found.append(steps.current())]) as steps:
        assert steps.current() is None
        steps.advance(steps.runners)
    assert found == [steps.runners[0]]


def test_runners_have_the_main_threads_settings() -> None:
    """Context variables and the number of torch threads; gradients are off."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    found: list[object] = []

    def look() -> None:
        found.extend([variable.get(), torch.get_num_threads(), torch.is_grad_enabled()])

    n_threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with lockstep([look]) as steps:
            steps.advance(steps.runners)
    finally:
        torch.set_num_threads(n_threads)
    assert found == ["set", 3, False]
