"""The paper's tables of allocations, from a capture study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantdrift.metrics import parse_metric
from quantdrift.report.figures import Figure
from quantdrift.stages.weights import FULL_BITS
from quantdrift.study.folder import StudyFolder
from quantdrift_paper.capture import METRICS, Capture, Captured, read_capture
from quantdrift_paper.figures import capture_chart
from quantdrift_paper.rows import NAMES, Table, escaped

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


CAPTURE_TABLES = frozenset(
    {
        "alloc_nograd",
        "alloc_budget",
        "alloc_permodel",
        "alloc_seed",
        "alloc_calib",
        "clip_alloc_main",
        "alloc_activation_quantizers",
    }
)
"""The tables that a capture study gives."""


def capture_tables(folder: StudyFolder) -> dict[str, Table | str]:
    """The tables that the finished cells of a capture study support, or why not, by name."""
    capture = read_capture(folder, [parse_metric(name) for name in METRICS])
    return {
        "alloc_nograd": _by_criterion(capture),
        "alloc_budget": _by_budget(capture),
        "alloc_permodel": _by_model(capture),
        "alloc_seed": _agreement(capture),
        "alloc_calib": _by_size(capture),
        "clip_alloc_main": _by_quantizer(capture),
        "alloc_activation_quantizers": _with_activations(capture),
    }


def criteria_figure(folder: StudyFolder) -> Figure | str:
    """The paper's figure of all criteria at one budget, or why there is none."""
    capture = read_capture(folder, [parse_metric("flip@1")])
    own = [
        one
        for one in _found(capture, ("quantizer", "budget"))
        if (one.of["quantizer"], one.of["budget"]) == ("rtn", _BUDGET)
    ]
    if not own:
        return f"no allocation of {_BUDGET} bits by round to nearest with both uniform widths"
    return capture_chart(own, CRITERIA, _BUDGET)


def _found(
    capture: Capture, by: Sequence[str], metric: str = "flip@1", *, activations: int = FULL_BITS
) -> list[Captured]:
    found = capture.captures(parse_metric(metric), by=(*by, "activations"))
    return [one for one in found if one.of["activations"] == activations]


def _told(cells: Mapping[str, float | None]) -> dict[str, str]:
    """Shares in percent, the largest in bold."""
    known = [value for value in cells.values() if value is not None]
    told = {}
    for name, value in cells.items():
        text = _NONE if value is None else rf"{100 * value:.1f}\%"
        told[name] = rf"\textbf{{{text}}}" if known and value == max(known) else text
    return told


def _by_criterion(capture: Capture) -> Table | str:
    at = {(one.criterion, one.of["quantizer"]): one.ratio.value for one in _found(capture, ("quantizer", "budget"))
          if one.of["budget"] == _BUDGET}  # fmt: skip
    quantizers = [name for name in NAMES if any(key[1] == name for key in at)]
    criteria = [name for name in CRITERIA if any(key[0] == name for key in at)]
    if not at:
        return f"no allocation of {_BUDGET} bits with both uniform widths"
    columns = {q: _told({c: at.get((c, q)) for c in criteria}) for q in quantizers}
    rows: list[Sequence[str] | None] = [[CRITERIA[c], *(columns[q][c] for q in quantizers)] for c in criteria]
    if criteria[0] == "gap" and len(rows) > 1:
        rows.insert(1, None)
    head = [rf"Allocation criterion & {' & '.join(NAMES[q] for q in quantizers)} \\"]
    about = f"Share of the benefit of the wider width captured at {_BUDGET} bits, pooled over models and corpora."
    return Table(columns="l|" + "r" * len(quantizers), head=head, rows=rows, about=about)


def _by_budget(capture: Capture) -> Table | str:
    """Reconstruction error and gap sensitivity at every budget, rounded to nearest, by the paper's three metrics."""
    shares = {
        (one.of["budget"], one.criterion, metric): one.ratio.value
        for metric in METRICS
        for one in _found(capture, ("quantizer", "budget"), metric)
        if one.of["quantizer"] == "rtn" and one.criterion in _PAIR
    }
    rows: list[Sequence[str] | None] = []
    for budget in sorted({key[0] for key in shares}):
        best = {metric: _told({c: shares.get((budget, c, metric)) for c in _PAIR}) for metric in METRICS}
        for place, (criterion, name) in enumerate(_PAIR.items()):
            first = ["Search" if not rows else "", f"{budget:g} bits" if not place else ""]
            rows.append([*first, name, *(best[metric][criterion] for metric in METRICS)])
    if not rows:
        return "no allocation by gap or reconstruction under rtn with both uniform widths"
    head = [r"System & Budget & Allocation & Capture: flip & Capture: R@1 & Capture: gold \\"]
    return Table(columns="ll|l|rrr", head=head, rows=rows, about="Round to nearest, pooled over models and corpora.")


