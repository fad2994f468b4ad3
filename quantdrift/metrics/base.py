"""The definition of metrics: a `Family` defines one for every cut-off and arm; a `Metric` is one member of it.

Members are `gold_lost@10`, `change.ndcg@10` or `flip@1:separation=0.05..0.1`; a metric is identified by its string.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError, UnknownNameError
from quantdrift.base.registry import Registry
from quantdrift.evidence.record import Evidence, Stage
from quantdrift.statistics.estimates import (
    Estimate,
    mean_estimate,
    mean_estimates,
    quantile_estimate,
    rate_estimate,
    relative_change_estimate,
    undefined,
)
from quantdrift.statistics.paired import borne_out

Direction = Literal["lower", "higher", "none"]
"""The better direction; "none" if neither is better."""

Uncertainty = Literal["wilson", "order statistics", "bootstrap", "paired bootstrap"]
"""The kind of interval, which determines the statistic: a rate (Wilson score interval), a median or quantile
(distribution-free, between two order statistics), a mean (seeded percentile bootstrap), a mean difference or ratio of
means of the two arms (the same, inputs resampled with both values)."""

Unit = Literal["rate", "score", "ratio", "gain", "rank", "items", "grade", "similarity"]

Arm = Literal["candidate", "reference", "change", "relative"]
"""The subject of a metric of one arm: either arm, candidate minus reference, or that difference as a share of the
reference's mean."""

WhenCut = Literal["the same", "at least", "at most", "undefined"]
"""The relation of a metric on truncated lists, whose deltas are not all known, to its value on whole rankings."""

OTHERS = "other packages"
SECTIONS = ("top of the list", "gap and perturbation", "stability check", "relevance", "whole ranking", OTHERS)
"""The sections of lists of metrics, in order."""

PerInput = Callable[[Evidence, Any, Literal["candidate", "reference"]], NDArray[np.float64]]
"""Returns the values of inputs from evidence, cut-off (a whole number, or a level) and arm."""

Values = TypeVar("Values", bound=PerInput)


class MetricError(QuantDriftError):
    """A metric cannot be computed from this evidence, for example because its cut-off is too deep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The definition of a metric, with everything that reports and gates need.

    Attributes:
        name: its name in a metric's string.
        section: its section in lists; that of other packages is the last.
        summary: one sentence.
        direction: the better direction.
        low: least possible value.
        high: greatest possible value.
        unit: "rate" (a share of inputs), "score" (score units), "ratio" (of two scores), "gain", "rank" (1 is the
            first), "items" (a count), "grade" (of relevance) or "similarity".
        uncertainty: kind of its interval, which also determines the statistic.
        per_input: returns the value of every input, NaN if undefined, from (evidence, cut-off, arm).
        undefined_when: the reason shown if it has no value for any input.
        too_few: for metrics that need a number of inputs: returns why some runs have too few at a cut-off, or None.
            Its reason comes before `undefined_when`.
        infinite_when: the reason shown for an infinite estimate.
        needs_labels: whether relevance labels are needed.
        cutoffs: the default cut-offs; empty if the metric has none.
        cutoff_is: "rank"; "percentile" for quantiles; "level" for the stability check.
        other_cutoffs: whether other cut-offs are allowed.
        ranks_beyond: number of ranks that it needs below the cut-off.
        ranks: number of ranks that it needs at any cut-off.
        arms: whether it is about one arm (the prefixes `reference.`, `change.` and `relative.` select others).
        of_reference: whether it is about the reference alone, so that two candidates share it.
        censored: for values of +inf that only mean "more than was stored" in truncated evidence: returns the value from
            which on this happens. Pooled runs are distinguished only up to the smallest.
        when_cut: relation to the true value if only some deltas are known: the same, a lower or an upper bound of every
            input's value, or undefined.
    """

    name: str
    section: str = OTHERS
    summary: str
    direction: Direction
    low: float
    high: float
    unit: Unit
    uncertainty: Uncertainty
    per_input: PerInput
    undefined_when: str = "no input has a value"
    infinite_when: str = "no finite value"
    too_few: Callable[[Sequence[Evidence], float], str | None] | None = None
    needs_labels: bool = False
    cutoffs: tuple[float, ...] = ()
    cutoff_is: Literal["rank", "percentile", "level"] = "rank"
    other_cutoffs: bool = True
    ranks_beyond: int = 0
    ranks: int = 0
    arms: bool = False
    of_reference: bool = False
    censored: Callable[[Evidence], int] | None = None
    when_cut: WhenCut = "the same"


