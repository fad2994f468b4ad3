"""The paper's tables from the runs of a study: each function makes one, or says why it cannot.

A function is called with the finished runs. Its rows and columns are those of the paper's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from statistics import fmean, median
from typing import Any, Literal, cast

import numpy as np

from quantdrift.base.display import clean
from quantdrift.compare.buckets import breakdown
from quantdrift.compare.pooled import standard_error
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.quantizers import QUANTIZERS
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import classifies, is_part
from quantdrift.spec.grammar import Scheme
from quantdrift.stages.weights import DEFAULT_GROUP_SIZE
from quantdrift.statistics.conformal import Statistic
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell
from quantdrift.study.results import Result, sized_of
from quantdrift.trust.certify import ALPHAS, Certificate, certify
from quantdrift.trust.sweep import PERCENTILES, answers_of, sweep
from quantdrift_paper.contenders import predicted_by_contender_count
from quantdrift_paper.law import LEAST_RUNS, law_runs

Kind = Literal["classes", "search"]
KINDS: tuple[Kind, ...] = ("classes", "search")
NAMES = {name: QUANTIZERS[name].title for name in ("rtn", "hqq", "gptq", "gptq_ao", "awq", "adaround")}
"""Quantizers in the order of the paper's tables."""
_BITS = (4, 3)
_NONE = "--"
_LATIN = 0x180
"""Letters below this are in LaTeX's usual fonts."""
_SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip


def escaped(text: str) -> str:
    """Text in which LaTeX obeys nothing; what its usual fonts lack is a question mark.

    >>> escaped("50 % of a_b & c")
    '50 \\\\% of a\\\\_b \\\\& c'
    """
    return "".join(
        _SIGNS.get(sign, sign if sign.isascii() or (sign.isalpha() and ord(sign) < _LATIN) else "?")
        for sign in clean(text)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as LaTeX.

    Attributes:
        columns: of the tabular, e.g. "l|cc".
        head: lines above the first rule below the head, as LaTeX.
        rows: cells as LaTeX; None is a rule.
        about: what it is of here, as a sentence, not escaped.
    """

    columns: str
    head: Sequence[str]
    rows: Sequence[Sequence[str] | None]
    about: str

    def tabular(self) -> str:
        """The tabular environment in the paper's style."""
        rows = [rf"{' & '.join(row)} \\" if row is not None else r"\midrule" for row in self.rows]
        lines = [rf"\begin{{tabular}}{{{self.columns}}}", r"\toprule", *self.head, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*lines, r"\end{tabular}", ""])


# --- the runs of a study --------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class RunCell:
    """A finished run, whose evidence is read once."""

    cell: Cell
    model: str
    data: str
    scheme: Scheme
    kind: Kind
    run: Run
    _evidence: Evidence | None = None
    _known: dict[str, Estimate] = field(default_factory=dict)

    @property
    def evidence(self) -> Evidence:
        """Of the run."""
        if self._evidence is None:
            self._evidence = self.run.evidence()
        return self._evidence

    def estimate(self, metric: str) -> Estimate:
        """A metric of the run; undefined where it looks deeper than the stored ranks."""
        if metric not in self._known:
            try:
                self._known[metric] = parse_metric(metric)(self.evidence)
            except MetricError as error:
                self._known[metric] = Estimate(value=None, reason=str(error))
        return self._known[metric]

    def value(self, metric: str) -> float | None:
        """Its value, where there is a finite one."""
        found = self.estimate(metric).value
        return found if found is not None and isfinite(found) else None


Cells = Sequence[RunCell]


def run_cells(folder: StudyFolder) -> list[RunCell]:
    """The finished runs of a study."""
    found = []
    for cell in folder.cells:
        if (run := folder.run(cell)) is not None:
            scheme = Result(cell=cell, state="done", run=run, metrics={}).parsed
            kind: Kind = "classes" if classifies(run.record) else "search"
            found.append(RunCell(cell=cell, model=cell.model, data=cell.data.called, scheme=scheme, kind=kind, run=run))
    return found


def plain_cells(
    cells: Cells,
    bits: float | None = None,
    *,
    quantizer: str | None = "rtn",
    group: int | None = DEFAULT_GROUP_SIZE,
    kind: Kind | None = None,
    model: str | None = None,
    activation: int | None = None,
    criterion: str | None = None,
) -> list[RunCell]:
    """Cells of a plain scheme on whole corpora; those whose query alone is quantized are in no table."""
    return [
        one
        for one in cells
        if (bits is None or one.scheme.weight_bits == bits)
        and (quantizer is None or one.scheme.quantizer == quantizer)
        and one.scheme.group_size == group
        and (kind is None or one.kind == kind)
        and (model is None or one.model == model)
        and one.scheme.activation_bits == activation
        and not one.scheme.per_token
        and one.scheme.criterion == criterion
        and not one.scheme.query_only
        and not is_part(one.run.record)
    ]


