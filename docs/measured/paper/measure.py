"""What the offline studies give for the comparisons of the paper: `measure.py STUDIES`, or `measure.py STUDIES mpnet`.

STUDIES/SUITE is the study that `quantdrift study run --suite SUITE --offline --out STUDIES/SUITE` made. For each suite
that is there, offline.csv (or offline-mpnet.csv) gets a row for what comparisons.csv names in it. A quantity is a cell
and a metric, `W4-hqq flip@1`, `W4/DATA flip@1`, `SUITE:W4 flip@1`; a mean of quantities, joined by `&`; a number; or a
cell and one of the methods below, `W4 certify(S,0.10)`. Intervals resample the inputs, the same ones in both quantities
where both have the same inputs. A share of 0 or 1 is that in all resamples; there Wilson's interval takes its place.
"""

import re
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from paper import COMPARISONS, OFFLINE, rows_in, write_page, written

from quantdrift.metrics import parse_metric
from quantdrift.spec.grammar import parse
from quantdrift.statistics.conformal import accepts, observe, threshold_of
from quantdrift.statistics.estimates import CONFIDENCE, RESAMPLES, percentile_interval, rate_estimate
from quantdrift.study.folder import StudyFolder, open_study
from quantdrift.trust.certify import random_splits
from quantdrift.trust.router import percentile_threshold
from quantdrift.trust.sweep import answers_of
from quantdrift_paper.capture import read_capture
from quantdrift_rag.answers import RECORD, Rag, RagRecord, normalized

SPLITS, FEW = 20, 200
"""Splits of the stability check and of routing, as in the paper; and resamples of what is split so many times."""
Floats = np.ndarray[Any, Any]
Quantity = tuple[Floats, int]
"""As measured, then of resampled inputs; and the number of inputs that it is defined for, the least of several."""


@cache
def study(place: Path, suite: str) -> StudyFolder:
    """The study of a suite."""
    return open_study(place / suite)


@cache
def evidence(place: Path, suite: str, cell: str) -> Any:
    """The evidence of a cell, SCHEME or SCHEME/DATA."""
    scheme, _, data = cell.partition("/")
    wanted = str(parse(f"m@{scheme}").scheme)
    cells = [c for c in study(place, suite).cells if str(c.spec.scheme) == wanted and data in {"", c.data.called}]
    run = study(place, suite).run(cells[0]) if len(cells) == 1 else None
    if run is None:
        raise SystemExit(f"{suite}: {cell}: expected one finished cell; got {[c.name for c in cells]}")
    return run.evidence()


@cache
def drawn(ids: tuple[str, ...], resamples: int) -> Floats:
    """The positions of all inputs, then of resamples, int64 [1 + resamples, n]; the same inputs, the same ones."""
    rng, n = np.random.default_rng(zlib.crc32("\n".join(ids).encode())), len(ids)
    return np.concatenate([np.arange(n)[None], rng.integers(0, n, (resamples, n))])


def quantity(place: Path, suite: str, text: str) -> Quantity:
    """A quantity as it is written in comparisons.csv."""
    if "&" in text:
        parts = [quantity(place, suite, part.strip()) for part in text.split("&")]
        return np.mean([values for values, _ in parts], axis=0), min(n for _, n in parts)
    if re.fullmatch(r"[0-9.]+", text):
        return np.array(float(text)), 0
    cell, name = text.split(" ")
    suite, cell = cell.split(":") if ":" in cell else (suite, cell)
    if special := re.fullmatch(r"(\w+)\((.*)\)", name):
        return SPECIAL[special[1]](place, suite, cell, *filter(None, special[2].split(",")))
    sign, metric, of = -1 if name[0] == "-" else 1, parse_metric(name.lstrip("-")), evidence(place, suite, cell)
    rows = drawn(tuple(of.input_ids.tolist()), RESAMPLES)
    if metric.arm == "relative":
        arms = [parse_metric(f"{arm}.{metric}".replace("relative.", "")) for arm in ("candidate", "reference")]
        ours, before = (np.nanmean(arm.per_input(of)[rows], axis=1) for arm in arms)
        return sign * (ours / before - 1), of.n_inputs
    middle, values = np.nanmedian if metric.uncertainty == "order statistics" else np.nanmean, metric.per_input(of)
    return sign * middle(values[rows], axis=1), int((~np.isnan(values)).sum())


def _over_splits(share: Callable[[Floats, Floats], tuple[float, float]], ids: tuple[str, ...]) -> Quantity:
    """A ratio of sums over random splits, each in a half that calibrates and one that is tested."""
    cut, orders = random_splits(len(ids), 0.5, SPLITS, 0)
    sums = [
        np.sum([share(rows[order[:cut]], rows[order[cut:]]) for order in orders], axis=0) for rows in drawn(ids, FEW)
    ]
    return np.array([part / whole if whole else np.nan for part, whole in sums]), len(ids)