BUILT_IN: dict[str, Family] = {}
"""The built-in families by name, in the order of sections."""
_NAME = re.compile("[a-z]+(_[a-z]+)*")
_TAKEN = re.compile(
    "(candidate|reference|change|relative|codes|index|probe|right|wrong)_.*|n_inputs|spec|evidence|"
    ".*_(low|high|least|most|median)"
)
"""Names whose keys in a harness's result could be those of other figures."""
_ALLOWED = {"direction": Direction, "unit": Unit, "uncertainty": Uncertainty, "when_cut": WhenCut}


def _refused(_: Mapping[str, Family], family: Family) -> str | None:
    """Why a family of another package is not accepted; None if it is."""
    if not _NAME.fullmatch(family.name) or _TAKEN.fullmatch(family.name):
        return f"expected a name of letters and _ that does not begin or end as other keys do, got {family.name!r}"
    for field, kinds in _ALLOWED.items():
        if (value := getattr(family, field)) not in get_args(kinds):
            return f"expected {field} to be one of {', '.join(get_args(kinds))}; got {value!r}"
    if family.cutoff_is != "rank" or not family.low < family.high or not {*members(family)}:
        return f"expected ranks for cut-offs and low < high; got a {family.cutoff_is}, {family.low} and {family.high}"
    return None


FAMILIES: Registry[Family] = Registry("quantdrift.metrics", own=BUILT_IN, kind=Family, clash=_refused)
"""All families by name, in the order of sections; those of other packages are loaded only when needed."""

_KINDS: dict[str, dict[str, Any]] = {
    "rate": {"low": 0, "high": 1, "unit": "rate", "uncertainty": "wilson"},
    "median": {"low": 0, "high": math.inf, "unit": "score", "uncertainty": "order statistics"},
    "mean": {"low": 0, "high": 1, "unit": "gain", "uncertainty": "bootstrap"},
}


def metric(name: str, summary: str = "", *, kind: str = "rate", **fields: Any) -> Callable[[PerInput], Family]:
    """Decorate a function that returns values of inputs; the metric takes the function's place.

    Args:
        name: its name in a metric's string.
        summary: one sentence; by default the first line of the function's docstring.
        kind: "rate" (0 or 1 per input), "mean" (0 to 1 per input) or "median" (of values of 0 or more).
        fields: other fields of `Family`, which override those of the kind; `direction` is required.
    """

    def decorate(per_input: PerInput) -> Family:
        line = (per_input.__doc__ or "").partition("\n")[0].rstrip(".")
        sentence = summary or line[:1].lower() + line[1:]
        return Family(name=name, summary=sentence, per_input=per_input, **_KINDS[kind] | fields)

    return decorate


def define(name: str, summary: str = "", **fields: Any) -> Callable[[Values], Values]:
    """Decorate the function of a built-in metric: the metric is registered by name, and the function stays."""

    def decorate(per_input: Values) -> Values:
        BUILT_IN[name] = metric(name, summary, **fields)(per_input)
        return per_input

    return decorate


LEVEL_DECIMALS = 6
"""Most decimals of a level."""


