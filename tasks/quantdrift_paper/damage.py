"""What makes the rows and cells of the tables of damage and of trust; see tables.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean, median
from typing import Any, cast

import numpy as np

from quantdrift.compare.buckets import EDGES, breakdown
from quantdrift.compare.corpus_size import SizeEffect
from quantdrift.compare.pooled import standard_error
from quantdrift.metrics import parse_metric
from quantdrift.statistics.conformal import Statistic
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.results import sized_of
from quantdrift.trust.certify import ALPHAS, Certificate, certify
from quantdrift.trust.sweep import answers_of, sweep
from quantdrift_paper.cells import (
    ANY,
    BITS,
    FAMILIES,
    RETRIEVAL,
    USUAL,
    Cells,
    RunCell,
    by,
    each,
    mean,
    mean_of,
    only,
    usual,
    values,
)
from quantdrift_paper.contenders import predicted_by_contender_count
from quantdrift_paper.latex import Row, escaped, shown
from quantdrift_paper.law import LEAST_RUNS, law_runs, spearman

_STACKS = {"qwen": "Decoder", "bge": "Encoder", "e5": "Encoder", "gte": "Encoder", "minilm": "Encoder"}
"""What kind of transformer a model is, by what its name begins with."""
_LEVEL, _STAR = 0.05, r"$^{*}$"
"""What the paper puts where p is below a level."""
_GRIDS = (None, 128, 64)


def part(row: Any, at: int | str) -> float | str | None:
    """A part of a row, by its place or name."""
    found: Any = row[at] if isinstance(at, int) else getattr(row, at)
    return found.value if isinstance(found, Estimate) else found


# --- one model, read in two ways ------------------------------------------------------------------


def both(source: Any) -> Iterator[Row]:
    """A row for each classifier beside the searches of its model; embeddings read both ways are one checkpoint."""
    cells = usual(source.cells, bits=4)
    for model, probe in product(each(cells, "model"), (False, True)):
        of = only(cells, model=model)
        classes, searches = only(of, family="classes", probe=probe), only(of, family="self" if probe else RETRIEVAL)
        if probe:
            plain = tuple({*each(classes, "plain")} & {*each(searches, "plain")})
            classes, searches = only(classes, plain=plain), only(searches, plain=plain)
        if classes and searches:
            yield Row(labels=(escaped(model) + ", one checkpoint" * probe,), of=(classes, searches), part=probe)


def spread(row: Any, of: int | None = None, **facts: Any) -> str | None:
    """The mean top-1 change rate over corpora and its standard error, in percent; and over how many, `of` one side."""
    rates = values(only(row, **facts) if of is None else row[of], "flip@1")
    if not rates:
        return None
    error = standard_error(rates)
    if of is None:
        return f"{100 * fmean(rates):.1f}" + ("" if error is None else rf"\,{{\scriptsize$\pm${100 * error:.1f}}}")
    plus = "" if error is None else rf" \;\scriptsize$\pm${100 * error:.1f}"
    return rf"{shown(fmean(rates))}{plus} \;\scriptsize($n$={len(rates)})"


def times(pair: tuple[Cells, Cells]) -> str | None:
    """How many times as often a search changes."""
    low, high = (mean(values(side, "flip@1")) for side in pair)
    return rf"$\mathbf{{{high / low:.1f}\times}}$" if low and high is not None else None


def contrasts(source: Any) -> Iterator[Row]:
    """A row for every dataset and width whose embeddings are read both ways."""
    cells = usual(source.cells, bits=BITS, family=("classes", "self"))
    several = len(each(cells, "model")) > 1
    for model, plain, bits in product(*(each(cells, fact) for fact in ("model", "plain", "bits"))):
        pair = [only(cells, model=model, plain=plain, bits=bits, family=family) for family in ("classes", "self")]
        if all(pair) and pair[0][0].facts["probe"]:
            called = escaped(f"{plain}, {model}" if several else plain)
            yield Row(labels=(called, f"W{bits:g}"), of=[*pair[0], *pair[1]])


# --- models and quantizers ------------------------------------------------------------------------


def of_models(source: Any, families: Sequence[str], every: bool = False) -> list[str]:
    """The models that have runs of one of these families, or of every one."""
    cells = usual(source.cells, quantizer=ANY, bits=BITS)
    read = {model: {*each(only(cells, model=model), "family")} for model in each(cells, "model")}
    return [model for model, has in read.items() if ({*families} <= has if every else {*families} & has)]


def read_both_ways(source: Any) -> Iterator[Row]:
    """A row for each quantizer and width, of the models with classes and neighbours."""
    models = tuple(of_models(source, ("classes", "self"), every=True))
    return by(source.cells, ("bits", "quantizer"), shown=("quantizer", "bits"), bits=BITS, model=models)


def stack(cells: Cells) -> str | None:
    """Encoder or decoder."""
    name = cells[0].model.rpartition("/")[2].lower()
    return next((kind for start, kind in _STACKS.items() if name.startswith(start)), None)


def billions(cells: Cells) -> str | None:
    """Parameters of a model."""
    n = (cells[0].run.record.get("bits_per_weight") or {}).get("n_parameters")
    return None if not n else f"{n / 1e9:.2g}"


def order(source: Any, rows: Iterable[Row]) -> str:
    """How well the separation orders the change rate over the configurations of a table."""
    from scipy import stats  # noqa: PLC0415 -- takes long to import

    parts = [only(row.of, bits=bits) for row in rows for bits in each(row.of, "bits")]
    points = [[mean_of(metric)(cells) for metric in ("separation", "flip@1")] for cells in parts]
    points = [point for point in points if None not in point]
    if len(points) < LEAST_RUNS:
        return ""
    found = cast(Any, stats.spearmanr)(*zip(*points, strict=True))
    return f" Spearman of separation and change over {len(points)} configurations: {found.statistic:+.3f}."


def recall(cells: Cells) -> str | None:
    """R@1 of the candidate, and its relative change."""
    value, change = (mean(values(cells, metric)) for metric in ("accuracy", "relative.accuracy"))
    return None if value is None else rf"{shown(value)} \;\scriptsize({shown(change, '+.1%')})"


def at_every_grid(cells: Cells, family: tuple[str, ...], group: int | None) -> float | None:
    """The mean change rate at one granularity, over what is there at all three."""
    rates: dict[Any, dict[Any, float]] = {}
    for cell in only(cells, family=family):
        if (rate := cell.value("flip@1")) is not None:
            rates.setdefault((cell.model, cell.data, cell.facts["bits"]), {})[cell.facts["group"]] = rate
    return mean(of[group] for of in rates.values() if len(of) == len(_GRIDS))


# --- 8-bit activations ----------------------------------------------------------------------------

_SETTINGS: Mapping[str, tuple[int, int | None]] = {"W4": (4, None), "W4A8": (4, 8), "W8A8": (8, 8)}
_KINDS: Mapping[str, Any] = {"Classification": ("classes",), "Retrieval": RETRIEVAL}


def _key(cell: RunCell) -> tuple[Any, ...]:
    return cell.model, cell.data, cell.facts["family"]


def with_activations(source: Any) -> Iterator[Row]:
    """Three rows for either kind, over what is there in all settings."""
    for kind, family in _KINDS.items():
        cells = usual(source.cells, family=family, activations=ANY)
        columns = {s: {_key(c): c for c in only(cells, bits=b, activations=a)} for s, (b, a) in _SETTINGS.items()}
        keys = set.intersection(*({*column} for column in columns.values()))
        for what in ("Top-1 change", "Median separation", "Above threshold") if keys else ():
            of = {setting: [column[key] for key in keys] for setting, column in columns.items()}
            yield Row(labels=(f"{kind} ($n={len(keys)}$)", what), of=(what, of), part=kind)


def of_setting(row: tuple[str, Mapping[str, Cells]], setting: str) -> str:
    """What a row of A8 is about, in one setting."""
    what, cells = row[0], row[1][setting]
    if what == "Top-1 change":
        return shown(mean(cell.value("flip@1") for cell in cells))
    ratios = [cell.estimate("separation").value or 0.0 for cell in cells]
    return (
        shown(median(ratios), "ratio") if what == "Median separation" else shown(fmean(r >= 1 for r in ratios), ".0%")
    )


def a8_ratio(cells: Cells, bits: int) -> str | None:
    """How many times as often a search changes as classes do, with quantized activations."""
    low, high = (mean_of("flip@1", bits=bits, family=family, activations=8)(cells) for family in _KINDS.values())
    return rf"{high / low:.1f}$\times$" if low and high is not None else None


def a8_order(cells: Cells, bits: int) -> float | None:
    """Spearman of separation and change over the runs with quantized activations."""
    quantized = only(cells, bits=bits, activations=8)
    return spearman(law_runs([cell.run for cell in quantized])).value if quantized else None


# --- trust ----------------------------------------------------------------------------------------

Runs = Sequence[Sequence[Certificate]]
"""Certificates at the paper's levels, of every run."""
_SCORES: Mapping[Statistic, str] = {
    "S": "Our stability check",
    "gap": "Margin, generic calibration",
    "msp": "Max-softmax-prob, generic calibration",
}


