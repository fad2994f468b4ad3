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
NO_W4 = "no run at W4-g128-rtn"
NO_SEARCH = "no search at W4-g128-rtn or W3-g128-rtn"
NO_LABELS = "no labelled search at W4-g128-rtn or W3-g128-rtn"
NO_GROUPS = "no search at 4 or 3 bits in groups of 128"
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
    """Return text in which LaTeX obeys nothing; signs that its usual fonts lack become question marks.

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
        columns: column specification of the tabular, e.g. "l|cc".
        head: lines above the first rule below the head, as LaTeX.
        rows: cells as LaTeX; None is a rule.
        about: the runs that the table is made of, as a sentence, not escaped.
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


def table(
    columns: str, head: Sequence[str], rows: Sequence[Sequence[str] | None], about: str, otherwise: str
) -> Table | str:
    """Make a table of rows; `otherwise` says why there are none."""
    return Table(columns=columns, head=head, rows=rows, about=about) if rows else otherwise


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
        """The evidence of the run."""
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
        """The value of a metric; None where there is no finite one."""
        value = self.estimate(metric).value
        return value if value is not None and isfinite(value) else None


Cells = Sequence[RunCell]


def run_cells(folder: StudyFolder) -> list[RunCell]:
    """The finished runs of a study."""
    cells = []
    for cell in folder.cells:
        if (run := folder.run(cell)) is not None:
            scheme = Result(cell=cell, state="done", run=run, metrics={}).parsed
            kind: Kind = "classes" if classifies(run.record) else "search"
            cells.append(RunCell(cell=cell, model=cell.model, data=cell.data.called, scheme=scheme, kind=kind, run=run))
    return cells


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
    """Return cells of a plain scheme on whole corpora; cells whose query alone is quantized are in no table."""
    return [
        cell
        for cell in cells
        if (bits is None or cell.scheme.weight_bits == bits)
        and (quantizer is None or cell.scheme.quantizer == quantizer)
        and cell.scheme.group_size == group
        and (kind is None or cell.kind == kind)
        and (model is None or cell.model == model)
        and cell.scheme.activation_bits == activation
        and cell.scheme.input_scale == "tensor"
        and cell.scheme.criterion == criterion
        and not cell.scheme.query_only
        and not is_part(cell.run.record)
    ]


def _models(cells: Cells) -> list[str]:
    return list(dict.fromkeys(cell.model for cell in cells))


def _values(cells: Cells, metric: str) -> list[float]:
    """Return a value for each corpus; seeds are averaged first."""
    by_data: dict[str, list[float]] = {}
    for cell in cells:
        if (value := cell.value(metric)) is not None:
            by_data.setdefault(cell.data, []).append(value)
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
    names = list(dict.fromkeys(cell.data for cell in cells))
    return f"{len(names)} {'corpus' if len(names) == 1 else 'corpora'} ({', '.join(names)})"


# --- tables ---------------------------------------------------------------------------------------


def _searches(cells: Cells) -> str:
    return f"Mean over {_over(plain_cells(cells, kind='search'))}."


def fragility(cells: Cells) -> Table | str:
    """Change rates of models that are read both as classes and by a search."""
    rows: list[Sequence[str]] = []
    for model in _models(cells):
        both = [plain_cells(cells, 4, kind=kind, model=model) for kind in KINDS]
        values = [_values(part, "flip@1") for part in both]
        if all(values):
            rates = []
            for part in values:
                error = standard_error(part)
                plus = "" if error is None else rf" \;\scriptsize$\pm${100 * error:.1f}"
                rates.append(rf"{_percent(fmean(part))}{plus} \;\scriptsize($n$={len(part)})")
            low, high = fmean(values[0]), fmean(values[1])
            rows.append([escaped(model), *rates, rf"$\mathbf{{{high / low:.1f}\times}}$" if low else _NONE])
    head = [r"Backbone & Classification & Retrieval & Ratio \\"]
    about = "Top-1 change rate at W4-g128-rtn, mean ± standard error."
    return table("l|cc|c", head, rows, about, "no model has both classes and a search at W4-g128-rtn")


def gold(cells: Cells) -> Table | str:
    """Loss of the mean beside relevant documents lost."""
    rows: list[Sequence[str] | None] = []
    for bits in _BITS:
        searches = plain_cells(cells, bits, kind="search")
        listed = [
            [
                escaped(model),
                f"W{bits}",
                _signed(_mean(part, "relative.ndcg@10")),
                *(_rate(part, f"gold_lost@{k}") for k in (1, 5, 10)),
            ]
            for model in _models(searches)
            if _values(part := plain_cells(searches, model=model), "gold_lost@1")
        ]
        rows += [None, *listed] if rows and listed else listed
    head = [
        r"& & & \multicolumn{3}{c}{Gold document lost from top-$k$} \\",
        r"\cmidrule(lr){4-6}",
        r"Model & Bits & NDCG loss & $k{=}1$ & $k{=}5$ & $k{=}10$ \\",
    ]
    about = f"Round to nearest, group 128, mean over {_over(plain_cells(cells, kind='search'))}."
    return table("l|c|cccc", head, rows, about, NO_LABELS)


def _certificates(
    cells: Cells, statistic: Statistic = "S", kinds: Sequence[Kind] = KINDS
) -> dict[str, list[list[Certificate]]]:
    """Per model and kind of W4-g128-rtn, of every corpus the certificates at the paper's levels."""
    certificates: dict[str, list[list[Certificate]]] = {}
    for kind, model in product(kinds, _models(cells)):
        for cell in plain_cells(cells, 4, kind=kind, model=model):
            named = f"{'Classification' if kind == 'classes' else 'Retrieval'} ({model})"
            certificates.setdefault(named, []).append(list(certify(cell.evidence, ALPHAS, [statistic]).certificates))
    return certificates


