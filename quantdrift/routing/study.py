"""Everything routing says of finished runs, one by one and averaged over the runs of one spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quantdrift.confidence import ConfidenceName
from quantdrift.errors import RunError
from quantdrift.routing.advice import Advice, advise, allocate_command
from quantdrift.routing.answers import scores_for
from quantdrift.routing.cost import SPEED_UP, CostCurve, cost_curve
from quantdrift.routing.means import SHARES
from quantdrift.routing.rescoring import Rescoring, rescore
from quantdrift.routing.restoring import Restoring, restoring_point
from quantdrift.routing.sweep import N_SPLITS, PERCENTILES, SweepPoint, mean_sweep, sweep
from quantdrift.runs import Run

__all__ = [
    "RouteSettings",
    "RoutedGroup",
    "RoutedRun",
    "group_runs",
    "study_run",
]

EVERYTHING = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """How runs are looked at.

    Attributes:
        scores: confidences, the first of which the cost curve is of.
        percentiles: where thresholds are set.
        share: of the inputs that a threshold is set on.
        n_splits: random splits.
        seed: of the splits.
        speed_up: of the candidate over full precision, stated.
        recover: share of the changed answers that the operating point gives back.
    """

    scores: Sequence[ConfidenceName] = ("gap", "msp", "entropy")
    percentiles: Sequence[float] = PERCENTILES
    share: float = 0.5
    n_splits: int = N_SPLITS
    seed: int = 0
    speed_up: float = SPEED_UP
    recover: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedRun:
    """What routing says of one run.

    Attributes:
        run: the run.
        n_inputs: of its evidence.
        logits: whether it ranks by logits; else by similarities.
        advice: which fix it asks for.
        curves: cost curves, one per confidence.
        points: of the sweep; empty for similarities.
        rescoring: of the first items; empty for logits.
        restoring: the operating point of a search; None for logits, or if no answer changed.
        recover: share of the changed answers that `operating` gives back.
        two_classes: whether the inputs have two items, so that all confidences order them alike.
    """

    run: Run
    n_inputs: int
    logits: bool
    advice: Advice
    curves: Sequence[CostCurve]
    points: Sequence[SweepPoint]
    rescoring: Sequence[Rescoring]
    restoring: Restoring | None
    recover: float
    two_classes: bool

    @property
    def similarity(self) -> str | None:
        """How the run compared embeddings, if it did and says so."""
        named = self.run.record.get("settings", {}).get("similarity")
        return None if named is None else str(named)

    @property
    def operating(self) -> dict[str, Any] | None:
        """Least routed share that gives back `recover` of the changes, and its cost."""
        if not self.logits:
            return None if self.restoring is None else self.restoring.to_json()
        curve = self.curves[0]
        point = curve.for_changes(self.recover)
        if point is None or curve.changes is None:
            return None
        return {
            "score": curve.score,
            "routed": float(curve.routed[point]),
            "cost": float(curve.cost[point]),
            "changes": float(curve.changes[point]),
        }

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        record = self.run.record
        return {
            "path": str(self.run.path),
            "spec": record["spec"],
            "data": record["data"]["name"],
            "n_inputs": self.n_inputs,
            "scores_are": "logits" if self.logits else "similarities",
            "similarity": self.similarity,
            "advice": {
                **self.advice.to_json(),
                "sentences": self.advice.sentences(
                    allocate_command(record["spec"], classes=self.logits)
                ),
            },
            "operating_point": self.operating,
            "sweep": [point.to_json() for point in self.points],
            "cost_curves": {curve.score: curve.rows(SHARES) for curve in self.curves},
            "rescoring": [entry.to_json() for entry in self.rescoring],
        }


def study_run(run: Run, settings: RouteSettings) -> RoutedRun:
    """Look at one run.

    For logits: the sweep and the cost curves of every confidence. For similarities only the gap is
    one, and the first items are rescored instead.

    Args:
        run: a finished run.
        settings: how to look.

    Raises:
        RunError: only softmax confidences are asked of a run on similarities, or the run is too
            small.
        QuantDriftError: a setting is out of range.
    """
    evidence = run.exact_evidence("the advice of what to do")
    if evidence.n_inputs == 0:
        raise RunError(f"{run.path} has no inputs")
    logits = evidence.confidence is not None
    scores = [score for score in settings.scores if score in scores_for(evidence)]
    if not scores:
        raise RunError(
            f"{run.path} ranks by similarities, whose softmax is no probability, so "
            f"{' and '.join(settings.scores)} cannot be read; expected --score gap"
        )
    points: Sequence[SweepPoint] = ()
    rescoring: Sequence[Rescoring] = ()
    restoring = None
    if logits:
        points = sweep(
            evidence,
            scores=scores,
            percentiles=settings.percentiles,
            share=settings.share,
            n_splits=settings.n_splits,
            seed=settings.seed,
        )
    else:
        rescoring = rescore(evidence, percentiles=sorted({*settings.percentiles, EVERYTHING}))
        restoring = restoring_point(evidence, settings.recover, speed_up=settings.speed_up)
    return RoutedRun(
        run=run,
        n_inputs=evidence.n_inputs,
        logits=logits,
        advice=advise(evidence, speed_up=settings.speed_up),
        curves=[cost_curve(evidence, score=s, speed_up=settings.speed_up) for s in scores],
        points=points,
        rescoring=rescoring,
        restoring=restoring,
        recover=settings.recover,
        two_classes=int(evidence.n_items.max()) == 2,  # noqa: PLR2004 -- two
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedGroup:
    """The runs of one spec, and their mean.

    Attributes:
        spec: of all of them.
        logits: whether they rank by logits.
        runs: at least one.
    """

    spec: str
    logits: bool
    runs: Sequence[RoutedRun]

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """The sweep, averaged over the runs that each share is defined for."""
        return mean_sweep([run.points for run in self.runs])


def group_runs(runs: Sequence[RoutedRun]) -> list[RoutedGroup]:
    """The runs by spec, and by whether they rank by logits, in order of appearance."""
    found: dict[tuple[str, bool], list[RoutedRun]] = {}
    for run in runs:
        found.setdefault((str(run.run.record["spec"]), run.logits), []).append(run)
    return [
        RoutedGroup(spec=spec, logits=logits, runs=group) for (spec, logits), group in found.items()
    ]