def _certificates(cells: Cells, statistic: Statistic = "S") -> Runs:
    return [certify(cell.evidence, ALPHAS, [("joint", statistic)]).certificates for cell in cells]


def settings(source: Any) -> Iterator[Row]:
    """A row for every model and family, of the stability check."""
    for family, model in product(("classes", "search", "self", "clip"), each(source.cells, "model")):
        if cells := usual(source.cells, bits=4, family=family, model=model):
            yield Row(labels=(escaped(f"{FAMILIES[family]} ({model})"),), of=_certificates(cells))


def checked(source: Any) -> Iterator[Row]:
    """A row for every level of every setting."""
    for row in settings(source):
        for place, alpha in enumerate(ALPHAS):
            yield Row(labels=(*row.labels, f"{alpha:.2f}"), of=[[run[place]] for run in row.of], part=row.labels)


def coverage(runs: Runs) -> str | None:
    """Coverage, and its standard deviation over splits."""
    value, sd = (mean(getattr(run[0].coverage, side) for run in runs) for side in ("value", "sd"))
    return None if value is None else shown(value) + ("" if sd is None else rf" $\pm$ {100 * sd:.1f}")


def scores(source: Any) -> Iterator[Row]:
    """A row for each score of every model's classes."""
    for model in each(source.cells, "model"):
        if cells := usual(source.cells, bits=4, family="classes", model=model):
            for statistic, name in _SCORES.items():
                yield Row(labels=(escaped(model), name), of=_certificates(cells, statistic), part=model)


