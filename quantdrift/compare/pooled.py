"""One verdict over several corpora: is a scheme worse than another?

Corpora are strata: within each, inputs are paired, and all corpora have the same weight in a mean. Seeds are not
strata, as they share the inputs of a corpus, and are averaged input by input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.compare.two_runs import joined
from quantdrift.metrics import Metric
from quantdrift.runs.folder import Run
from quantdrift.statistics.estimates import RESAMPLES, percentile_interval, resampled
from quantdrift.statistics.paired import mcnemar_exact, sign_change_tails
from quantdrift.statistics.verdicts import holm

ALPHA = 0.05
MCNEMAR, RANDOMIZATION = "stratified McNemar", "stratified randomization"
Values = NDArray[np.float64]
Strata = Mapping[str, tuple[Sequence[Run], Sequence[Run]]]
"""Name of a corpus to the runs of the first system and of the second, one a seed."""
Told = Literal["worse", "better", "no difference shown"]
NONE: Told = "no difference shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A scheme against another, over the corpora that both were measured on.

    Attributes:
        model: the study's name of the model.
        scheme: the scheme, without its seed.
        against: the scheme that it is compared with.
        metric: the metric.
        n_corpora: number of corpora that have both.
        n_inputs: number of inputs of all corpora, each counted once.
        n_seeds: most seeds of either scheme on a corpus.
        mean: the scheme's mean of the metric over corpora.
        se: its standard error over corpora, as in the paper's tables; None for one corpus.
        difference: mean over corpora of scheme minus the other.
        difference_se: its standard error over corpora.
        low: lower end of the difference's 95 % interval for these corpora, whose inputs are resampled.
        high: upper end.
        corpora_worse: number of corpora on which the scheme's mean is worse.
        worse: number of inputs on which the scheme is worse.
        better: number of inputs on which it is better.
        test: "stratified McNemar" or "stratified randomization".
        p: two-sided.
        p_holm: adjusted for the number of schemes, by Holm.
        verdict: by the adjusted p at 5 %.
        notes: remarks.
    """

    model: str
    scheme: str
    against: str
    metric: str
    n_corpora: int
    n_inputs: int
    n_seeds: int
    mean: float
    se: float | None
    difference: float
    difference_se: float | None
    low: float
    high: float
    corpora_worse: int
    worse: int
    better: int
    test: str
    p: float
    p_holm: float | None = None
    verdict: Told = NONE
    notes: tuple[str, ...] = ()


def check_pooled(metric: Metric) -> None:
    """Refuse a metric that has no value for each input, or no better way.

    Raises:
        QuantDriftError: it is a median, a quantile, a ratio of means, or of the reference.
    """
    per_input = metric.uncertainty != "order statistics" and metric.arm != "relative"
    if not per_input or metric.direction == "none" or metric.family.of_reference or metric.arm == "reference":
        raise QuantDriftError(
            "corpora are pooled by a metric with a value for each input and a better direction, such as flip@1, "
            f"gold_lost@1 or ndcg@10; {metric} is {'not' if per_input else 'a median, a quantile or a ratio'}"
        )


def pool(strata: Strata, metric: Metric, *, model: str, scheme: str, against: str, seed: int = 0) -> Pooled | None:
    """Compare a scheme with another over several corpora; None if no corpus has the metric for both.

    The difference is the mean over corpora of the mean over inputs, scheme minus the other. Its interval resamples the
    inputs within each corpus (stratified paired bootstrap), so it holds for these corpora; the standard error over
    corpora is for corpora like these.

    For a metric of 0 or 1 with one seed the test is the stratified McNemar test: without a difference, an input on
    which the two disagree is a fair coin in every corpus, so that the counts summed over corpora are one binomial draw.
    Otherwise it is a randomization test: without a difference, that of an input could as well have the other sign. The
    statistic is the difference above, in which an input weighs 1 / (corpora x inputs of its corpus).

    The same data under two names count once.

    Args:
        strata: the runs; those of one corpus share its reference and data.
        metric: a metric that `check_pooled` accepts.
        model: the model's name for the result.
        scheme: the scheme's name for the result.
        against: the other scheme's name for the result.
        seed: seed of resampling and sign changes.

    Raises:
        RunError: two runs of a corpus are not of the same data, reference and settings.

    Source: Q. McNemar, Psychometrika 12 (1947), 153-157; R. A. Fisher, The Design of Experiments (1935), section 21.
    """
    check_pooled(metric)
    pairs: dict[str, tuple[Values, Values]] = {}
    notes, seen = [], dict[str, str]()
    n_seeds = 1
    for name, runs in strata.items():
        data = str(runs[0][0].record["data"].get("fingerprint") or name)
        if data in seen:
            notes.append(f"{name} has the data of {seen[data]} and is left out")
            continue
        seen[data] = name
        if (values := _averaged(runs, metric)) is not None:
            pairs[name] = values
            n_seeds = max(n_seeds, *map(len, runs))
    if not pairs:
        return None
    steps = [after - before for before, after in pairs.values()]
    means, changes = [float(after.mean()) for _, after in pairs.values()], [float(step.mean()) for step in steps]
    sign = 1 if metric.direction == "lower" else -1
    harm = sign * np.concatenate(steps)
    low, high = _interval(steps, seed=seed)
    weighted = np.sort(np.concatenate([step / (len(steps) * len(step)) for step in steps]))
    counted = metric.uncertainty == "wilson" and n_seeds == 1
    return Pooled(
        model=model,
        scheme=scheme,
        against=against,
        metric=str(metric),
        n_corpora=len(steps),
        n_inputs=len(harm),
        n_seeds=n_seeds,
        mean=float(np.mean(means)),
        se=standard_error(means),
        difference=float(np.mean(changes)),
        difference_se=standard_error(changes),
        low=low,
        high=high,
        corpora_worse=sum(sign * change > 0 for change in changes),
        worse=int((harm > 0).sum()),
        better=int((harm < 0).sum()),
        test=MCNEMAR if counted else RANDOMIZATION,
        p=mcnemar_exact(*map(np.concatenate, zip(*pairs.values(), strict=True))).p_value
        if counted
        else min(1.0, 2 * min(sign_change_tails(weighted[weighted != 0], seed=seed))),
        notes=tuple(notes),
    )