def _models(cells: Cells) -> list[str]:
    return list(dict.fromkeys(one.model for one in cells))


def _values(cells: Cells, metric: str) -> list[float]:
    """One value a corpus; seeds are averaged first."""
    by_data: dict[str, list[float]] = {}
    for one in cells:
        if (value := one.value(metric)) is not None:
            by_data.setdefault(one.data, []).append(value)
    return [fmean(values) for values in by_data.values()]


def _mean(cells: Cells, metric: str) -> float | None:
    values = _values(cells, metric)
    return fmean(values) if values else None


def _percent(value: float | None, digits: int = 1) -> str:
    return _NONE if value is None else rf"{100 * value:.{digits}f}\%"


def _signed(value: float | None) -> str:
    return _NONE if value is None else rf"${100 * value:+.1f}$\%"


def _ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _rate(cells: Cells, metric: str) -> str:
    return _percent(_mean(cells, metric))


def _row(*cells: str) -> str:
    return rf"{' & '.join(cells)} \\"


def _wide(columns: int, text: str) -> str:
    return rf"\multicolumn{{{columns}}}{{c}}{{{text}}}"


def _over(cells: Cells) -> str:
    names = list(dict.fromkeys(one.data for one in cells))
    return f"{len(names)} {'corpus' if len(names) == 1 else 'corpora'} ({', '.join(names)})"


# --- tables ---------------------------------------------------------------------------------------


def _searches(cells: Cells) -> str:
    return f"Mean over {_over(plain_cells(cells, kind='search'))}."


def fragility(cells: Cells) -> Table | str:
    """Change rates of models that are read both as classes and by a search."""
    rows: list[Sequence[str]] = []
    for model in _models(cells):
        both = [plain_cells(cells, 4, kind=kind, model=model) for kind in KINDS]
        values = [_values(one, "flip@1") for one in both]
        if all(values):
            told = []
            for each in values:
                error = standard_error(each)
                plus = "" if error is None else rf" \;\scriptsize$\pm${100 * error:.1f}"
                told.append(rf"{_percent(fmean(each))}{plus} \;\scriptsize($n$={len(each)})")
            low, high = fmean(values[0]), fmean(values[1])
            rows.append([escaped(model), *told, rf"$\mathbf{{{high / low:.1f}\times}}$" if low else _NONE])
    if not rows:
        return "no model has both classes and a search at W4-g128-rtn"
    head = [r"Backbone & Classification & Retrieval & Ratio \\"]
    return Table(
        columns="l|cc|c", head=head, rows=rows, about="Top-1 change rate at W4-g128-rtn, mean ± standard error."
    )


def gold(cells: Cells) -> Table | str:
    """Loss of the mean beside relevant documents lost."""
    rows: list[Sequence[str] | None] = []
    for bits in _BITS:
        own = plain_cells(cells, bits, kind="search")
        listed = [
            [
                escaped(model),
                f"W{bits}",
                _signed(_mean(part, "relative.ndcg@10")),
                *(_rate(part, f"gold_lost@{k}") for k in (1, 5, 10)),
            ]
            for model in _models(own)
            if _values(part := plain_cells(own, model=model), "gold_lost@1")
        ]
        rows += [None, *listed] if rows and listed else listed
    if not rows:
        return "no labelled search at W4-g128-rtn or W3-g128-rtn"
    head = [
        r"& & & \multicolumn{3}{c}{Gold document lost from top-$k$} \\",
        r"\cmidrule(lr){4-6}",
        r"Model & Bits & NDCG loss & $k{=}1$ & $k{=}5$ & $k{=}10$ \\",
    ]
    about = f"Round to nearest, group 128, mean over {_over(plain_cells(cells, kind='search'))}."
    return Table(columns="l|c|cccc", head=head, rows=rows, about=about)


def _certificates(
    cells: Cells, statistic: Statistic = "S", kinds: Sequence[Kind] = KINDS
) -> dict[str, list[list[Certificate]]]:
    """Per model and kind of W4-g128-rtn, of every corpus the certificates at the paper's levels."""
    found: dict[str, list[list[Certificate]]] = {}
    for kind, model in product(kinds, _models(cells)):
        for one in plain_cells(cells, 4, kind=kind, model=model):
            named = f"{'Classification' if kind == 'classes' else 'Retrieval'} ({model})"
            found.setdefault(named, []).append(list(certify(one.evidence, ALPHAS, [statistic]).certificates))
    return found


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and isfinite(value)]
    return fmean(known) if known else None


