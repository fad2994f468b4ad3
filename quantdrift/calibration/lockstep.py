"""Several forward passes that wait for each other at every layer.

A layer is to be quantized when the inputs that all calibration batches give it are known, and
before any batch has gone through it. Batches are therefore computations that stop and go: each runs
in a thread of its own, one thread at a time, and stops where the forward pass arrives at a place.
So one forward pass over the calibration data serves all layers, whatever the model looks like, and
each layer sees the outputs of the already quantized ones before it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from quantdrift.calibration.torch_settings import TorchSettings

__all__ = ["Lockstep", "Runner", "lockstep"]


class _Abandoned(BaseException):
    """Ends a pass that nobody waits for any more; no `except Exception` on the way holds it."""


class Runner:
    """One computation that stops where it arrives.

    Attributes:
        place: where it waits; None before it has begun and when it has ended.
        value: what it brought there; kept until it arrives elsewhere.
    """

    def __init__(self, work: Callable[[], object], settings: TorchSettings) -> None:
        self.place: int | None = None
        self.value: object = None
        self._work, self._settings = work, settings
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._ended = self._abandoned = False
        # an uncaught interrupt of the main thread must not wait for this one
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True)

    @property
    def thread_id(self) -> int | None:
        """Which thread it runs in."""
        return self._thread.ident

    def start(self) -> None:
        """Start the thread, which waits for `advance`."""
        self._thread.start()

    def advance(self) -> None:
        """Run until the next place or the end.

        Raises:
            BaseException: whatever the computation raised.
        """
        if self._ended:
            return
        self.place = None
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait_at(self, place: int, value: object) -> None:
        """Called by the computation: hand over, and wait to be advanced."""
        if self._abandoned:  # somebody on the way held the end of it, and tried again
            raise _Abandoned
        self.place, self.value = place, value
        self._stopped.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End it where it waits."""
        if self._thread.ident is None:
            return
        if not self._ended:
            self._abandoned = True
            self._go.release()
        self._thread.join()
        self.value = None

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._abandoned:
                with self._settings.again():
                    self._work()
        except _Abandoned:
            pass
        except BaseException as error:  # raised again in the main thread
            self._error = error
        finally:
            self._ended = True
            self.place = self.value = None
            self._stopped.release()


class Lockstep:
    """The runners of one pass."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = list(runners)
        self._by_thread = {runner.thread_id: runner for runner in self.runners}

    def current(self) -> Runner | None:
        """The runner whose thread calls; None in any other thread."""
        return self._by_thread.get(threading.get_ident())

    def advance(self, runners: Sequence[Runner]) -> None:
        """Let each run to its next place, one after another."""
        for runner in runners:
            runner.advance()

    def next_place(self) -> tuple[int, list[Runner]] | None:
        """The lowest place where runners wait, and who waits there; None when all have ended."""
        waiting = [runner for runner in self.runners if runner.place is not None]
        if not waiting:
            return None
        place = min(runner.place for runner in waiting if runner.place is not None)
        return place, [runner for runner in waiting if runner.place == place]


@contextmanager
def lockstep(works: Sequence[Callable[[], object]]) -> Iterator[Lockstep]:
    """Runners for the computations, none begun; on leaving, those that still wait are ended.

    Args:
        works: what to compute; in it, `runner.wait_at` is called by whoever watches it.
    """
    settings = TorchSettings.present()
    runners = [Runner(work, settings) for work in works]
    try:
        for runner in runners:
            runner.start()
        yield Lockstep(runners)
    finally:
        for runner in runners:
            runner.abandon()