def certified(runs: Runs, what: str, at: int = 0) -> float | None:
    """Coverage, violation or threshold at one of the levels."""
    found = [getattr(run[at], what) for run in runs]
    return mean(value if isinstance(value, float) else value.value for value in found)


def routed(source: Any) -> Iterator[Row]:
    """Three rows a model over the data that lose half a point, per channel as in the paper, else in groups."""
    classes = usual(source.cells, bits=4, family="classes", group=ANY)
    classes = only(classes, group=None) or only(classes, group=USUAL["group"])
    losing = [cell for cell in classes if answers_of(cell.evidence).accuracy_reason is None]
    for model in each(losing, "model"):
        points = [point for cell in only(losing, model=model) for point in sweep(cell.evidence)]
        for score, name in {"gap": "Gap (ours)", "msp": "MSP", "entropy": "Entropy"}.items():
            label = f"{escaped(model)} ({len(only(losing, model=model))})"
            yield Row(labels=(label, name), of=[point for point in points if point.score == score], part=model)


def swept(points: Sequence[Any], percentile: int, what: str) -> float | None:
    """What routing does at a percentile."""
    return mean(getattr(point, what).value for point in points if point.percentile == percentile)


# --- ranks, labels, sizes, contenders -------------------------------------------------------------

_TOP = 5
"""Size of the sets of answers that are compared; with as many classes or fewer no set can change."""
_FEW = 7
"""Up to so many data p is computed over all their orders."""


def accuracy_ranks(source: Any) -> Iterator[Row]:
    """How lost accuracy ranks data, against changed sets: a row for each model and configuration where they differ."""
    cells = usual(source.cells, bits=BITS, family="classes", group=ANY)
    for model, bits, group in product(each(cells, "model"), BITS, _GRIDS):
        pairs = [
            (-lost, 1 - kept)
            for cell in only(cells, model=model, bits=bits, group=group)
            if (lost := cell.value("change.accuracy")) is not None
            and (kept := cell.value(f"set_kept@{_TOP}")) is not None
            and cell.evidence.n_items.max(initial=0) > _TOP
        ]
        if len(pairs) >= LEAST_RUNS and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            rho, p = _ranked(pairs)
            named = rf"W{bits}-group\_{group}" if group else f"W{bits}-channel"
            of = (len(pairs), f"${rho:+.3f}$" + _STAR * (p < _LEVEL), p, pairs)
            yield Row(labels=(escaped(model), named), of=of)