def _mean_of(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None and isfinite(value)]
    return fmean(defined) if defined else None


def certificate(cells: Cells) -> Table | str:
    """Coverage and violation of the stability check."""
    rows: list[Sequence[str] | None] = []
    for name, runs in _certificates(cells).items():
        rows += [None] if rows else []
        for place, alpha in enumerate(ALPHAS):
            certificates = [run[place] for run in runs]
            spread = _mean_of([item.coverage.sd for item in certificates])
            plus = "" if spread is None else rf" $\pm$ {100 * spread:.1f}"
            coverage = _percent(_mean_of([item.coverage.value for item in certificates]))
            violation = _percent(_mean_of([item.violation.value for item in certificates]), 2)
            first = escaped(name) if not place else ""
            rows.append([first, f"{alpha:.2f}", coverage if coverage == _NONE else coverage + plus, violation])
    head = [r"Setting & $\alpha$ & Coverage & Violation \\"]
    about = "W4-g128-rtn, mean over corpora, ± the standard deviation over 20 splits of one corpus."
    return table("l|c|cc", head, rows, about, NO_W4)


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
    head = [_row("Setting", *(rf"$\alpha = {alpha:.2f}$" for alpha in ALPHAS))]
    about = "W4-g128-rtn, median over 20 splits, mean over corpora. Logits for classes, similarities for a search."
    return table("l|ccc", head, rows, about, NO_W4)


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
        texts = [name]
        for place in range(len(ALPHAS)):
            texts.append(_percent(_mean_of([run[place].coverage.value for run in runs])))
            texts.append(_percent(_mean_of([run[place].violation.value for run in runs]), 2))
        rows.append(texts)
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
            _rate(part, "flip@1"),
            _rate(part, "reference.recall@1"),
            rf"{_rate(part, 'recall@1')} \;\scriptsize({_signed(_mean(part, 'relative.recall@1'))})",
            _rate(part, "gold_lost@1"),
        ]
        for model, bits in product(_models(cells), _BITS)
        if _values(part := plain_cells(cells, bits, kind="search", model=model), "recall@1")
    ]
    head = [r"Encoder & Bits & Top-1 change & R@1 (FP) & R@1 (PTQ) & Correct item lost$^{\ast}$ \\"]
    return table("l|c|cccc", head, rows, _searches(cells), NO_LABELS)