NO_W4 = "no run at W4-g128-rtn"


def certificate(cells: Cells) -> Table | str:
    """Coverage and violation of the stability check."""
    rows: list[Sequence[str] | None] = []
    for name, runs in _certificates(cells).items():
        rows += [None] if rows else []
        for place, alpha in enumerate(ALPHAS):
            own = [run[place] for run in runs]
            spread = _mean_of([one.coverage.sd for one in own])
            plus = "" if spread is None else rf" $\pm$ {100 * spread:.1f}"
            coverage = _percent(_mean_of([one.coverage.value for one in own]))
            violation = _percent(_mean_of([one.violation.value for one in own]), 2)
            first = escaped(name) if not place else ""
            rows.append([first, f"{alpha:.2f}", coverage if coverage == _NONE else coverage + plus, violation])
    if not rows:
        return NO_W4
    head = [r"Setting & $\alpha$ & Coverage & Violation \\"]
    return Table(
        columns="l|c|cc", head=head, rows=rows,
        about="W4-g128-rtn, mean over corpora, ± the standard deviation over 20 splits of one corpus.",
    )  # fmt: skip


def tau(cells: Cells) -> Table | str:
    """Thresholds of the stability check."""
    rows = [
        [
            escaped(name),
            *(
                _NONE if (tau := _mean_of([run[place].threshold for run in runs])) is None else f"{tau:.3g}"
                for place in range(len(ALPHAS))
            ),
        ]
        for name, runs in _certificates(cells).items()
    ]
    if not rows:
        return NO_W4
    head = [_row("Setting", *(rf"$\alpha = {alpha:.2f}$" for alpha in ALPHAS))]
    about = "W4-g128-rtn, median over 20 splits, mean over corpora. Logits for classes, similarities for a search."
    return Table(columns="l|ccc", head=head, rows=rows, about=about)


def baselines(cells: Cells) -> Table | str:
    """The stability check against confidences alone."""
    names: dict[Statistic, str] = {
        "S": "Our stability check",
        "gap": "Margin, generic calibration",
        "msp": "Max-softmax-prob, generic calibration",
    }
    rows = []
    for statistic, name in names.items():
        runs = [run for group in _certificates(cells, statistic, ("classes",)).values() for run in group]
        if not runs:
            return "no classes at W4-g128-rtn"
        told = [name]
        for place in range(len(ALPHAS)):
            told.append(_percent(_mean_of([run[place].coverage.value for run in runs])))
            told.append(_percent(_mean_of([run[place].violation.value for run in runs]), 2))
        rows.append(told)
    head = [
        " & " + " & ".join(rf"\multicolumn{{2}}{{c}}{{$\alpha={alpha:.2f}$}}" for alpha in ALPHAS) + r" \\",
        r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}",
        r"Score & Cover & Viol. & Cover & Viol. & Cover & Viol. \\",
    ]
    return Table(columns="lcccccc", head=head, rows=rows, about="W4-g128-rtn, mean over 20 splits and all data.")


def system(cells: Cells) -> Table | str:
    """A search as its users judge it."""
    rows = [
        [
            escaped(model),
            f"W{bits}",
            _rate(own, "flip@1"),
            _rate(own, "reference.recall@1"),
            rf"{_rate(own, 'recall@1')} \;\scriptsize({_signed(_mean(own, 'relative.recall@1'))})",
            _rate(own, "gold_lost@1"),
        ]
        for model, bits in product(_models(cells), _BITS)
        if _values(own := plain_cells(cells, bits, kind="search", model=model), "recall@1")
    ]
    if not rows:
        return "no labelled search at W4-g128-rtn or W3-g128-rtn"
    head = [r"Encoder & Bits & Top-1 change & R@1 (FP) & R@1 (PTQ) & Correct item lost$^{\ast}$ \\"]
    return Table(columns="l|c|cccc", head=head, rows=rows, about=_searches(cells))


def arch(cells: Cells) -> Table | str:
    """Change rate and separation of every model at both widths."""
    rows = []
    for model in _models(cells):
        own = [plain_cells(cells, bits, kind="search", model=model) for bits in _BITS]
        if not any(own):
            continue
        first = next(each[0] for each in own if each)
        n = (first.run.record.get("bits_per_weight") or {}).get("n_parameters")
        told = [_NONE if not n else f"{n / 1e9:.2g}"]
        rows.append([escaped(model), _NONE, *told, *(c for one in own for c in (_rate(one, "flip@1"), _sep(one)))])
    if not rows:
        return "no search at W4-g128-rtn or W3-g128-rtn"
    head = [
        r"& & & \multicolumn{2}{c}{W4-group\_128} & \multicolumn{2}{c}{W3-group\_128} \\",
        r"\cmidrule(lr){4-5}\cmidrule(lr){6-7}",
        r"Model & Family & Params (B) & Change & Sep. & Change & Sep. \\",
    ]
    about = f"Mean over {_over(plain_cells(cells, kind='search'))}. Runs do not know the family."
    return Table(columns="l|l|r|cccc", head=head, rows=rows, about=about)