def _by_quantizer(capture: Capture) -> Table | str:
    shares = {
        (one.of["quantizer"], one.criterion, metric): one.ratio.value
        for metric in METRICS
        for one in _found(capture, ("quantizer", "budget"), metric)
        if one.of["budget"] == _BUDGET and one.criterion in _PAIR
    }
    rows: list[Sequence[str] | None] = []
    for quantizer in (name for name in NAMES if any(key[0] == name for key in shares)):
        rows += [None] if rows else []
        best = {metric: _told({c: shares.get((quantizer, c, metric)) for c in _PAIR}) for metric in METRICS}
        for place, (criterion, name) in enumerate(_PAIR.items()):
            first = NAMES[quantizer] if not place else ""
            rows.append([first, name, *(best[metric][criterion] for metric in METRICS)])
    if not rows:
        return f"no allocation of {_BUDGET} bits by gap or reconstruction with both uniform widths"
    head = [r"Quantizer & Allocation & Flip & R@1 & Gold kept \\"]
    about = f"Captured at {_BUDGET} bits, pooled over models and corpora."
    return Table(columns="l|lrrr", head=head, rows=rows, about=about)


def _with_activations(capture: Capture) -> Table | str:
    """Three criteria under every quantizer, activations left alone and at 8 bits."""
    criteria = [name for name in ("gap", "reconstruction", "random") if name in capture.grid.criteria]
    shares = {
        (one.of["quantizer"], one.criterion, bits): one.ratio.value
        for bits in (FULL_BITS, _A8)
        for one in _found(capture, ("quantizer", "budget"), activations=bits)
        if one.of["budget"] == _BUDGET
    }
    rows = []
    for quantizer in (name for name in NAMES if any((name, each, _A8) in shares for each in criteria)):
        told = {bits: _told({c: shares.get((quantizer, c, bits)) for c in criteria}) for bits in (FULL_BITS, _A8)}
        rows.append([NAMES[quantizer], *(told[bits][c] for c in criteria for bits in (FULL_BITS, _A8))])
    if not rows:
        return f"no allocation of {_BUDGET} bits with 8-bit activations and both uniform widths (activations: [16, 8])"
    head = [
        " & ".join(["", *(rf"\multicolumn{{2}}{{c}}{{{CRITERIA[c]}}}" for c in criteria)]) + r" \\",
        "".join(rf"\cmidrule(lr){{{2 + 2 * at}-{3 + 2 * at}}}" for at in range(len(criteria))),
        rf"Quantizer & {' & '.join(['W & W+A8'] * len(criteria))} \\",
    ]
    about = f"Captured of the flips at {_BUDGET} bits, without (W) and with 8-bit activations (W+A8), pooled."
    return Table(columns="l" + "cc" * len(criteria), head=head, rows=rows, about=about)


def _by_model(capture: Capture) -> Table | str:
    found: dict[str, dict[str, float | None]] = {}
    for one in _found(capture, ("model", "quantizer", "budget")):
        if (one.of["quantizer"], one.of["budget"]) == ("rtn", _BUDGET) and one.criterion in _PAIR:
            found.setdefault(str(one.of["model"]), {})[one.criterion] = one.ratio.value
    rows: list[Sequence[str] | None] = []
    for model, shares in found.items():
        told = _told({criterion: shares.get(criterion) for criterion in _PAIR})
        rows.append([escaped(model), *told.values()])
    if not rows:
        return f"no allocation of {_BUDGET} bits by gap or reconstruction under rtn with both uniform widths"
    head = [rf"Model & {' & '.join(_PAIR.values())} \\"]
    about = (
        f"Captured at {_BUDGET} bits, round to nearest. The paper's columns on the correlation of layers are not made."
    )
    return Table(columns="lrr", head=head, rows=rows, about=about)


def _agreement(capture: Capture) -> Table | str:
    rows: list[Sequence[str] | None] = []
    for one in capture.agreements():
        if one.criterion == "gap" and one.size == one.against:
            first = "Search" if not rows else ""
            rows.append([first, escaped(one.model), f"{one.n_pairs}", rf"{100 * one.share:.1f}\%"])
    if not rows:
        return "no two seeds of an allocation by gap"
    head = [r"System & Model & Seed pairs & Layer agreement \\"]
    return Table(columns="l|l|rr", head=head, rows=rows, about="Layers of the same width under two calibration seeds.")


def _by_size(capture: Capture) -> Table | str:
    shares: dict[int, dict[str, float | None]] = {}
    for one in _found(capture, ("size", "quantizer", "budget")):
        if (one.of["quantizer"], one.of["budget"]) == ("rtn", _BUDGET):
            shares.setdefault(int(one.of["size"]), {})[one.criterion] = one.ratio.value
    if len(shares) < _TWO:
        return "no two calibration sizes"
    most = max(shares)
    agreed = {one.size: one.share for one in capture.agreements() if one.criterion == "gap" and one.against == most}
    criteria = [name for name in CRITERIA if any(name in each for each in shares.values())]
    rows: list[Sequence[str] | None] = []
    for size, each in sorted(shares.items()):
        agreement = "---" if size == most or size not in agreed else rf"{100 * agreed[size]:.1f}\%"
        told = _told({criterion: each.get(criterion) for criterion in criteria})
        rows.append(["Search" if not rows else "", f"{size}", agreement, *told.values()])
    n = len(criteria)
    head = [
        rf"& & & \multicolumn{{{n}}}{{c}}{{Capture by criterion}} \\",
        rf"\cmidrule(lr){{4-{3 + n}}}",
        rf"System & Queries & Agreement & {' & '.join(CRITERIA[name] for name in criteria)} \\",
    ]
    about = f"{_BUDGET} bits, round to nearest; agreement with the allocation of {most} queries."
    return Table(columns="lr" + "c" * (n + 1), head=head, rows=rows, about=about)