def arch(cells: Cells) -> Table | str:
    """Change rate and separation of every model at both widths."""
    rows = []
    for model in _models(cells):
        parts = [plain_cells(cells, bits, kind="search", model=model) for bits in _BITS]
        if not any(parts):
            continue
        first = next(part[0] for part in parts if part)
        n = (first.run.record.get("bits_per_weight") or {}).get("n_parameters")
        size = [_NONE if not n else f"{n / 1e9:.2g}"]
        rows.append([escaped(model), _NONE, *size, *(c for part in parts for c in (_rate(part, "flip@1"), _sep(part)))])
    head = [
        r"& & & \multicolumn{2}{c}{W4-group\_128} & \multicolumn{2}{c}{W3-group\_128} \\",
        r"\cmidrule(lr){4-5}\cmidrule(lr){6-7}",
        r"Model & Family & Params (B) & Change & Sep. & Change & Sep. \\",
    ]
    about = f"Mean over {_over(plain_cells(cells, kind='search'))}. Runs do not know the family."
    return table("l|l|r|cccc", head, rows, about, NO_SEARCH)


def _sep(cells: Cells) -> str:
    return _ratio(_mean(cells, "separation"))


def reranker(cells: Cells) -> Table | str:
    """Shortlists that a cross-encoder reranks."""
    listed = [cell for cell in cells if cell.run.record["data"].get("shortlist")]
    rows = [
        [escaped(data), f"W{bits}", _rate(part, "flip@1"), _sep(part)]
        for data, bits in product(dict.fromkeys(cell.data for cell in listed), _BITS)
        if (part := [cell for cell in plain_cells(listed, bits) if cell.data == data])
    ]
    head = [r"Corpus & Bits & Flip & Median sep.\ ratio \\"]
    return table(
        "lccc", head, rows, "Shortlists reranked by a quantized cross-encoder.", "no shortlist is reranked in it"
    )


def quantizers(cells: Cells) -> Table | str:
    """Change rate of every quantizer and model."""
    searches = plain_cells(cells, kind="search", quantizer=None)
    models = _models(searches)
    rows: list[Sequence[str] | None] = []
    for bits in _BITS:
        there = [name for name in NAMES if plain_cells(searches, bits, quantizer=name)]
        rows += [None] if rows and there else []
        for place, name in enumerate(there):
            texts = []
            for model in models:
                values = _values(plain_cells(searches, bits, quantizer=name, model=model), "flip@1")
                error = standard_error(values) if values else None
                plus = "" if error is None else rf"\,{{\scriptsize$\pm${100 * error:.1f}}}"
                texts.append(f"{100 * fmean(values):.1f}{plus}" if values else _NONE)
            turned = rf"\multirow{{{len(there)}}}{{*}}{{\rotatebox[origin=c]{{90}}{{W{bits}}}}}"
            rows.append([turned if not place else "", NAMES[name], *texts])
    head = [rf"Bits & Quantizer & {' & '.join(map(escaped, models))} \\"]
    about = f"Top-1 retrieval change rate (%) at group 128, mean ± standard error over {_over(searches)}."
    return table("c|l|" + "c" * len(models), head, rows, about, NO_GROUPS)


def _by_quantizer(
    cells: Cells, models: Sequence[str], texts_of: Callable[[Cells], list[str]]
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
                *(c for m in models for c in texts_of(plain_cells(cells, bits, quantizer=name, model=m))),
            ]
            for name in there
        ]
    return rows