def check_cutoff(family: Family, cutoff: float) -> None:
    """Refuse a cut-off (0 for none) that a family does not allow."""
    whole = cutoff == int(cutoff) and cutoff > 0
    if not family.cutoffs:
        fits, takes = not cutoff, "no cut-off"
    elif family.cutoff_is == "level":
        fits = 0 < cutoff < 1 and round(cutoff, LEVEL_DECIMALS) == cutoff
        takes = f"a level above 0 and below 1 with at most {LEVEL_DECIMALS} decimals"
    elif family.cutoff_is == "percentile":
        fits, takes = whole and cutoff < _PERCENTILES, "a percentile from 1 to 99"
    else:
        fits, takes = whole and (family.other_cutoffs or cutoff in family.cutoffs), "a cut-off, a whole number"
    if not fits:
        example = f", as in {family.name}@{cutoff_text(family.cutoffs[0])}" if family.cutoffs else ""
        only = " and no other" if not family.other_cutoffs else ""
        got = f"@{cutoff_text(cutoff)}" if cutoff else "none"
        raise MetricError(f"the metric {family.name!r} takes {takes}{example}{only}; got {got}")


def cutoff_text(cutoff: float) -> str:
    """A cut-off as in a metric's string; a level has at least two decimals.

    >>> cutoff_text(10), cutoff_text(0.1), cutoff_text(0.005)
    ('10', '0.10', '0.005')
    """
    if cutoff == int(cutoff):
        return str(int(cutoff))
    whole, _, decimals = f"{cutoff:.{LEVEL_DECIMALS}f}".rstrip("0").partition(".")
    return f"{whole}.{decimals:0<2}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The inputs whose value of one metric lies in a half-open range, low <= value < high.

    Written `separation=0.05..0.1`, or `separation=1..` without an upper end.

    Attributes:
        by: the metric whose values are compared with the range.
        low: lower end, which is included.
        high: upper end, which is not included; +inf for none, which includes infinite values.

    Raises:
        MetricError: the range is empty, or `by` is itself a metric over a slice.
    """

    by: "Metric"
    low: float
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.by.where is not None or self.by.arm == "relative":
            raise MetricError(f"a slice needs a metric with a value for every input; got {self.by}")
        if math.isinf(self.low) or not self.low < self.high:
            raise MetricError(f"a slice needs a finite lower end below its upper end; got {self.low:g}..{self.high:g}")

    def __str__(self) -> str:
        high = "" if math.isinf(self.high) else _shortest(self.high)
        return f"{self.by}={_shortest(self.low)}..{high}"

    def of(self, evidence: Evidence) -> NDArray[np.bool_]:
        """The inputs in the slice, bool [n_inputs]; those without a value are not.

        Raises:
            MetricError: for some input the stored ranks cannot tell.
        """
        values = self.by.per_input(evidence)
        open_end = math.isinf(self.high)
        if self.by.family.censored is not None and np.isposinf(values).any():
            limit = self.by.family.censored(evidence)
            if not (self.high <= limit or (open_end and self.low <= limit)):
                raise MetricError(
                    f"{self} cannot be told: with {evidence.depth} stored ranks, values beyond {limit} are only known "
                    f"to be that large; end the range at {limit} or before, ask for {self.by}={limit}.. or less, or "
                    "measure again and keep more ranks (k)"
                )
        return (values >= self.low) & (open_end | (values < self.high))


def _shortest(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(float(number))


_ROUNDING = 1e-9
"""Tolerance at both ends of a metric's range."""
_PERCENTILES = 100
_MEDIAN = 50
_NO_INDEX = "no approximate index was searched whose codes can be asked for all scores"
_NOT_BOUNDED = "the typical list ends too early, or holds no change, and so says nothing of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: a family, a cut-off, an arm and a set of inputs.

    Attributes:
        family: its definition.
        cutoff: a rank, a percentile or a level, as the family has it; 0 if it has none.
        arm: the arm, for a metric of one arm; otherwise "candidate".
        stage: for a deployment with an approximate index, the changes by one stage: "codes", from the reference to
            exhaustive search of the codes, or "index", from there to the answers of the index; None for both.
        where: the slice of inputs; None for all inputs.

    Raises:
        MetricError: the family has no such cut-off or arm, or a slice by a slice was asked for.
    """

    family: Family
    cutoff: float = 0
    arm: Arm = "candidate"
    stage: Stage | None = None
    where: Slice | None = None

    def __post_init__(self) -> None:
        family = self.family
        check_cutoff(family, self.cutoff)
        if self.arm != "candidate" and not family.arms:
            raise MetricError(f"{family.name!r} compares the two arms; it has no '{self.arm}.' form")

    def __str__(self) -> str:
        arm = f"{self.stage}." if self.stage else ""
        arm += "" if self.arm == "candidate" else f"{self.arm}."
        cutoff = f"@{cutoff_text(self.cutoff)}" if self.cutoff else ""
        return f"{arm}{self.family.name}{cutoff}" + (f":{self.where}" if self.where else "")

    @property
    def direction(self) -> Direction:
        """The better direction."""
        return self.family.direction

    @property
    def low(self) -> float:
        """Least possible value."""
        return {"relative": -1.0, "change": self.family.low - self.family.high}.get(self.arm, self.family.low)

    @property
    def high(self) -> float:
        """Greatest possible value."""
        return {"relative": math.inf, "change": self.family.high - self.family.low}.get(self.arm, self.family.high)

    @property
    def unit(self) -> str:
        """The unit; a relative change is a rate."""
        return "rate" if self.arm == "relative" else self.family.unit

    @property
    def uncertainty(self) -> Uncertainty:
        """The kind of its interval."""
        return "paired bootstrap" if self.arm in {"change", "relative"} else self.family.uncertainty

    @property
    def kind(self) -> Literal["rate", "mean", "quantile"]:
        """The kind of value in a comparison of two runs: a rate (0 or 1 per input), a mean or a quantile."""
        kinds: dict[str, Literal["rate", "quantile"]] = {"wilson": "rate", "order statistics": "quantile"}
        return kinds.get(self.uncertainty, "mean")

    @property
    def span(self) -> float:
        """Greatest possible difference of two runs' values of an input."""
        # in a change, the reference that both runs share cancels
        return self.family.high - self.family.low if math.isfinite(self.family.low) else math.inf

    def per_input(self, evidence: Evidence) -> NDArray[np.float64]:
        """The value of every input, float64 [n_inputs], NaN if undefined.

        If not all deltas are known, `Family.when_cut` says how the value relates to the true one.

        Raises:
            MetricError: it needs more ranks than are stored; it is a relative change, which only means have; or it
                needs all deltas, and not all are known.
        """
        if self.stage is not None:
            if (seen := evidence.seen(self.stage)) is None:
                raise MetricError(f"{self}: {_NO_INDEX}")
            return replace(self, stage=None).per_input(seen)
        if why := self._unknown([evidence]):
            raise MetricError(f"{self}: {why}")
        if self.arm == "relative":
            change = str(replace(self, arm="change"))
            raise MetricError(f"{self} is a ratio of means: an input has none. Ask for {change}")
        return self._values(evidence)

    def _values(self, evidence: Evidence) -> NDArray[np.float64]:
        self._check_depth(evidence)
        values = self._arm(evidence, "reference" if self.arm == "reference" else "candidate")
        if self.arm in {"change", "relative"}:
            values = values - self._arm(evidence, "reference")
        return values

    def __call__(self, evidence: Evidence) -> Estimate:
        """The estimate over all inputs for which the metric is defined."""
        return self.over([evidence])

    def over(self, group: Sequence[Evidence]) -> Estimate:
        """The estimate over the pooled inputs of several runs; every input counts once.

        A metric that needs labels leaves out runs without them.

        Raises:
            MetricError: as `per_input`.
        """
        if self.stage is not None:
            seen = [part for evidence in group if (part := evidence.seen(self.stage)) is not None]
            return replace(self, stage=None).over(seen) if seen else undefined(_NO_INDEX)
        sample = self._sample(group)
        return sample if isinstance(sample, Estimate) else self._told(self.estimate(sample), group)

    def _sample(self, group: Sequence[Evidence]) -> NDArray[np.float64] | Estimate:
        """The values for an estimate; or the estimate, if it is undefined or a ratio of means."""
        if self.family.needs_labels:
            group = [evidence for evidence in group if evidence.judgements is not None]
            if not group:
                return undefined("no relevance labels")
        if why := self._unknown(group):
            return undefined(why)
        values = self.told_apart(_joined(self._values(evidence) for evidence in group), group)
        defined = ~np.isnan(values)
        if not defined.any():
            return undefined(self._why_undefined(group))
        if self.arm == "relative":
            reference = _joined(self._arm(evidence, "reference") for evidence in group)[defined]
            return relative_change_estimate(values[defined] + reference, reference)
        return np.asarray(values[defined])

    def known_over(self, group: Sequence[Evidence]) -> Estimate:
        """The estimate of `over`; undefined with the reason if it needs more ranks than are stored."""
        try:
            return self.over(group)
        except MetricError as error:
            return undefined(str(error))

    def _told(self, estimate: Estimate, group: Sequence[Evidence]) -> Estimate:
        """Add to an estimate whether it is a bound, and the reason of an infinite value."""
        bounds: dict[str, Literal["lower", "upper"]] = {"at least": "lower", "at most": "upper"}
        exact = all(evidence.exact for evidence in group)
        estimate = replace(estimate, bound=None if exact else bounds.get(self.family.when_cut))
        if estimate.value is not None and math.isinf(estimate.value):
            reason = self.family.infinite_when if estimate.bound != "upper" else _NOT_BOUNDED
            return replace(estimate, reason=reason)
        return estimate

    def _unknown(self, group: Sequence[Evidence]) -> str | None:
        """Why the metric cannot be known, if not all deltas are; None if it can."""
        deltas = {evidence.deltas for evidence in group} - {"all"}
        if not deltas:
            return None
        if self.where is not None and self.where.by.family.when_cut != "the same":
            return f"{self.where.by} is not known for every input, as not all scores are"
        if "none" in deltas and self.family.when_cut != "the same":
            return "the answers have no scores"
        if self.family.unit == "gain" and any(evidence.unranked for evidence in group):
            return "the answers are no rankings"
        if self.family.when_cut == "undefined":
            return "it needs every item's score in both arms, and these lists are truncated"
        return None

    def _why_undefined(self, group: Sequence[Evidence]) -> str:
        if self.family.too_few and (why := self.family.too_few(group, self.cutoff)):
            return why
        if self.where is not None and not any(self.where.of(evidence).any() for evidence in group):
            return f"no input has {self.where}"
        return self.family.undefined_when + (f" (of those with {self.where})" if self.where else "")

    def told_apart(self, values: NDArray[np.float64], group: Sequence[Evidence]) -> NDArray[np.float64]:
        """Values of several runs, with +inf from the value on that one of them knows only as "more than was stored".

        Args:
            values: values of inputs of these runs.
            group: the runs.
        """
        if self.family.censored is None:
            return values
        limit = min((self.family.censored(run) for run in group if run.cut_short), default=math.inf)
        return np.where(values >= limit, np.inf, values)

    def estimate(self, values: NDArray[np.float64]) -> Estimate:
        """The estimate from values of inputs, of the metric's kind.

        Args:
            values: float64, at least one, no NaN.
        """
        if self.uncertainty == "wilson":
            return rate_estimate(values)
        if self.uncertainty == "order statistics":
            percentile = self.cutoff if self.family.cutoff_is == "percentile" else _MEDIAN
            return quantile_estimate(values, percentile / _PERCENTILES)
        return self._borne_out(mean_estimate(values), values)

    def _borne_out(self, estimate: Estimate, values: NDArray[np.float64]) -> Estimate:
        return borne_out(estimate, values) if self.arm == "change" else estimate

    def _arm(self, evidence: Evidence, arm: Any) -> NDArray[np.float64]:
        family = self.family
        with FAMILIES.tried(family, MetricError, (MetricError,)):  # an error of another package's metric names it
            values = np.asarray(family.per_input(evidence, self.cutoff, arm), dtype=np.float64)
            if values.shape != (evidence.n_inputs,):
                raise ValueError(f"expected {evidence.n_inputs} values, got an array of shape {values.shape}")
            possible = (values >= family.low - _ROUNDING) & (values <= family.high + _ROUNDING)
            possible &= (family.uncertainty != "wilson") | (values == 0) | (values == 1)
            if not (possible | np.isnan(values)).all():
                raise ValueError(f"expected a {family.unit} from {family.low:g} to {family.high:g} or NaN, got another")
        return values if self.where is None else np.where(self.where.of(evidence), values, np.nan)

    def _check_depth(self, evidence: Evidence) -> None:
        cutoff = int(self.cutoff) if self.family.cutoff_is == "rank" else 0
        needed = max(cutoff + self.family.ranks_beyond, self.family.ranks)
        if needed > evidence.depth and evidence.cut_short:
            if not evidence.exact:
                raise MetricError(f"{self} needs {needed} ranks, but these lists are {evidence.depth} deep")
            raise MetricError(
                f"{self} needs {needed} ranks, but this run stored {evidence.depth}; measure again and keep "
                f"{min(needed, int(evidence.n_items.max()))} ranks (k) or more"
            )


