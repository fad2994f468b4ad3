"""What the fixture gives, and what the marker does before a test's body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import pytest

from quantdrift_pytest.assertion import assert_drift
from quantdrift_pytest.errors import OURS, in_short
from quantdrift_pytest.session import Session

if TYPE_CHECKING:
    from quantdrift_pytest.drift import Drift

__all__ = ["Drifts", "hold_marks"]

_MARKED = pytest.StashKey["Drift"]()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drifts:
    """What the `drift` fixture gives: call it to measure a pair.

    Attributes:
        session: that keeps what was measured.
        item: the test that takes the fixture.
    """

    session: Session = field(repr=False)
    item: pytest.Item = field(repr=False)

    def __call__(
        self,
        spec: str,
        *,
        data: str | PathLike[str] | None = None,
        task: str | None = None,
        split: str = "test",
        **settings: Any,
    ) -> Drift:
        """A measurement, made now or read back.

        Args:
            spec: `MODEL@SCHEME`, or `MODEL vs CHECKPOINT`.
            data: folder of the data; a path begins at pytest's rootdir.
            task: name of a task, in place of a folder.
            split: of the folder.
            settings: k, batch_size, noise_floor, seed, device, revision.

        Raises:
            QuantDriftError: spec, data, model or a setting cannot be used.
        """
        __tracebackhide__ = True
        from quantdrift_pytest.measuring import measured  # noqa: PLC0415 -- numpy, pyarrow

        try:
            return measured(
                self.session, spec, data=data, task=task, split=split, settings=settings
            )
        except OURS as error:
            raise in_short(error) from None

    @property
    def current(self) -> Drift:
        """What the test's marker has measured; of several markers, the one nearest to the test.

        Raises:
            pytest.UsageError: no marker of the test names a spec.
        """
        __tracebackhide__ = True
        found = self.item.stash.get(_MARKED, None)
        if found is None:
            raise pytest.UsageError(
                "drift.current is what the test's marker has measured, and it has none with a "
                'spec: expected @pytest.mark.drift("minilm@W4-rtn", data="data/faq", flip=0.25); '
                'or measure in the test: drift("minilm@W4-rtn", data="data/faq")'
            )
        return found


def hold_marks(item: pytest.Item, marks: Sequence[pytest.Mark]) -> None:
    """Assert what markers ask, that nearest to the test last.

    Args:
        item: the test.
        marks: its markers, the nearest first.

    Raises:
        pytest.UsageError: a marker names no pair; and what `assert_drift` raises.
    """
    __tracebackhide__ = True
    for mark in reversed(marks):
        if len(mark.args) > 1 or not (mark.args or "spec" in mark.kwargs):
            given = ", ".join([*map(repr, mark.args), *mark.kwargs]) or "nothing"
            raise pytest.UsageError(
                "@pytest.mark.drift takes the pair first and all else by name, such as "
                f'("minilm@W4-rtn", data="data/faq", flip=0.25); got {given}'
            )
        item.stash[_MARKED] = assert_drift(*mark.args, **mark.kwargs)
