"""Many inputs as requests: how many in each, and several at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quantdrift.models.endpoint.answers import OneInputError
from quantdrift.models.endpoint.refusals import TooMuchError

__all__ = ["CHARACTERS", "Limit", "batches", "in_halves", "side_by_side"]

Result = TypeVar("Result")
Vectors = NDArray[np.float32]

CHARACTERS = 200_000
"""Of one request at most: in any script less than the megabyte that web servers let through."""


def batches(lengths: Sequence[int], *, count: int, characters: int = CHARACTERS) -> list[range]:
    """Inputs in a row cut into requests that are small enough; a long input has one to itself.

    >>> batches([5, 5, 5, 90, 1], count=2, characters=50)
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]

    Args:
        lengths: characters of each input.
        count: inputs of a request, at most.
        characters: of a request, at most.
    """
    found = []
    start = total = 0
    for at, length in enumerate(lengths):
        if at > start and (at - start >= count or total + length > characters):
            found.append(range(start, at))
            start, total = at, 0
        total += length
    if len(lengths) > start:
        found.append(range(start, len(lengths)))
    return found


@dataclass(slots=True)
class Limit:
    """How many inputs a server takes in a request, as far as it has been found out.

    Attributes:
        most: inputs, at most.
    """

    most: float = inf

    def learn(self, n: int) -> None:
        """Note that a number was not too much after a larger one was."""
        self.most = min(self.most, n)


def in_halves(
    embed: Callable[[Sequence[str]], Vectors], texts: Sequence[str], part: range, limit: Limit
) -> Vectors:
    """The embeddings of some texts; where they are too much for a request, of either half.

    Args:
        embed: embeds texts in one request.
        texts: of which `part` is embedded.
        part: positions in them.
        limit: what is known of the server, and is learned here.

    Raises:
        OneInputError: a text is refused by itself, or there is no embedding of it.
        ServerError: the server cannot be reached, refuses, or answers something else.
    """
    half = (len(part) + 1) // 2
    halves = (part[:half], part[half:])
    if len(part) > limit.most:
        return np.concatenate([in_halves(embed, texts, one, limit) for one in halves])
    try:
        return embed([texts[at] for at in part])
    except OneInputError as error:
        raise OneInputError(part[error.number], error.reason) from error
    except TooMuchError as error:
        if len(part) == 1:
            raise OneInputError(part[0], f"the server {error.reason}") from error
        both = [in_halves(embed, texts, one, limit) for one in halves]
        limit.learn(half)
        return np.concatenate(both)


def side_by_side(calls: Sequence[Callable[[], Result]], width: int) -> list[Result]:
    """The results of calls in their order, some of which run at the same time.

    The first error, or Ctrl-C, is raised at once: no further call begins, and nobody waits for
    those under way, as their threads do not keep the process alive.

    Args:
        calls: what is called.
        width: how many at a time.
    """
    if width == 1 or len(calls) == 1:
        return [call() for call in calls]
    done: queue.Queue[tuple[int, Result | None, BaseException | None]] = queue.Queue()
    stopped = threading.Event()
    numbers = iter(range(len(calls)))
    lock = threading.Lock()

    def work() -> None:
        for number in _shared(numbers, lock):
            if stopped.is_set():
                return
            try:
                done.put((number, calls[number](), None))
            except BaseException as error:  # raised again where it is waited for
                done.put((number, None, error))
                return

    for _ in range(min(width, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[int, Result | None] = {}
    try:
        while len(results) < len(calls):
            number, result, error = done.get()
            if error is not None:
                raise error
            results[number] = result
    finally:
        stopped.set()
    return [results[number] for number in range(len(calls))]  # type: ignore[misc] # none is missing


def _shared(numbers: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    """What several threads take from, each number once."""
    while True:
        with lock:
            number = next(numbers, None)
        if number is None:
            return
        yield number
