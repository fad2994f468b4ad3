"""A measured pair, as a test sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING

from quantdrift.finished.changed import Changed, changed_inputs
from quantdrift.gate.judge import GateResult
from quantdrift.gate.rules import Rule
from quantdrift.gate.target import Target
from quantdrift.metrics import parse_metric
from quantdrift.runs import Run
from quantdrift.statistics import Estimate
from quantdrift_pytest.errors import OURS, in_short
from quantdrift_pytest.session import Session

if TYPE_CHECKING:
    from quantdrift_pytest.question import Question

__all__ = ["Drift", "UnderpoweredWarning"]

Rules = str | Rule | Iterable[str | Rule]


class UnderpoweredWarning(UserWarning):
    """There are too few inputs to tell whether a rule holds, which the test accepts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """A measured pair.

    Attributes:
        run: the run folder.
        target: its evidence, as the gate takes it.
        kept: whether it was measured before, and not for this test.
        session: that it belongs to.
    """

    run: Run
    target: Target = field(repr=False)
    kept: bool
    session: Session = field(repr=False)

    @property
    def spec(self) -> str:
        """The pair."""
        return self.target.identity.spec

    @property
    def data(self) -> str:
        """Name of the data, with its split."""
        return self.target.identity.data

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return sum(evidence.n_inputs for evidence in self.target.evidence)

    @property
    def changed(self) -> list[Changed]:
        """The inputs whose first answer changed: right ones that became wrong first."""
        return [each for evidence in self.target.evidence for each in changed_inputs(evidence)]

    def estimate(self, metric: str) -> Estimate:
        """A metric with its 95 % interval; undefined with a reason.

        Args:
            metric: for example `gold_lost@10`.

        Raises:
            UnknownNameError: there is no such metric; carries the nearest names.
            MetricError: it cannot be computed as asked for.
        """
        __tracebackhide__ = True
        try:
            return parse_metric(metric).over(self.target.evidence)
        except OURS as error:
            raise in_short(error) from None

    def value(self, metric: str) -> float | None:
        """A metric; None where it is undefined.

        Args:
            metric: for example `flip@1`.

        Raises:
            As `estimate`.
        """
        __tracebackhide__ = True
        return self.estimate(metric).value

    def check(
        self,
        *,
        rules: Rules = (),
        baseline: str | PathLike[str] | None = None,
        slices: Mapping[str, str | Sequence[str]] | None = None,
        alpha: float = 0.05,
        **limits: float,
    ) -> GateResult:
        """What the run comes to; nothing fails.

        Args:
            rules: as for `assert_drift`, and so are the others.
            baseline: likewise.
            slices: likewise.
            alpha: likewise.
            limits: likewise.

        Raises:
            pytest.UsageError: nothing is asked.
            QuantDriftError: a rule or the baseline cannot be used.
        """
        __tracebackhide__ = True
        from quantdrift_pytest.verdicts import judged  # noqa: PLC0415 -- it imports this

        try:
            return judged(self, self._asked(rules, baseline, slices, alpha, limits))
        except OURS as error:
            raise in_short(error) from None

    def require(
        self,
        *,
        rules: Rules = (),
        baseline: str | PathLike[str] | None = None,
        slices: Mapping[str, str | Sequence[str]] | None = None,
        alpha: float = 0.05,
        accept_underpowered: bool = False,
        **limits: float,
    ) -> GateResult:
        """Assert that the run keeps to some rules.

        Args:
            rules: as for `assert_drift`, and so are the others.
            baseline: likewise.
            slices: likewise.
            alpha: likewise.
            accept_underpowered: likewise.
            limits: likewise.

        Raises:
            AssertionError: a rule does not hold, or cannot be judged.
            pytest.UsageError: nothing is asked.
            QuantDriftError: a rule or the baseline cannot be used.
        """
        __tracebackhide__ = True
        from quantdrift_pytest.verdicts import settle  # noqa: PLC0415 -- it imports this

        try:
            question = self._asked(rules, baseline, slices, alpha, limits)
            return settle(self, question, accept_underpowered=accept_underpowered)
        except OURS as error:
            raise in_short(error) from None

    def _asked(
        self,
        rules: Rules,
        baseline: str | PathLike[str] | None,
        slices: Mapping[str, str | Sequence[str]] | None,
        alpha: float,
        limits: Mapping[str, object],
    ) -> Question:
        from quantdrift_pytest.question import asked  # noqa: PLC0415 -- only where rules are asked

        return asked(
            self.session, rules=rules, baseline=baseline, slices=slices, alpha=alpha, limits=limits
        )