def certify(place: Path, suite: str, cell: str, statistic: Any, alpha: str) -> Quantity:
    """The share that the stability check, or another score, accepts."""
    of = evidence(place, suite, cell)
    whole = observe(of, statistic)
    inputs = whole.part(whole.defined)

    def share(calibrating: Floats, tested: Floats) -> tuple[float, float]:
        threshold = threshold_of(inputs.part(calibrating), float(alpha))
        return accepts(inputs.confidence[tested], threshold, statistic).sum(), len(tested)

    return _over_splits(share, tuple(of.input_ids[whole.defined].tolist()))


def broken(place: Path, suite: str, cell: str, statistic: Any, alpha: str) -> Quantity:
    """The share of the accepted answers that changed; it rests on those that one split accepts."""
    of = evidence(place, suite, cell)
    whole = observe(of, statistic)
    inputs = whole.part(whole.defined)

    def share(calibrating: Floats, tested: Floats) -> tuple[float, float]:
        threshold = threshold_of(inputs.part(calibrating), float(alpha))
        accepted = accepts(inputs.confidence[tested], threshold, statistic)
        return (accepted & inputs.flipped[tested]).sum(), accepted.sum()

    values, n = _over_splits(share, tuple(of.input_ids[whole.defined].tolist()))
    return values, round(float(certify(place, suite, cell, statistic, alpha)[0][0]) * n / 2)


def recovered(place: Path, suite: str, cell: str, score: Any, percentile: str) -> Quantity:
    """The share of the lost accuracy that routing recovers."""
    of = evidence(place, suite, cell)
    answers = answers_of(of, score)

    def share(calibrating: Floats, tested: Floats) -> tuple[float, float]:
        below = answers.confidence[tested] < percentile_threshold(answers.confidence[calibrating], float(percentile))
        return np.nansum(answers.gain[tested[below]]), np.nansum(answers.gain[tested])

    return _over_splits(share, tuple(of.input_ids.tolist()[: len(answers.gain)]))


def threshold(place: Path, suite: str, cell: str, statistic: Any, alpha: str) -> Quantity:
    """The threshold of the stability check, all inputs calibrating."""
    of = evidence(place, suite, cell)
    whole = observe(of, statistic)
    inputs = whole.part(whole.defined)
    rows = drawn(tuple(of.input_ids[whole.defined].tolist()), FEW)
    return np.array([threshold_of(inputs.part(row), float(alpha)) for row in rows]), int(whole.defined.sum())


def order(place: Path, suite: str, _: str, *metrics: str) -> Quantity:
    """The rank correlation of two metrics over all cells of a study."""
    from scipy.stats import rankdata  # noqa: PLC0415 -- takes long to import

    cells = [f"{c.spec.scheme}/{c.data.called}" for c in study(place, suite).cells]
    sides = [[quantity(place, suite, f"{cell} {metric}") for cell in cells] for metric in metrics]
    ranks = [rankdata([values for values, _ in side], axis=0) - (len(cells) + 1) / 2 for side in sides]
    sizes = [(rank**2).sum(axis=0) for rank in ranks]
    return (ranks[0] * ranks[1]).sum(axis=0) / np.sqrt(sizes[0] * sizes[1]), sides[0][0][1]


def size(place: Path, suite: str, cell: str, *metrics: str) -> Quantity:
    """The size of that rank correlation."""
    values, n = order(place, suite, cell, *metrics)
    return np.abs(values), n


def capture(place: Path, suite: str, cell: str, metric: str) -> Quantity:
    """The captured share of a wider width's benefit; the cell is CRITERION/QUANTIZER/BUDGET, with /A8 or /n=QUERIES."""
    criterion, _, point = cell.partition("/")
    (low, n), (mine, _), (high, _) = (mean(place, suite, f"{c}/{point}", metric) for c in ("low", criterion, "high"))
    room = low - high
    return np.divide(low - mine, room, out=np.full_like(room, np.nan), where=room * room[0] > 0), n


def mean(place: Path, suite: str, cell: str, metric: str) -> Quantity:
    """The mean of a metric over the points of a capture study, of a criterion or of `low` or `high`."""
    criterion, quantizer, budget, *rest = cell.split("/")
    read = _read(place, suite, metric)
    wanted = (quantizer, float(budget), 8 if "A8" in rest else 16)
    columns = [
        read.corpora[point.data].means[metric][:, runs[_named(runs, criterion)]]
        for point, runs in read.points.items()
        if (point.quantizer, point.budget, point.activations) == wanted
        and all(part in {"A8", f"n={point.size}"} for part in rest)
    ]
    return np.mean(columns, axis=0), sum(corpus.values[metric].shape[1] for corpus in read.corpora.values())


