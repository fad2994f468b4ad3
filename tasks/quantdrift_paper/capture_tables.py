"""The paper's tables of allocations, from a capture study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quantdrift.metrics import parse_metric
from quantdrift.report.figures import Figure
from quantdrift.stages.weights import FULL_BITS
from quantdrift.study.folder import StudyFolder
from quantdrift_paper.capture import METRICS, Capture, Captured, read_capture
from quantdrift_paper.figures import capture_chart
from quantdrift_paper.rows import NAMES, Table, escaped, table

CRITERIA = {
    "gap": "Gap, first order, mean square (quantdrift)",
    "gap_exact": "Gap, exact, median (the paper's)",
    "activation_norm": "Activation norm",
    "reconstruction": "Reconstruction error",
    "sqnr": "Relative error (SQNR)",
    "depth": "Depth heuristic",
    "activation_error": "Activation-weighted error",
    "activation_salience": "Activation salience",
    "random": "Random split",
}
_BUDGET = 3.5
_NONE, _TWO = "--", 2
_A8 = 8
"""Bits of quantized activations in the paper."""
_PAIR = {name: CRITERIA[name] for name in ("reconstruction", "gap")}
"""The two that stand in most tables; the paper has its own criterion, `gap_exact`, in place of the second."""


def capture_tables(folder: StudyFolder) -> dict[str, Table | str]:
    """The tables that the finished cells of a capture study support, or why not, by name."""
    capture = read_capture(folder, [parse_metric(name) for name in METRICS])
    return {name: make(capture) for name, make in CAPTURE_TABLES.items()}


def criteria_figure(folder: StudyFolder) -> Figure | str:
    """The paper's figure of all criteria at one budget, or why there is none."""
    capture = read_capture(folder, [parse_metric("flip@1")])
    captured = [
        row
        for row in _captures_of(capture, ("quantizer", "budget"))
        if (row.of["quantizer"], row.of["budget"]) == ("rtn", _BUDGET)
    ]
    if not captured:
        return f"no allocation of {_BUDGET} bits by round to nearest with both uniform widths"
    return capture_chart(captured, CRITERIA, _BUDGET)


def _captures_of(
    capture: Capture, by: Sequence[str], metric: str = "flip@1", *, activations: int = FULL_BITS
) -> list[Captured]:
    captured = capture.captures(parse_metric(metric), by=(*by, "activations"))
    return [row for row in captured if row.of["activations"] == activations]


def _best_in_bold(cells: Mapping[str, float | None]) -> dict[str, str]:
    """Shares in percent, the largest in bold."""
    defined = [value for value in cells.values() if value is not None]
    texts = {}
    for name, value in cells.items():
        text = _NONE if value is None else rf"{100 * value:.1f}\%"
        texts[name] = rf"\textbf{{{text}}}" if defined and value == max(defined) else text
    return texts


def _by_criterion(capture: Capture) -> Table | str:
    captures = [row for row in _captures_of(capture, ("quantizer", "budget")) if row.of["budget"] == _BUDGET]
    at = {(row.criterion, row.of["quantizer"]): row.ratio.value for row in captures}
    quantizers = [name for name in NAMES if any(key[1] == name for key in at)]
    criteria = [name for name in CRITERIA if any(key[0] == name for key in at)]
    if not at:
        return f"no allocation of {_BUDGET} bits with both uniform widths"
    columns = {q: _best_in_bold({c: at.get((c, q)) for c in criteria}) for q in quantizers}
    rows: list[Sequence[str] | None] = [[CRITERIA[c], *(columns[q][c] for q in quantizers)] for c in criteria]
    if criteria[0] == "gap" and len(rows) > 1:
        rows.insert(1, None)
    head = [rf"Allocation criterion & {' & '.join(NAMES[q] for q in quantizers)} \\"]
    about = f"Share of the benefit of the wider width captured at {_BUDGET} bits, pooled over models and corpora."
    return Table(columns="l|" + "r" * len(quantizers), head=head, rows=rows, about=about)