def _sep(cells: Cells) -> str:
    return _ratio(_mean(cells, "separation"))


def reranker(cells: Cells) -> Table | str:
    """Shortlists that a cross-encoder reranks."""
    listed = [one for one in cells if one.run.record["data"].get("shortlist")]
    rows = [
        [escaped(data), f"W{bits}", _rate(own, "flip@1"), _sep(own)]
        for data, bits in product(dict.fromkeys(one.data for one in listed), _BITS)
        if (own := [one for one in plain_cells(listed, bits) if one.data == data])
    ]
    if not rows:
        return "no shortlist is reranked in it"
    head = [r"Corpus & Bits & Flip & Median sep.\ ratio \\"]
    return Table(columns="lccc", head=head, rows=rows, about="Shortlists reranked by a quantized cross-encoder.")


def quantizers(cells: Cells) -> Table | str:
    """Change rate of every quantizer and model."""
    own = plain_cells(cells, kind="search", quantizer=None)
    models = _models(own)
    rows: list[Sequence[str] | None] = []
    for bits in _BITS:
        there = [name for name in NAMES if plain_cells(own, bits, quantizer=name)]
        rows += [None] if rows and there else []
        for place, name in enumerate(there):
            told = []
            for model in models:
                values = _values(plain_cells(own, bits, quantizer=name, model=model), "flip@1")
                error = standard_error(values) if values else None
                plus = "" if error is None else rf"\,{{\scriptsize$\pm${100 * error:.1f}}}"
                told.append(f"{100 * fmean(values):.1f}{plus}" if values else _NONE)
            turned = rf"\multirow{{{len(there)}}}{{*}}{{\rotatebox[origin=c]{{90}}{{W{bits}}}}}"
            rows.append([turned if not place else "", NAMES[name], *told])
    if not rows:
        return "no search at 4 or 3 bits in groups of 128"
    head = [rf"Bits & Quantizer & {' & '.join(map(escaped, models))} \\"]
    about = f"Top-1 retrieval change rate (%) at group 128, mean ± standard error over {_over(own)}."
    return Table(columns="c|l|" + "c" * len(models), head=head, rows=rows, about=about)


def _by_quantizer(
    cells: Cells, models: Sequence[str], told: Callable[[Cells], list[str]]
) -> list[Sequence[str] | None]:
    """Quantizers at 4 bits, a rule, and at 3 bits, with cells for each model."""
    rows: list[Sequence[str] | None] = []
    for bits in _BITS:
        there = [name for name in NAMES if plain_cells(cells, bits, quantizer=name)]
        rows += [None] if rows and there else []
        rows += [
            [
                NAMES[name],
                f"W{bits}",
                *(c for m in models for c in told(plain_cells(cells, bits, quantizer=name, model=m))),
            ]
            for name in there
        ]
    return rows


def regime(cells: Cells) -> Table | str:
    """Separation, change and accuracy of models that are read both ways."""
    kinds = {model: {one.kind for one in cells if one.model == model} for model in _models(cells)}
    models = [model for model, found in kinds.items() if len(found) == len(KINDS)]

    def told(own: Cells) -> list[str]:
        classes, search = (plain_cells(own, kind=kind, quantizer=None) for kind in KINDS)
        first = [_sep(classes), _rate(classes, "flip@1"), _rate(classes, "accuracy")]
        return [*first, _sep(search), _rate(search, "flip@1")]

    rows = _by_quantizer([one for one in cells if one.model in models], models, told)
    if not rows:
        return "no model has both classes and a search"
    ends = [3 + 5 * place for place in range(len(models))]
    head = [
        _row("", "", *(_wide(5, escaped(model)) for model in models)),
        "".join(rf"\cmidrule(lr){{{at}-{at + 4}}}" for at in ends),
        _row("", "", *[_wide(3, "Classification"), _wide(2, "Retrieval")] * len(models)),
        "".join(rf"\cmidrule(lr){{{at}-{at + 2}}}\cmidrule(lr){{{at + 3}-{at + 4}}}" for at in ends),
        rf"Quantizer & Bits & {' & '.join(['Sep & Change & Acc & Sep & Change'] * len(models))} \\",
    ]
    return Table(columns="ll" + "ccccc" * len(models), head=head, rows=rows, about="Group 128, mean over the data.")