def agreement(place: Path, suite: str, criterion: str) -> Quantity:
    """The share of layers with the same width under two draws of queries, mean over budgets; layers are resampled."""
    read, widths = _read(place, suite, "flip@1"), dict[tuple[Any, ...], list[Any]]()
    for point, runs in read.points.items():
        allocation = read.corpora[point.data].runs[runs[_named(runs, criterion)]].record["quantization"]["allocation"]
        widths.setdefault((point.data, point.budget, point.size), []).append(allocation["widths"])
    same = np.mean([[a[name] == b[name] for name in a] for a, b in widths.values()], axis=0)
    return same[drawn(tuple(next(iter(widths.values()))[0]), RESAMPLES)].mean(axis=1), len(same)


def answers(place: Path, suite: str, cell: str, what: str) -> Quantity:
    """Of the answers behind a search: the share that changes or is lost, or how many change, get worse or better."""
    rag = Rag(record=RagRecord.read(study(place, suite).path / "rag" / RECORD))
    by_name = {condition.name: condition for condition in rag.record.conditions}
    sides = rag.record.reference, by_name[str(parse(f"m@{cell}").scheme)]
    (before, after), (said, now) = (
        [rag.outcomes[side.name]["exact_match"] for side in sides],
        [np.array([normalized(text) for text in side.answers]) for side in sides],
    )
    values = {"change": said != now, "loss": before - after, "worse": before > after, "better": before < after}
    rows = drawn(tuple(rag.record.ids), RESAMPLES)
    shares = np.asarray(values[what.removeprefix("n_")])[rows].mean(axis=1)
    return (shares * rows.shape[1] if what.startswith("n_") else shares), rows.shape[1]


def _named(runs: Mapping[str, int], criterion: str) -> str:
    """A criterion as the study has it, with its options."""
    return next(name for name in runs if name.partition("+")[0] == criterion)


@cache
def _read(place: Path, suite: str, metric: str) -> Any:
    return read_capture([study(place, suite)], [parse_metric(metric)])


_ALL = (certify, broken, recovered, threshold, order, size, capture, mean, agreement, answers)
SPECIAL: dict[str, Callable[..., Quantity]] = {f.__name__: f for f in _ALL}


def interval(first: Quantity, second: Quantity) -> tuple[float, float]:
    """The 95 % interval of first less second; where a share has no spread, from an interval of each (Newcombe).

    None, that is NaN, where one resample in twenty has no value, as the wider width repairs nothing there.
    """
    steps = np.asarray(first[0] - second[0])
    if all(n == 0 or np.nanmax(values[1:]) > np.nanmin(values[1:]) for values, n in (first, second)):
        there = steps[1:][np.isfinite(steps[1:])]
        return percentile_interval(there) if len(there) > CONFIDENCE * (len(steps) - 1) else (np.nan, np.nan)
    down, up = [], []
    for (values, n), side in ((first, 1), (second, -1)):
        value, low, high = values.flat[0], values.flat[0], values.flat[0]
        if n and np.ptp(values[1:]) > 0:
            low, high = percentile_interval(values[1:])
        elif n:
            share = rate_estimate(np.repeat([1.0, 0.0], [round(value * n), n - round(value * n)]))
            low, high = share.low, share.high
        down.append(value - low if side > 0 else high - value)
        up.append(high - value if side > 0 else value - low)
    return float(steps[0] - np.hypot(*down)), float(steps[0] + np.hypot(*up))


def measured(place: Path, suite: str, here: str) -> dict[str, str]:
    """One row of offline.csv."""
    first, second = (quantity(place, suite, side) for side in here.split(" | "))
    values = [float(side.flat[0]) for side in (first[0], second[0], np.asarray(first[0] - second[0]))]
    names = ("first", "second", "difference", "low", "high")
    figures = dict(zip(names, (*values, *interval(first, second)), strict=True))
    sizes = f"{first[1]}" if second[1] in {0, first[1]} else f"{first[1]} and {second[1]}"
    return {"suite": suite, "here": here, "n": sizes, **{name: f"{value:.5g}" for name, value in figures.items()}}


if __name__ == "__main__":
    studies, *other = sys.argv[1:]
    target = OFFLINE.with_stem(f"{OFFLINE.stem}-{other[0]}") if other else OFFLINE
    there = {path.name for path in Path(studies).iterdir() if (path / "study.json").exists()}
    asked = dict.fromkeys((row["suite"], row["here"]) for row in rows_in(COMPARISONS) if row["here"])
    rows = [row for row in rows_in(target) if row["suite"] not in there and (row["suite"], row["here"]) in asked]
    rows += [measured(Path(studies), suite, here) for suite, here in asked if suite in there]
    target.write_text(written(sorted(rows, key=lambda row: list(asked).index((row["suite"], row["here"])))))
    write_page()