def estimates(metrics: Sequence[Metric], evidence: Evidence) -> list[Estimate]:
    """Estimates of one run, with all bootstraps at once; undefined if a metric needs more ranks than are stored."""
    results: dict[int, Estimate] = {}
    means: dict[int, NDArray[np.float64]] = {}
    for place, metric in enumerate(metrics):
        try:
            values = metric.over([evidence]) if metric.stage is not None else metric._sample([evidence])
        except MetricError as error:
            values = undefined(str(error))
        if isinstance(values, Estimate):
            results[place] = values
        elif metric.uncertainty in {"wilson", "order statistics"}:
            results[place] = metric._told(metric.estimate(values), [evidence])
        else:
            means[place] = values
    made = mean_estimates(list(means.values()))
    for (place, values), estimate in zip(means.items(), made, strict=True):
        results[place] = metrics[place]._told(metrics[place]._borne_out(estimate, values), [evidence])
    return [results[place] for place in range(len(metrics))]


def _joined(parts: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.empty(0), *parts])


def members(family: Family) -> list[Metric]:
    """The members of a family that are computed by default."""
    arms: tuple[Arm, ...] = ("candidate", "reference", "change") if family.arms else ("candidate",)
    return [Metric(family=family, cutoff=cutoff, arm=arm) for cutoff in family.cutoffs or (0,) for arm in arms]