def search_regime(cells: Cells) -> Table | str:
    """Separation, change and recall of every quantizer on searches."""
    own = plain_cells(cells, kind="search", quantizer=None)
    models = _models(own)
    rows = _by_quantizer(own, models, lambda one: [_sep(one), _rate(one, "flip@1"), _rate(one, "recall@1")])
    if not rows:
        return "no search at 4 or 3 bits in groups of 128"
    head = [
        _row("", "", *(_wide(3, escaped(model)) for model in models)),
        "".join(rf"\cmidrule(lr){{{3 + 3 * place}-{5 + 3 * place}}}" for place in range(len(models))),
        rf"Quantizer & Bits & {' & '.join(['Sep & Change & R@1'] * len(models))} \\",
    ]
    return Table(columns="ll" + "ccc" * len(models), head=head, rows=rows, about=f"Mean over {_over(own)}.")


def mechanism(cells: Cells) -> Table | str:
    """Contenders, and where a new first answer comes from."""
    rows = [
        [
            escaped(model),
            f"W{bits}",
            _rate(own, "flip@1"),
            _sep(own),
            *(_rate(own, metric) for metric in ("stable", "flip_to_runner_up", "set_kept@5")),
        ]
        for model, bits in product(_models(cells), _BITS)
        if (own := plain_cells(cells, bits, kind="search", model=model))
    ]
    if not rows:
        return "no search at W4-g128-rtn or W3-g128-rtn"
    head = [
        r"Encoder & Bits & Change & Separation & $\mathcal{C}_\varepsilon = \emptyset$ & From runner-up & "
        r"Top-5 set kept \\"
    ]
    return Table(columns="l|l|ccccc", head=head, rows=rows, about=_searches(cells))


def routing(cells: Cells) -> Table | str:
    """What routing recovers, by score and percentile."""
    group = None if plain_cells(cells, 4, kind="classes", group=None) else DEFAULT_GROUP_SIZE
    own = plain_cells(cells, 4, kind="classes", group=group)
    eligible = [one for one in own if answers_of(one.evidence).accuracy_reason is None]
    if not eligible:
        return "no classes at W4 round to nearest" if not own else "no data loses half a point of accuracy at W4"
    rows: list[Sequence[str] | None] = []
    for model in _models(eligible):
        runs = [sweep(one.evidence) for one in eligible if one.model == model]
        rows += [None] if rows else []
        for place, (score, name) in enumerate({"gap": "Gap", "msp": "MSP", "entropy": "Entropy"}.items()):
            told = [f"{escaped(model)} ({len(runs)})" if not place else "", name]
            for percentile in PERCENTILES:
                points = [p for run in runs for p in run if p.score == score and p.percentile == percentile]
                told.append(_percent(_mean_of([point.routed.value for point in points])))
                told.append(_percent(_mean_of([point.accuracy.value for point in points])))
            rows.append(told)
    head = [
        _row("", "", *(_wide(2, f"{percentile:.0f}th pct.") for percentile in PERCENTILES)),
        r"\cmidrule(lr){3-4}\cmidrule(lr){5-6}\cmidrule(lr){7-8}",
        rf"Backbone & Score & {' & '.join(['Routed & Recovered'] * len(PERCENTILES))} \\",
    ]
    about = (
        f"W4, {'per channel' if group is None else 'group 128'}, round to nearest, over data that lose half a point."
    )
    return Table(columns="llcccccc", head=head, rows=rows, about=about)


def granularity(cells: Cells) -> Table | str:
    """Change rate by how many weights share a scale."""
    groups = (None, 128, 64)
    rows = []
    for name, called in NAMES.items():
        told = []
        for kind in KINDS:
            rates: dict[tuple[Any, ...], dict[Any, float]] = {}
            for bits, group in product(_BITS, groups):
                for one in plain_cells(cells, bits, quantizer=name, group=group, kind=kind):
                    if (value := one.value("flip@1")) is not None:
                        rates.setdefault((one.model, one.data, bits, one.scheme.options), {})[group] = value
            whole = [each for each in rates.values() if len(each) == len(groups)]
            told += [_percent(_mean_of([each[group] for each in whole])) for group in groups]
        if set(told) != {_NONE}:
            rows.append([called, *told])
    if not rows:
        return "no scheme is there per channel, in groups of 128 and of 64"
    columns = "Per channel & Group 128 & Group 64"
    head = [
        r"& \multicolumn{3}{c}{Classification} & \multicolumn{3}{c}{Retrieval} \\",
        r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}",
        rf"Quantizer & {columns} & {columns} \\",
    ]
    return Table(columns="lcccccc", head=head, rows=rows, about="Top-1 change rate, W4 and W3 pooled.")


