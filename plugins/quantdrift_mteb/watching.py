"""Listening to a task of mteb's that is no search, in both arms, without changing what it does.

What a task compares (embeddings, similarities) passes through methods of its own. While a pair is
evaluated these are shadowed on the task object: the original runs as ever, then what it was given
is noted. A finished evaluation is worth more than its drift, so whatever goes wrong in the noting
costs the drift of that split and subset, and one line says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.display import clean, complain
from quantdrift.engine.pair import Arm
from quantdrift.errors import UnsupportedError
from quantdrift.evidence import Evidence

Where = tuple[str, str]
"""Split and subset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One call of the method that is listened to.

    Attributes:
        arguments: by name of the parameter.
        result: what it returned.
    """

    arguments: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both arms on one split and subset.

    Attributes:
        evidence: the per-input record; None where the task is one ranking.
        keys: figures for mteb's result beside those of the evidence.
        reading: how the evidence's scores were had, for the record.
        n_items: how many items each input ranks.
        searched: whether mteb's own figures are of the same ranking.
    """

    evidence: Evidence | None
    keys: Mapping[str, Any]
    reading: Mapping[str, Any] = field(default_factory=dict)
    n_items: int = 0
    searched: bool = False


class Listener(Protocol):
    """What is made of a family of tasks.

    Attributes:
        method: that is listened to.
        holder: the class that has it; None if that is the task.
    """

    method: str
    holder: type | None

    def hear(self, heard: Heard, so_far: list[Any], arm: Arm) -> None:
        """Add what is needed of a call to what is known of this arm and subset."""

    def reference(self, so_far: list[Any], where: Where) -> Any:
        """What the candidate will be compared with; it is kept, the rest is not."""

    def candidate(self, so_far: list[Any], where: Where, kept: Any) -> Mapping[Where, Compared]:
        """The comparison, by the split and subset that mteb has scores of."""


@dataclass(slots=True)
class Watch:
    """What has been heard of one task.

    Attributes:
        task: mteb's.
        listener: of its family; None hears nothing.
        kept: of the reference.
        compared: of both arms.
        failed: where there is no comparison.
    """

    task: Any
    listener: Listener | None
    kept: dict[Where, Any] = field(default_factory=dict)
    compared: dict[Where, Compared] = field(default_factory=dict)
    failed: set[Where] = field(default_factory=set)

    def finish(self, arm: Arm, where: Where, so_far: list[Any]) -> None:
        """Take in what one arm's evaluation of a subset gave."""
        assert self.listener is not None  # nothing is heard otherwise
        if not so_far:
            raise UnsupportedError(f"mteb did not call {self.listener.method}")
        if arm == "reference":
            self.kept[where] = self.listener.reference(so_far, where)
        elif where in self.kept:
            kept = self.kept.pop(where)
            self.compared |= self.listener.candidate(so_far, where, kept)

    @contextmanager
    def carefully(self, where: Where) -> Iterator[None]:
        """Inside, what goes wrong costs the comparison of this subset, and one line says why."""
        try:
            yield
        except Exception as error:  # whatever it is: the evaluation itself went well
            self.failed.add(where)
            place = f"{self.task.metadata.name} {'/'.join(where)}"
            why = str(error) or type(error).__name__
            complain(clean(f"no drift is measured on {place}: {why}"))


_SUBSETS = ("_evaluate_subset", "_evaluate_subset_cross_validation")
"""What mteb evaluates one subset of a split with."""


@contextmanager
def watched(watch: Watch, arm: Arm) -> Iterator[None]:
    """Inside, what the task does in one arm is heard.

    Args:
        watch: of the task.
        arm: that is evaluated.
    """
    listener, task = watch.listener, watch.task
    if listener is None:
        yield
        return
    current: tuple[Where, list[Any]] | None = None

    def listening(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if current is not None and current[0] not in watch.failed:
                with watch.carefully(current[0]):
                    given = signature.bind(*args, **kwargs).arguments
                    listener.hear(Heard(arguments=given, result=result), current[1], arm)
            return result

        return call

    def subset(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal current
            where = (str(kwargs.get("hf_split")), str(kwargs.get("hf_subset")))
            current = (where, [])
            try:
                result = original(*args, **kwargs)
                if where not in watch.failed:
                    with watch.carefully(where):
                        watch.finish(arm, *current)
            finally:
                current = None
            return result

        return call

    with ExitStack() as stack:
        stack.enter_context(_shadowed(listener.holder or task, listener.method, listening))
        for name in _SUBSETS:
            stack.enter_context(_shadowed(task, name, subset))
        yield


@contextmanager
def _shadowed(holder: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, a method of one object, or of a class, is another."""
    original = getattr(holder, name, None)
    if original is None or (name in vars(holder) and not isinstance(holder, type)):
        yield  # not there, or somebody else's doing: it stays
        return
    setattr(holder, name, wrap(original))
    try:
        yield
    finally:
        if isinstance(holder, type):
            setattr(holder, name, original)
        else:
            delattr(holder, name)


def as_vectors(embeddings: Any) -> NDArray[np.float32]:
    """What an encoder of mteb's returned, as float32 [n, dim]."""
    if isinstance(embeddings, torch.Tensor):
        embeddings = embeddings.detach().float().cpu().numpy()
    return np.asarray(embeddings, dtype=np.float32)