_ONE = re.compile(
    r"((?P<stage>codes|index)\.)?((?P<arm>candidate|reference|change|relative)\.)?"
    r"(?P<name>[A-Za-z_]+)(@(?P<k>[1-9][0-9]{0,8}|0\.(?=0*[1-9])[0-9]{1,6}))?"
)
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})?")


def parse_metric(text: str) -> Metric:
    """Parse `[STAGE.][ARM.]NAME[@CUTOFF][:METRIC=LOW..HIGH]`; `str` of the metric parses back to an equal one.

    Raises:
        UnknownNameError: there is no such family; carries the nearest ones.
        MetricError: a cut-off is missing or not allowed, there is no such arm, or the slice is not valid.
    """
    whole, colon, condition = text.strip().partition(":")
    metric = _one(whole)
    if not colon:
        return metric
    by, equals, limits = condition.partition("=")
    match = _RANGE.fullmatch(limits)
    if not equals or match is None:
        raise MetricError(
            f"expected a slice such as flip@1:separation=0.05..0.1 or flip@1:separation=1.. "
            f"after the colon; got {condition!r}"
        )
    high = math.inf if match["high"] is None else float(match["high"])
    where = Slice(by=_one(by), low=float(match["low"]), high=high)
    return replace(metric, where=where)


def _one(text: str) -> Metric:
    match = _ONE.fullmatch(text)
    if match is None or match["name"] not in FAMILIES:
        names = [str(member) for family in FAMILIES.values() for member in members(family)]
        broken = match is not None and match["name"] in FAMILIES.broken
        hint = "(quantdrift doctor says why it is broken)" if broken else "(quantdrift list metrics shows all)"
        raise UnknownNameError("metric", text, names, hint=hint)
    arm = cast(Arm, match["arm"] or "candidate")
    level = "." in (match["k"] or "")
    cutoff = float(match["k"]) if level else int(match["k"] or 0)
    stage = cast(Stage | None, match["stage"])
    return Metric(family=FAMILIES[match["name"]], cutoff=cutoff, arm=arm, stage=stage)