_CUTS = (1, 2, 3, 5)


def topk(cells: Cells) -> Table | str:
    """Separation and sets kept at several cuts."""
    kind: Kind = "classes" if plain_cells(cells, 4, kind="classes") else "search"
    rows = [
        [
            escaped(model),
            *(_NONE if (cut := _mean(own, f"cut_separation@{k}")) is None else f"{cut:.2f}" for k in _CUTS),
            *(_percent(_mean(own, f"set_kept@{k}"), 0) for k in _CUTS),
        ]
        for model in _models(cells)
        if (own := plain_cells(cells, 4, kind=kind, model=model))
    ]
    if not rows:
        return NO_W4
    cuts = " & ".join(f"$k{{=}}{k}$" for k in _CUTS)
    head = [
        r"& \multicolumn{4}{c}{Separation at the $k$-cut} & \multicolumn{4}{c}{Exact top-$k$ set kept} \\",
        r"\cmidrule(lr){2-5}\cmidrule(lr){6-9}",
        rf"Backbone & {cuts} & {cuts} \\",
    ]
    what = "classes" if kind == "classes" else "searches, as there are no classes at W4-g128-rtn"
    return Table(columns="l|cccc|cccc", head=head, rows=rows, about=f"W4-g128-rtn, mean over {what}.")


_TOP = 5
"""Answers whose set is compared; of as many classes or fewer no set can change."""
_FEW = 7
"""Data up to here have p of all their orders."""


def accuracy_rank(cells: Cells) -> Table | str:
    """Whether lost accuracy tells of changed rankings, over data, within each configuration."""
    from scipy import stats  # noqa: PLC0415 -- takes long to import

    spearman, rankdata = cast(Any, stats.spearmanr), cast(Any, stats.rankdata)

    def exact(ranks: Any) -> float:
        """p over all orders: of few data the usual approximation takes a perfect order for proof."""
        first, second = ranks.T
        permuted: Any = stats.permutation_test
        product_of = permuted((first,), lambda x, axis: (x * second).sum(axis=axis), permutation_type="pairings")
        return float(product_of.pvalue)

    rows, every, ranked = [], [], []
    for model, bits, group in product(_models(cells), _BITS, (None, 128, 64)):
        pairs = [
            (-lost, 1 - kept)
            for one in plain_cells(cells, bits, kind="classes", model=model, group=group)
            if (lost := one.value("change.accuracy")) is not None
            and (kept := one.value(f"set_kept@{_TOP}")) is not None
            and one.evidence.n_items.max(initial=0) > _TOP
        ]
        if len(pairs) >= LEAST_RUNS and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            found, ranks = spearman(*zip(*pairs, strict=True)), rankdata(pairs, axis=0)
            p = found.pvalue if len(pairs) > _FEW else exact(ranks)
            star = r"$^{*}$" if p < 0.05 else ""  # noqa: PLR2004 -- the paper's level
            named = rf"W{bits}-group\_{group}" if group else f"W{bits}-channel"
            rows.append([escaped(model), named, f"{len(pairs)}", f"${found.statistic:+.3f}${star}", f"{p:.3f}"])
            every += pairs
            ranked.append(ranks - ranks.mean(axis=0))
    if not rows:
        return f"no model has classes of {LEAST_RUNS} data or more that differ, with more than {_TOP} classes each"
    pooled = spearman(*zip(*every, strict=True)).statistic
    within = np.corrcoef(np.concatenate(ranked).T)[0, 1]
    head = [r"Model & Configuration & $n$ & Spearman & $p$ \\"]
    about = (
        f"Accuracy lost against top-{_TOP} sets changed, over data of more than {_TOP} classes. All rows pooled: "
        f"{pooled:+.3f}; of ranks within each row: {within:+.3f}."
    )
    return Table(columns="l|lrrc", head=head, rows=rows, about=about)


