"""`assert_drift` and the fixture; numpy is imported once a test calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from quantdrift_pytest.session import Session, current, tersely

if TYPE_CHECKING:
    from quantdrift.data.tables import Columns
    from quantdrift.gate.rules import Rule
    from quantdrift_pytest.drift import Drift


@tersely
def assert_drift(
    spec: str,
    *,
    data: str | PathLike[str] | None = None,
    columns: Columns | None = None,
    task: str | None = None,
    split: str = "test",
    baseline: str | PathLike[str] | None = None,
    rules: str | Rule | Iterable[str | Rule] = (),
    slices: Mapping[str, str | Sequence[str]] | None = None,
    alpha: float = 0.05,
    accept_underpowered: bool = False,
    settings: Mapping[str, Any] | None = None,
    **limits: float,
) -> Drift:
    """Assert that quantization changes no more than is allowed.

    A measurement of this session or an earlier one is not made again.

    Args:
        spec: `MODEL@SCHEME`, or `MODEL vs CHECKPOINT`.
        data: folder or table of the data, relative to pytest's rootdir.
        columns: of a table, where their names do not tell: "query=question,document=answer".
        task: name of a task, in place of a folder.
        split: split of the folder's data.
        baseline: committed file to compare with, input by input, relative to the rootdir. `pytest
            --quantdrift-update` writes it.
        rules: rules as in `quantdrift gate`; by default, with a baseline, that the run is no worse than it.
        slices: name to patterns of input ids, for rules on a part of the inputs.
        alpha: level of the tests, over all rules.
        accept_underpowered: whether too few inputs give a warning instead of a failure.
        settings: settings of the measurement: k, batch_size, noise_floor, seed, device, revision, keep_own_ids.
        limits: limits by metric: `flip=0.25` is the rule `flip@1 <= 0.25`, `ndcg_at_10=0.6` is `ndcg@10 >= 0.6`.

    Returns:
        The measurement, for further assertions.

    Raises:
        AssertionError: a rule does not hold, or cannot be judged.
        pytest.UsageError: no rule, limit or baseline is given, or there is no session.
        QuantDriftError: spec, data, model, a rule or the baseline cannot be used.
    """
    __tracebackhide__ = True
    session = current()
    from quantdrift_pytest.drift import ask, measured, settle  # noqa: PLC0415 -- numpy, pyarrow

    # a question that cannot be answered is refused before anything is measured
    question = ask(session, rules=rules, baseline=baseline, slices=slices, alpha=alpha, **limits)
    drift = measured(session, spec, settings or {}, data=data, columns=columns, task=task, split=split)
    settle(drift, question, accept_underpowered=accept_underpowered)
    return drift


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drifts:
    """The value of the `drift` fixture: call it to measure a pair."""

    session: Session = field(repr=False)

    @tersely
    def __call__(
        self,
        spec: str,
        *,
        data: str | PathLike[str] | None = None,
        columns: Columns | None = None,
        task: str | None = None,
        split: str = "test",
        **settings: Any,
    ) -> Drift:
        """Return a measurement, made now or read back; arguments as of `assert_drift`."""
        __tracebackhide__ = True
        from quantdrift_pytest.drift import measured  # noqa: PLC0415 -- numpy, pyarrow

        return measured(self.session, spec, settings, data=data, columns=columns, task=task, split=split)