def _of_the_pair(capture: Capture, axis: str, fixed: tuple[str, Any]) -> dict[Any, list[list[str]]]:
    """Rows of the two criteria, with a cell for each of the paper's metrics, by the value of an axis.

    `fixed` is the other axis, of quantizer and budget, with its value.
    """
    shares = {
        (row.of[axis], row.criterion, metric): row.ratio.value
        for metric in METRICS
        for row in _captures_of(capture, ("quantizer", "budget"), metric)
        if row.of[fixed[0]] == fixed[1] and row.criterion in _PAIR
    }
    rows = {}
    for value in dict.fromkeys(key[0] for key in shares):
        best = {metric: _best_in_bold({c: shares.get((value, c, metric)) for c in _PAIR}) for metric in METRICS}
        rows[value] = [[name, *(best[metric][c] for metric in METRICS)] for c, name in _PAIR.items()]
    return rows


def _by_budget(capture: Capture) -> Table | str:
    """Reconstruction error and gap sensitivity at every budget, rounded to nearest, by the paper's three metrics."""
    rows: list[Sequence[str]] = []
    for budget, (first, second) in sorted(_of_the_pair(capture, "budget", ("quantizer", "rtn")).items()):
        rows += [["" if rows else "Search", f"{budget:g} bits", *first], ["", "", *second]]
    head = [r"System & Budget & Allocation & Capture: flip & Capture: R@1 & Capture: gold \\"]
    about = "Round to nearest, pooled over models and corpora."
    otherwise = "no allocation by gap or reconstruction under rtn with both uniform widths"
    return table("ll|l|rrr", head, rows, about, otherwise)


def _by_quantizer(capture: Capture) -> Table | str:
    rows_of = _of_the_pair(capture, "quantizer", ("budget", _BUDGET))
    rows: list[Sequence[str] | None] = []
    for quantizer in (name for name in NAMES if name in rows_of):
        first, second = rows_of[quantizer]
        rows += [*([None] if rows else []), [NAMES[quantizer], *first], ["", *second]]
    head = [r"Quantizer & Allocation & Flip & R@1 & Gold kept \\"]
    about = f"Captured at {_BUDGET} bits, pooled over models and corpora."
    otherwise = f"no allocation of {_BUDGET} bits by gap or reconstruction with both uniform widths"
    return table("l|lrrr", head, rows, about, otherwise)


def _with_activations(capture: Capture) -> Table | str:
    """Three criteria under every quantizer, activations left alone and at 8 bits."""
    criteria = [name for name in ("gap", "reconstruction", "random") if name in capture.grid.criteria]
    shares = {
        (row.of["quantizer"], row.criterion, bits): row.ratio.value
        for bits in (FULL_BITS, _A8)
        for row in _captures_of(capture, ("quantizer", "budget"), activations=bits)
        if row.of["budget"] == _BUDGET
    }
    rows = []
    for quantizer in (name for name in NAMES if any((name, criterion, _A8) in shares for criterion in criteria)):
        texts = {
            bits: _best_in_bold({c: shares.get((quantizer, c, bits)) for c in criteria}) for bits in (FULL_BITS, _A8)
        }
        rows.append([NAMES[quantizer], *(texts[bits][c] for c in criteria for bits in (FULL_BITS, _A8))])
    head = [
        " & ".join(["", *(rf"\multicolumn{{2}}{{c}}{{{CRITERIA[c]}}}" for c in criteria)]) + r" \\",
        "".join(rf"\cmidrule(lr){{{2 + 2 * at}-{3 + 2 * at}}}" for at in range(len(criteria))),
        rf"Quantizer & {' & '.join(['W & W+A8'] * len(criteria))} \\",
    ]
    about = f"Captured of the flips at {_BUDGET} bits, without (W) and with 8-bit activations (W+A8), pooled."
    otherwise = f"no allocation of {_BUDGET} bits with 8-bit activations and both uniform widths (activations: [16, 8])"
    return table("l" + "cc" * len(criteria), head, rows, about, otherwise)