def adjusted(tests: Sequence[Pooled], metric: Metric) -> list[Pooled]:
    """The tests with p-values adjusted for their number, and verdicts."""
    results = []
    for test, p in zip(tests, holm([test.p for test in tests]), strict=True):
        assert p is not None  # there is a p for every test
        # the direction of the test: counts of inputs, or the mean over corpora
        harm = test.worse - test.better if test.test == MCNEMAR else _harm(test, metric)
        verdict: Told = NONE if p >= ALPHA else "worse" if harm > 0 else "better"
        results.append(replace(test, p_holm=p, verdict=verdict))
    return results


def _harm(test: Pooled, metric: Metric) -> float:
    return test.difference * (1 if metric.direction == "lower" else -1)


def in_words(tests: Sequence[Pooled], metric: Metric) -> list[str]:
    """The verdicts in words, one sentence each; their numbers are in the table."""
    against = f"{tests[0].against} by {metric}" if tests else ""
    heads: Mapping[Told, str] = {
        "worse": f"Shown to be worse than {against}",
        "better": f"Shown to be better than {against}",
        NONE: f"Not shown to differ from {against}, which is not the same as no difference",
    }
    named = {verdict: [test for test in tests if test.verdict == verdict] for verdict in heads}
    return [
        f"{head}: {', '.join(_named(test, metric) for test in named[verdict])}."
        for verdict, head in heads.items()
        if named[verdict]
    ]


def _named(test: Pooled, metric: Metric) -> str:
    """Name a scheme, with a remark if the mean over corpora, where small ones weigh as much, contradicts the test."""
    contrary = test.verdict != NONE and (test.verdict == "worse") != (_harm(test, metric) > 0)
    other = " (though the mean over corpora goes the other way)" if contrary else ""
    return f"{test.model} {test.scheme}{other}"


# --- inputs ---------------------------------------------------------------------------------------


def _averaged(runs: tuple[Sequence[Run], Sequence[Run]], metric: Metric) -> tuple[Values, Values] | None:
    """Both systems' means over seeds, on the inputs that all runs have."""
    first = runs[0][0]
    columns: list[dict[str, float]] = []
    for run in (*runs[0], *runs[1]):
        _, evidence, _ = joined(first, run)
        if metric.family.needs_labels and evidence.judgements is None:
            return None
        values = metric.per_input(evidence)
        names = map(str, evidence.input_ids)
        columns.append({name: value for name, value in zip(names, values, strict=True) if np.isfinite(value)})
    common = [name for name in columns[0] if all(name in column for column in columns)]
    if not common:
        return None
    table = np.array([[column[name] for name in common] for column in columns])
    before, after = np.split(table, [len(runs[0])])
    return before.mean(axis=0), after.mean(axis=0)


# --- tests ----------------------------------------------------------------------------------------


def _interval(steps: Sequence[Values], *, seed: int) -> tuple[float, float]:
    total = np.zeros(RESAMPLES)
    for number, step in enumerate(steps):  # of each stratum as many are drawn as it has
        total += resampled(partial(_means, np.sort(step)), len(step), seed=seed + number)
    return percentile_interval(total / len(steps))


def _means(values: Values, places: NDArray[np.int64]) -> Values:
    return np.asarray(values[places].mean(axis=-1))


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for one value."""
    return float(np.std(values, ddof=1)) / sqrt(len(values)) if len(values) > 1 else None