def regime(cells: Cells) -> Table | str:
    """Separation, change and accuracy of models that are read both ways."""
    kinds = {model: {cell.kind for cell in cells if cell.model == model} for model in _models(cells)}
    models = [model for model, read_as in kinds.items() if len(read_as) == len(KINDS)]

    def texts(part: Cells) -> list[str]:
        classes, search = (plain_cells(part, kind=kind, quantizer=None) for kind in KINDS)
        first = [_sep(classes), _rate(classes, "flip@1"), _rate(classes, "accuracy")]
        return [*first, _sep(search), _rate(search, "flip@1")]

    rows = _by_quantizer([cell for cell in cells if cell.model in models], models, texts)
    ends = [3 + 5 * place for place in range(len(models))]
    head = [
        _row("", "", *(_wide(5, escaped(model)) for model in models)),
        "".join(rf"\cmidrule(lr){{{at}-{at + 4}}}" for at in ends),
        _row("", "", *[_wide(3, "Classification"), _wide(2, "Retrieval")] * len(models)),
        "".join(rf"\cmidrule(lr){{{at}-{at + 2}}}\cmidrule(lr){{{at + 3}-{at + 4}}}" for at in ends),
        rf"Quantizer & Bits & {' & '.join(['Sep & Change & Acc & Sep & Change'] * len(models))} \\",
    ]
    about = "Group 128, mean over the data."
    return table("ll" + "ccccc" * len(models), head, rows, about, "no model has both classes and a search")


def search_regime(cells: Cells) -> Table | str:
    """Separation, change and recall of every quantizer on searches."""
    searches = plain_cells(cells, kind="search", quantizer=None)
    models = _models(searches)
    rows = _by_quantizer(searches, models, lambda part: [_sep(part), _rate(part, "flip@1"), _rate(part, "recall@1")])
    head = [
        _row("", "", *(_wide(3, escaped(model)) for model in models)),
        "".join(rf"\cmidrule(lr){{{3 + 3 * place}-{5 + 3 * place}}}" for place in range(len(models))),
        rf"Quantizer & Bits & {' & '.join(['Sep & Change & R@1'] * len(models))} \\",
    ]
    about = f"Mean over {_over(searches)}."
    return table("ll" + "ccc" * len(models), head, rows, about, NO_GROUPS)


def mechanism(cells: Cells) -> Table | str:
    """Contenders, and where a new first answer comes from."""
    rows = [
        [
            escaped(model),
            f"W{bits}",
            _rate(part, "flip@1"),
            _sep(part),
            *(_rate(part, metric) for metric in ("stable", "flip_to_runner_up", "set_kept@5")),
        ]
        for model, bits in product(_models(cells), _BITS)
        if (part := plain_cells(cells, bits, kind="search", model=model))
    ]
    head = [
        r"Encoder & Bits & Change & Separation & $\mathcal{C}_\varepsilon = \emptyset$ & From runner-up & "
        r"Top-5 set kept \\"
    ]
    return table("l|l|ccccc", head, rows, _searches(cells), NO_SEARCH)


def routing(cells: Cells) -> Table | str:
    """Accuracy that routing recovers, by score and percentile."""
    group = None if plain_cells(cells, 4, kind="classes", group=None) else DEFAULT_GROUP_SIZE
    classes = plain_cells(cells, 4, kind="classes", group=group)
    eligible = [cell for cell in classes if answers_of(cell.evidence).accuracy_reason is None]
    if not eligible:
        return "no classes at W4 round to nearest" if not classes else "no data loses half a point of accuracy at W4"
    rows: list[Sequence[str] | None] = []
    for model in _models(eligible):
        runs = [sweep(cell.evidence) for cell in eligible if cell.model == model]
        rows += [None] if rows else []
        for place, (score, name) in enumerate({"gap": "Gap", "msp": "MSP", "entropy": "Entropy"}.items()):
            texts = [f"{escaped(model)} ({len(runs)})" if not place else "", name]
            for percentile in PERCENTILES:
                points = [p for run in runs for p in run if p.score == score and p.percentile == percentile]
                texts.append(_percent(_mean_of([point.routed.value for point in points])))
                texts.append(_percent(_mean_of([point.accuracy.value for point in points])))
            rows.append(texts)
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
        texts = []
        for kind in KINDS:
            rates: dict[tuple[Any, ...], dict[Any, float]] = {}
            for bits, group in product(_BITS, groups):
                for cell in plain_cells(cells, bits, quantizer=name, group=group, kind=kind):
                    if (value := cell.value("flip@1")) is not None:
                        rates.setdefault((cell.model, cell.data, bits, cell.scheme.options), {})[group] = value
            whole = [group_rates for group_rates in rates.values() if len(group_rates) == len(groups)]
            texts += [_percent(_mean_of([group_rates[group] for group_rates in whole])) for group in groups]
        if set(texts) != {_NONE}:
            rows.append([called, *texts])
    columns = "Per channel & Group 128 & Group 64"
    head = [
        r"& \multicolumn{3}{c}{Classification} & \multicolumn{3}{c}{Retrieval} \\",
        r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}",
        rf"Quantizer & {columns} & {columns} \\",
    ]
    about = "Top-1 change rate, W4 and W3 pooled."
    return table("lcccccc", head, rows, about, "no scheme is there per channel, in groups of 128 and of 64")