def _ranked(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Spearman and p; of few data over all their orders, as the usual approximation takes a perfect order for proof."""
    from scipy import stats  # noqa: PLC0415 -- takes long to import

    whole: Any = stats
    correlation = whole.spearmanr(*zip(*pairs, strict=True))
    if len(pairs) > _FEW:
        return float(correlation.statistic), float(correlation.pvalue)
    first, second = whole.rankdata(pairs, axis=0).T
    products = whole.permutation_test(
        (first,), lambda x, axis: (x * second).sum(axis=axis), permutation_type="pairings"
    )
    return float(correlation.statistic), float(products.pvalue)


def pooled(source: Any, rows: Sequence[Row]) -> str:
    """The correlation over all rows, and that of ranks within each."""
    from scipy.stats import rankdata  # noqa: PLC0415 -- takes long to import

    every = [row.of[3] for row in rows]
    ranks = [cast(Any, rankdata)(pairs, axis=0) for pairs in every]
    within = np.corrcoef(np.concatenate([side - side.mean(axis=0) for side in ranks]).T)[0, 1]
    over_all = _ranked([pair for pairs in every for pair in pairs])[0]
    return f"All rows pooled: {over_all:+.3f}; of ranks within each row: {within:+.3f}."


def harms(source: Any) -> Iterator[Row]:
    """A row for each bucket of the separation, with the queries of either width."""
    by_separation, metrics = parse_metric("separation"), [parse_metric(name) for name in ("flip@1", "harm")]
    found = {}
    for bits in BITS:
        cells = [c.evidence for c in usual(source.cells, bits=bits, family="search", quantizer=ANY) if c.evidence.exact]
        judged = [evidence for evidence in cells if evidence.judgements is not None]
        found[bits] = breakdown(judged, by=by_separation, metrics=metrics) if judged else ()
    edges = EDGES["separation"]
    for place, (low, high) in enumerate(zip(edges, [*edges[1:], None], strict=True)):
        label = rf"$\ge {low:g}$" if high is None else rf"$[{low:g},\, {high:g})$"
        yield Row(labels=(label,), of={bits: buckets[place] for bits, buckets in found.items() if buckets})


def bucket(row: Mapping[int, Any], bits: int, what: str) -> float | None:
    """A number of a bucket at a width."""
    found = row.get(bits)
    if found is None or not found.n:
        return None
    value: float | None = found.n if what == "n" else found.estimates[what].value
    return value


def sizes(source: Any, families: tuple[str, ...]) -> Iterator[Row]:
    """A row for each corpus in two sizes or more."""
    cells = usual(source.cells, bits=4, family=families, whole=ANY)
    for pair in sized_of((cell.cell, cell.run) for cell in cells):
        yield Row(labels=(escaped(pair.model), escaped(pair.corpus)), of=pair.effect)


def documents(effect: SizeEffect, of: str) -> str:
    """The size of a corpus."""
    return f"{getattr(effect, of):,}".replace(",", "{,}")


def changed(effect: SizeEffect, of: str) -> float | str:
    """The change rate at a size; with a star at the large one where it differs."""
    rate = float(getattr(effect, f"flip_{of}")) / effect.n
    return shown(rate) + _STAR if of == "large" and effect.p_flip < _LEVEL else rate


_DEEP = ((1, 50), (51, 120), (181, 199))
_COUNTS = {"classes": ((1, 1), (2, 2), (3, 3), (4, 4)), "self": _DEEP, "search": _DEEP}
"""The paper's buckets of contender counts."""


def predictions(source: Any) -> Iterator[Row]:
    """A row for each number of contenders of every model and family."""
    for family, model in product(_COUNTS, each(source.cells, "model")):
        cells = usual(source.cells, bits=4, family=family, model=model)
        if evidence := [cell.evidence for cell in cells if cell.evidence.exact]:
            group = predicted_by_contender_count(evidence, buckets=_COUNTS[family])
            called = escaped(f"{FAMILIES[family]}, {model}")
            for found in group.filled:
                ends = f"{found.low}" if found.high == found.low else f"{found.low}--{found.high}"
                yield Row(labels=(called, shown(group.fit.scale, ".2f"), ends), of=found, part=called)