def harm(cells: Cells) -> Table | str:
    """What flips cost, by separation."""
    by, metrics = parse_metric("separation"), [parse_metric(name) for name in ("flip@1", "harm")]
    columns = []
    for bits in _BITS:
        own = plain_cells(cells, bits, kind="search", quantizer=None)
        known = [one.evidence for one in own if one.evidence.judgements is not None and one.evidence.exact]
        columns.append(breakdown(known, by=by, metrics=metrics) if known else ())
    if not any(columns):
        return "no labelled search at 4 or 3 bits in groups of 128"
    rows = []
    for place, bucket in enumerate(next(filter(None, columns))):
        low, high = bucket.where.low, bucket.where.high
        told = [rf"$[{low:g},\, {high:g})$" if isfinite(high) else rf"$\ge {low:g}$"]
        for found in columns:
            its = found[place] if found else None
            told += [_NONE if its is None or not its.n else f"{its.n:,}"]
            told += [_NONE if its is None else _percent(its.estimates[name].value) for name in ("flip@1", "harm")]
        rows.append(told)
    head = [
        r"& \multicolumn{3}{c}{W4-group\_128} & \multicolumn{3}{c}{W3-group\_128} \\",
        r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}",
        r"Separation $g_2/2\varepsilon$ & Queries & Flip & Harm & Queries & Flip & Harm \\",
    ]
    return Table(columns="l|ccc|ccc", head=head, rows=rows, about="All quantizers, models and corpora of the study.")


IMAGES = "text to image"
"""Searches of this kind are in a table of their own."""


def corpus(cells: Cells, *, images: bool = False) -> Table | str:
    """Change rate and separation on the smallest and the largest part of a corpus, the same queries."""
    found = [
        one
        for one in sized_of((each.cell, each.run) for each in cells)
        if (one.large.record["data"].get("modalities") == IMAGES) == images
    ]
    schemes = list(dict.fromkeys(one.scheme for one in found))
    rows = []
    for one in found:
        effect, star = one.effect, r"$^{*}$" if one.effect.p_flip < 0.05 else ""  # noqa: PLR2004 -- the paper's level
        rows.append(
            [
                escaped(one.model if len(schemes) == 1 else f"{one.model} {one.scheme}"),
                escaped(one.corpus),
                *(f"{size:,}".replace(",", "{,}") for size in (effect.small, effect.large)),
                _percent(effect.flip_small / effect.n),
                _percent(effect.flip_large / effect.n) + star,
                *(_ratio(sep) for sep in (effect.separation_small, effect.separation_large)),
            ]
        )
    if not rows:
        what = "text-to-image search" if images else "search"
        return f"no {what} in two sizes of one corpus (sizes: [250, all] beside the data of study.yaml)"
    head = [
        _row(
            "Encoder" if images else "Backbone",
            "Dataset",
            *(rf"\multicolumn{{2}}{{c}}{{{name}}}" for name in ("Corpus size", "Change rate", "Separation")),
        ),
        r"\cmidrule(lr){3-4}\cmidrule(lr){5-6}\cmidrule(lr){7-8}",
        r" & & Small & Large & Small & Large & Small & Large \\",
    ]
    of = schemes[0] if len(schemes) == 1 else "the schemes in the first column"
    about = f"Of {of}, paired over queries; a star where p < 0.05 (McNemar)."
    return Table(columns="llrrccrr", head=head, rows=rows, about=about)


def predicted(cells: Cells) -> Table | str:
    """Predicted and measured flip rates by number of contenders."""
    rows: list[Sequence[str] | None] = []
    for kind, model in product(KINDS, _models(cells)):
        own = [one.evidence for one in plain_cells(cells, 4, kind=kind, model=model) if one.evidence.exact]
        if not own:
            continue
        found = predicted_by_contender_count(own)
        filled = [bucket for bucket in found.filled if bucket.low > 0]
        rows += [None] if rows and filled else []
        for place, bucket in enumerate(filled):
            named = f"{'Classification' if kind == 'classes' else 'Retrieval'}, {model}"
            scale = _NONE if found.fit.scale is None else f"{found.fit.scale:.2f}"
            first = [escaped(named), scale] if not place else ["", ""]
            ends = f"{bucket.low}" if bucket.high == bucket.low else f"{bucket.low}--{bucket.high or ''}"
            rows.append([*first, ends, _percent(bucket.predicted), _percent(bucket.measured.value)])
    if not rows:
        return NO_W4
    head = [r"Group & $s$ & $|\mathcal{C}_\varepsilon|$ & Predicted & Measured \\"]
    return Table(columns="llccc", head=head, rows=rows, about="W4-g128-rtn; one scale fitted per group.")