_CUTS = (1, 2, 3, 5)


def topk(cells: Cells) -> Table | str:
    """Separation and sets kept at several cuts."""
    kind: Kind = "classes" if plain_cells(cells, 4, kind="classes") else "search"
    rows = [
        [
            escaped(model),
            *(_NONE if (cut := _mean(part, f"cut_separation@{k}")) is None else f"{cut:.2f}" for k in _CUTS),
            *(_percent(_mean(part, f"set_kept@{k}"), 0) for k in _CUTS),
        ]
        for model in _models(cells)
        if (part := plain_cells(cells, 4, kind=kind, model=model))
    ]
    cuts = " & ".join(f"$k{{=}}{k}$" for k in _CUTS)
    head = [
        r"& \multicolumn{4}{c}{Separation at the $k$-cut} & \multicolumn{4}{c}{Exact top-$k$ set kept} \\",
        r"\cmidrule(lr){2-5}\cmidrule(lr){6-9}",
        rf"Backbone & {cuts} & {cuts} \\",
    ]
    what = "classes" if kind == "classes" else "searches, as there are no classes at W4-g128-rtn"
    return table("l|cccc|cccc", head, rows, f"W4-g128-rtn, mean over {what}.", NO_W4)


_TOP = 5
"""Size of the sets of answers that are compared; with as many classes or fewer no set can change."""
_FEW = 7
"""Up to so many data p is computed over all their orders."""