def _by_model(capture: Capture) -> Table | str:
    by_model: dict[str, dict[str, float | None]] = {}
    for row in _captures_of(capture, ("model", "quantizer", "budget")):
        if (row.of["quantizer"], row.of["budget"]) == ("rtn", _BUDGET) and row.criterion in _PAIR:
            by_model.setdefault(str(row.of["model"]), {})[row.criterion] = row.ratio.value
    rows: list[Sequence[str] | None] = []
    for model, shares in by_model.items():
        texts = _best_in_bold({criterion: shares.get(criterion) for criterion in _PAIR})
        rows.append([escaped(model), *texts.values()])
    head = [rf"Model & {' & '.join(_PAIR.values())} \\"]
    about = (
        f"Captured at {_BUDGET} bits, round to nearest. The paper's columns on the correlation of layers are not made."
    )
    otherwise = f"no allocation of {_BUDGET} bits by gap or reconstruction under rtn with both uniform widths"
    return table("lrr", head, rows, about, otherwise)


def _agreement(capture: Capture) -> Table | str:
    rows: list[Sequence[str] | None] = []
    for agreement in capture.agreements():
        if agreement.criterion == "gap" and agreement.size == agreement.against:
            first = "Search" if not rows else ""
            rows.append([first, escaped(agreement.model), f"{agreement.n_pairs}", rf"{100 * agreement.share:.1f}\%"])
    head = [r"System & Model & Seed pairs & Layer agreement \\"]
    about = "Layers of the same width under two calibration seeds."
    return table("l|l|rr", head, rows, about, "no two seeds of an allocation by gap")


def _by_size(capture: Capture) -> Table | str:
    shares: dict[int, dict[str, float | None]] = {}
    for row in _captures_of(capture, ("size", "quantizer", "budget")):
        if (row.of["quantizer"], row.of["budget"]) == ("rtn", _BUDGET):
            shares.setdefault(int(row.of["size"]), {})[row.criterion] = row.ratio.value
    if len(shares) < _TWO:
        return "no two calibration sizes"
    most = max(shares)
    agreed = {row.size: row.share for row in capture.agreements() if row.criterion == "gap" and row.against == most}
    criteria = [name for name in CRITERIA if any(name in captured for captured in shares.values())]
    rows: list[Sequence[str] | None] = []
    for size, captured in sorted(shares.items()):
        agreement = "---" if size == most or size not in agreed else rf"{100 * agreed[size]:.1f}\%"
        texts = _best_in_bold({criterion: captured.get(criterion) for criterion in criteria})
        rows.append(["Search" if not rows else "", f"{size}", agreement, *texts.values()])
    n = len(criteria)
    head = [
        rf"& & & \multicolumn{{{n}}}{{c}}{{Capture by criterion}} \\",
        rf"\cmidrule(lr){{4-{3 + n}}}",
        rf"System & Queries & Agreement & {' & '.join(CRITERIA[name] for name in criteria)} \\",
    ]
    about = f"{_BUDGET} bits, round to nearest; agreement with the allocation of {most} queries."
    return Table(columns="lr" + "c" * (n + 1), head=head, rows=rows, about=about)


CAPTURE_TABLES: Mapping[str, Callable[[Capture], Table | str]] = {
    "alloc_nograd": _by_criterion,
    "alloc_budget": _by_budget,
    "alloc_permodel": _by_model,
    "alloc_seed": _agreement,
    "alloc_calib": _by_size,
    "clip_alloc_main": _by_quantizer,
    "alloc_activation_quantizers": _with_activations,
}
"""The tables that a capture study gives, each by what makes it."""