def activation(cells: Cells) -> Table | str:
    """Weights alone, and with 8-bit activations."""
    settings = ((4, None), (4, 8), (8, 8))
    rows: list[Sequence[str] | None] = []
    for kind in KINDS:
        found = [
            {(one.model, one.data): one for one in plain_cells(cells, bits, kind=kind, activation=activation)}
            for bits, activation in settings
        ]
        keys = [key for key in found[0] if all(key in each for each in found)]
        if not keys:
            continue
        ratios = [[each[key].estimate("separation").value or 0.0 for key in keys] for each in found]
        rows += [None] if rows else []
        name = f"{'Classification' if kind == 'classes' else 'Retrieval'} ($n={len(keys)}$)"
        rows += [
            [
                name,
                "Top-1 change",
                *(_percent(_mean_of([each[key].value("flip@1") for key in keys])) for each in found),
            ],
            ["", "Median separation", *(_ratio(median(each)) for each in ratios)],
            ["", "Above threshold", *(_percent(float(np.mean(np.array(each) >= 1)), 0) for each in ratios)],
        ]
    if not rows:
        return "no data has W4-g128-rtn, W4A8-g128-rtn and W8A8-g128-rtn"
    return Table(
        columns="llccc", head=[r"Family & & W4 & W4A8 & W8A8 \\"], rows=rows, about="Group 128, round to nearest."
    )


def activation_quantizers(cells: Cells) -> Table | str:
    """8-bit activations under every quantizer."""
    from quantdrift_paper.law import spearman  # noqa: PLC0415 -- beside its only use

    rows = []
    for name, called in NAMES.items():
        told = []
        for bits in (4, 8):
            rates = [
                _mean(plain_cells(cells, bits, quantizer=name, kind=kind, activation=activation), "flip@1")
                for kind, activation in product(KINDS, (None, 8))
            ]
            own = plain_cells(cells, bits, quantizer=name, activation=8)
            order = spearman(law_runs([one.run for one in own])).value if own else None
            ratio = rf"{rates[3] / rates[1]:.1f}$\times$" if rates[3] is not None and rates[1] else _NONE
            told += [*map(_percent, rates), ratio, _NONE if order is None else f"${order:+.2f}$"]
        if any(plain_cells(cells, bits, quantizer=name, activation=8) for bits in (4, 8)):
            rows.append([called, *told])
    if not rows:
        return "no scheme of 4 or 8 bits in groups of 128 has 8-bit activations"
    halves = r"\multicolumn{2}{c}{Classification} & \multicolumn{2}{c}{Retrieval} & &"
    head = [
        r"& \multicolumn{6}{c}{W4} & \multicolumn{6}{c}{W8} \\",
        r"\cmidrule(lr){2-7}\cmidrule(lr){8-13}",
        rf"& {halves} & {halves} \\",
        r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){8-9}\cmidrule(lr){10-11}",
        r"Quantizer & W4 & W4A8 & W4 & W4A8 & Ratio & Spearman & W8 & W8A8 & W8 & W8A8 & Ratio & Spearman \\",
    ]
    return Table(columns="l" + "c" * 12, head=head, rows=rows, about="Group 128, mean over the data.")


def absolute(cells: Cells) -> Table | str:
    """Each model and corpus on the inputs that all four cells have."""
    wanted: Mapping[str, tuple[float, str | None]] = {
        "All W3": (3, None),
        "Reconstruction error": (3.5, "reconstruction"),
        r"\textbf{Gap, first order (quantdrift)}": (3.5, "gap"),
        "All W4": (4, None),
    }
    found: dict[tuple[str, str], dict[str, RunCell]] = {}
    for name, (bits, criterion) in wanted.items():
        for one in plain_cells(cells, bits, kind="search", criterion=criterion):
            found.setdefault((one.model, one.data), {})[name] = one
    whole = [each for each in found.values() if len(each) == len(wanted)]
    if not whole:
        return "no corpus has W3, W3.5+reconstruction, W3.5+gap and W4, all g128-rtn"
    sums: dict[str, list[list[float]]] = {name: [] for name in wanted}
    for group in whole:
        ids = [set(one.evidence.input_ids.tolist()) for one in group.values()]
        shared = set.intersection(*ids)
        for name, one in group.items():
            rows = np.flatnonzero([each in shared for each in one.evidence.input_ids.tolist()])
            part = one.evidence.part(rows)
            metrics = [parse_metric(metric)(part).value for metric in ("flip@1", "recall@1", "gold_lost@1")]
            sums[name].append([np.nan if value is None else value for value in metrics])
    told: list[Sequence[str] | None] = []
    for name, values in sums.items():
        means = [_mean_of(list(column)) for column in zip(*values, strict=True)]
        told.append([name, *map(_percent, means)])
    head = [r"Configuration & Flip $\downarrow$ & R@1 $\uparrow$ & Gold lost $\downarrow$ \\"]
    about = f"Mean over {len(whole)} models and corpora, on the inputs that no criterion looked at."
    return Table(columns="l|ccc", head=head, rows=told, about=about)