def accuracy_rank(cells: Cells) -> Table | str:
    """Rank correlation of lost accuracy with changed rankings over data, within each configuration."""
    from scipy import stats  # noqa: PLC0415 -- takes long to import

    spearman, rankdata = cast(Any, stats.spearmanr), cast(Any, stats.rankdata)

    def exact(ranks: Any) -> float:
        """Return p over all orders: with few data the usual approximation takes a perfect order for proof."""
        first, second = ranks.T
        permuted: Any = stats.permutation_test
        product_of = permuted((first,), lambda x, axis: (x * second).sum(axis=axis), permutation_type="pairings")
        return float(product_of.pvalue)

    rows, every, ranked = [], [], []
    for model, bits, group in product(_models(cells), _BITS, (None, 128, 64)):
        pairs = [
            (-lost, 1 - kept)
            for cell in plain_cells(cells, bits, kind="classes", model=model, group=group)
            if (lost := cell.value("change.accuracy")) is not None
            and (kept := cell.value(f"set_kept@{_TOP}")) is not None
            and cell.evidence.n_items.max(initial=0) > _TOP
        ]
        if len(pairs) >= LEAST_RUNS and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            correlation, ranks = spearman(*zip(*pairs, strict=True)), rankdata(pairs, axis=0)
            p = correlation.pvalue if len(pairs) > _FEW else exact(ranks)
            star = r"$^{*}$" if p < 0.05 else ""  # noqa: PLR2004 -- the paper's level
            named = rf"W{bits}-group\_{group}" if group else f"W{bits}-channel"
            rows.append([escaped(model), named, f"{len(pairs)}", f"${correlation.statistic:+.3f}${star}", f"{p:.3f}"])
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
    """Harm of flips, by separation."""
    by, metrics = parse_metric("separation"), [parse_metric(name) for name in ("flip@1", "harm")]
    columns = []
    for bits in _BITS:
        searches = plain_cells(cells, bits, kind="search", quantizer=None)
        judged = [cell.evidence for cell in searches if cell.evidence.judgements is not None and cell.evidence.exact]
        columns.append(breakdown(judged, by=by, metrics=metrics) if judged else ())
    if not any(columns):
        return "no labelled search at 4 or 3 bits in groups of 128"
    rows = []
    for place, bucket in enumerate(next(filter(None, columns))):
        low, high = bucket.where.low, bucket.where.high
        texts = [rf"$[{low:g},\, {high:g})$" if isfinite(high) else rf"$\ge {low:g}$"]
        for buckets in columns:
            same = buckets[place] if buckets else None
            texts += [_NONE if same is None or not same.n else f"{same.n:,}"]
            texts += [_NONE if same is None else _percent(same.estimates[name].value) for name in ("flip@1", "harm")]
        rows.append(texts)
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
    pairs = [
        pair
        for pair in sized_of((cell.cell, cell.run) for cell in cells)
        if (pair.large.record["data"].get("modalities") == IMAGES) == images
    ]
    schemes = list(dict.fromkeys(pair.scheme for pair in pairs))
    rows = []
    for pair in pairs:
        effect, star = pair.effect, r"$^{*}$" if pair.effect.p_flip < 0.05 else ""  # noqa: PLR2004 -- the paper's level
        rows.append(
            [
                escaped(pair.model if len(schemes) == 1 else f"{pair.model} {pair.scheme}"),
                escaped(pair.corpus),
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
        evidence = [cell.evidence for cell in plain_cells(cells, 4, kind=kind, model=model) if cell.evidence.exact]
        if not evidence:
            continue
        group = predicted_by_contender_count(evidence)
        filled = [bucket for bucket in group.filled if bucket.low > 0]
        rows += [None] if rows and filled else []
        for place, bucket in enumerate(filled):
            named = f"{'Classification' if kind == 'classes' else 'Retrieval'}, {model}"
            scale = _NONE if group.fit.scale is None else f"{group.fit.scale:.2f}"
            first = [escaped(named), scale] if not place else ["", ""]
            ends = f"{bucket.low}" if bucket.high == bucket.low else f"{bucket.low}--{bucket.high or ''}"
            rows.append([*first, ends, _percent(bucket.predicted), _percent(bucket.measured.value)])
    head = [r"Group & $s$ & $|\mathcal{C}_\varepsilon|$ & Predicted & Measured \\"]
    return table("llccc", head, rows, "W4-g128-rtn; one scale fitted per group.", NO_W4)


def activation(cells: Cells) -> Table | str:
    """Weights alone, and with 8-bit activations."""
    settings = ((4, None), (4, 8), (8, 8))
    rows: list[Sequence[str] | None] = []
    for kind in KINDS:
        columns = [
            {(cell.model, cell.data): cell for cell in plain_cells(cells, bits, kind=kind, activation=activation)}
            for bits, activation in settings
        ]
        keys = [key for key in columns[0] if all(key in column for column in columns)]
        if not keys:
            continue
        ratios = [[column[key].estimate("separation").value or 0.0 for key in keys] for column in columns]
        rows += [None] if rows else []
        name = f"{'Classification' if kind == 'classes' else 'Retrieval'} ($n={len(keys)}$)"
        rows += [
            [
                name,
                "Top-1 change",
                *(_percent(_mean_of([column[key].value("flip@1") for key in keys])) for column in columns),
            ],
            ["", "Median separation", *(_ratio(median(column)) for column in ratios)],
            ["", "Above threshold", *(_percent(float(np.mean(np.array(column) >= 1)), 0) for column in ratios)],
        ]
    about = "Group 128, round to nearest."
    otherwise = "no data has W4-g128-rtn, W4A8-g128-rtn and W8A8-g128-rtn"
    return table("llccc", [r"Family & & W4 & W4A8 & W8A8 \\"], rows, about, otherwise)


def activation_quantizers(cells: Cells) -> Table | str:
    """8-bit activations under every quantizer."""
    from quantdrift_paper.law import spearman  # noqa: PLC0415 -- beside its only use

    rows = []
    for name, called in NAMES.items():
        texts = []
        for bits in (4, 8):
            rates = [
                _mean(plain_cells(cells, bits, quantizer=name, kind=kind, activation=activation), "flip@1")
                for kind, activation in product(KINDS, (None, 8))
            ]
            part = plain_cells(cells, bits, quantizer=name, activation=8)
            order = spearman(law_runs([cell.run for cell in part])).value if part else None
            ratio = rf"{rates[3] / rates[1]:.1f}$\times$" if rates[3] is not None and rates[1] else _NONE
            texts += [*map(_percent, rates), ratio, _NONE if order is None else f"${order:+.2f}$"]
        if any(plain_cells(cells, bits, quantizer=name, activation=8) for bits in (4, 8)):
            rows.append([called, *texts])
    halves = r"\multicolumn{2}{c}{Classification} & \multicolumn{2}{c}{Retrieval} & &"
    head = [
        r"& \multicolumn{6}{c}{W4} & \multicolumn{6}{c}{W8} \\",
        r"\cmidrule(lr){2-7}\cmidrule(lr){8-13}",
        rf"& {halves} & {halves} \\",
        r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){8-9}\cmidrule(lr){10-11}",
        r"Quantizer & W4 & W4A8 & W4 & W4A8 & Ratio & Spearman & W8 & W8A8 & W8 & W8A8 & Ratio & Spearman \\",
    ]
    about = "Group 128, mean over the data."
    return table("l" + "c" * 12, head, rows, about, "no scheme of 4 or 8 bits in groups of 128 has 8-bit activations")


def absolute(cells: Cells) -> Table | str:
    """Retrieval with each allocation, on the inputs that all four cells of a model and corpus have."""
    wanted: Mapping[str, tuple[float, str | None]] = {
        "All W3": (3, None),
        "Reconstruction error": (3.5, "reconstruction"),
        r"\textbf{Gap, first order (quantdrift)}": (3.5, "gap"),
        "All W4": (4, None),
    }
    cells_of: dict[tuple[str, str], dict[str, RunCell]] = {}
    for name, (bits, criterion) in wanted.items():
        for cell in plain_cells(cells, bits, kind="search", criterion=criterion):
            cells_of.setdefault((cell.model, cell.data), {})[name] = cell
    whole = [group for group in cells_of.values() if len(group) == len(wanted)]
    if not whole:
        return "no corpus has W3, W3.5+reconstruction, W3.5+gap and W4, all g128-rtn"
    sums: dict[str, list[list[float]]] = {name: [] for name in wanted}
    for group in whole:
        ids = [set(cell.evidence.input_ids.tolist()) for cell in group.values()]
        shared = set.intersection(*ids)
        for name, cell in group.items():
            inside = np.flatnonzero([input_id in shared for input_id in cell.evidence.input_ids.tolist()])
            part = cell.evidence.part(inside)
            metrics = [parse_metric(metric)(part).value for metric in ("flip@1", "recall@1", "gold_lost@1")]
            sums[name].append([np.nan if value is None else value for value in metrics])
    table_rows: list[Sequence[str] | None] = []
    for name, values in sums.items():
        means = [_mean_of(list(column)) for column in zip(*values, strict=True)]
        table_rows.append([name, *map(_percent, means)])
    head = [r"Configuration & Flip $\downarrow$ & R@1 $\uparrow$ & Gold lost $\downarrow$ \\"]
    about = f"Mean over {len(whole)} models and corpora, on the inputs that no criterion looked at."
    return Table(columns="l|ccc", head=head, rows=table_rows, about=about)
