"""The law as a figure: change rate against median separation, one point per run.

Marker and colour tell the corpus, the filling tells the bits (the more bits, the darker), so that it reads in grey
too. The same runs and the same matplotlib give the same file, byte for byte.

Source: paper, section 5.2, figure "One quantity predicts the top-1 change rate".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quantdrift.compare.law import LawPoint, Line, on_the_axis
from quantdrift.display import clean
from quantdrift.errors import QuantDriftError
from quantdrift.extras import extras_named
from quantdrift.records import check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "png", "pdf")

# Okabe and Ito's colours, which stay apart for colour-blind readers; yellow is too faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "p", "<", "h", ">", "P", "X")
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the SVG names them at every text
    "font.size": 9.0,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text: small, and found by a search
    "svg.hashsalt": "quantdrift",  # otherwise ids are drawn at random
}
_GREY = "0.35"


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be drawn, before anything is computed."""
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise QuantDriftError(f"a figure's name ends in {', '.join(f'.{name}' for name in FORMATS)}; got {path}")
    if not path.absolute().parent.is_dir():
        raise QuantDriftError(f"the folder for the figure does not exist: {path.parent}; make it")
    check_writable(path, what="the figure")
    with extras_named(needed_for="a figure"):
        import matplotlib  # noqa: F401, PLC0415 -- an optional extra


def draw_law(runs: Sequence[LawPoint], line: Line | None, path: Path) -> None:
    """Draw the runs, the line and the stability threshold of an input, and write the file."""
    check_figure(path)
    shown = on_the_axis(runs)
    if not shown:
        raise QuantDriftError("nothing to draw: every run has a median separation of 0 or infinity")
    from matplotlib import style  # noqa: PLC0415 -- an optional extra
    from matplotlib.figure import Figure  # noqa: PLC0415 -- likewise

    with style.context(["default", STYLE]):  # a user's own settings do not change the figure
        axes = (figure := Figure(figsize=(6.6, 3.9))).add_subplot()
        x = [run.separation for run in shown]
        threshold: dict[str, Any] = {
            "color": "black",
            "linestyle": ":",
            "linewidth": 1.2,
            "label": "one input's threshold",
        }
        axes.axvline(1, gid="threshold", zorder=1, **threshold)
        if line is not None:
            ends = np.array([min(x), max(x)])
            rates = 100 * (line.intercept + line.slope * np.log10(ends))
            axes.plot(ends, rates, color=_GREY, linewidth=1.4, gid="line", zorder=1.5, label=f"line, {line.n} runs")
        widths = list(dict.fromkeys(run.bits for run in sorted(shown, key=lambda run: (run.width, run.bits))))
        _markers(axes, shown, widths)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # 0.1 instead of a power
        axes.set_xlim(min(*x, 1) / 1.4, max(*x, 1) * 1.4)
        top = max(100 * float(run.changed.high or 0) for run in shown)
        axes.set_ylim(-0.03 * top, min(1.05 * top, 102))
        axes.set_xlabel("median separation ratio, gap / (2 epsilon)")
        axes.set_ylabel("change rate: first answer differs (%)")
        told = f"the paler, the fewer bits:\n{', '.join(widths)}"
        legend = axes.legend(title=told, loc="upper left", bbox_to_anchor=(1.01, 1.02))
        for text in legend.get_texts():
            text.set_parse_math(False)  # a "$" in a name is a "$"
        kind = path.suffix.lower().removeprefix(".")
        # without the dates that would make every file another
        metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        figure.savefig(path, format=kind, dpi=200, metadata=metadata[kind], bbox_inches="tight")


def _markers(axes: Axes, runs: Sequence[LawPoint], widths: Sequence[str]) -> None:
    """Markers with their intervals; a group of the file, `runs-CORPUS-BITS` by number, for each kind."""
    for c, corpus in enumerate(sorted({run.data for run in runs}, key=str.lower)):
        colour, marker = COLOURS[c % len(COLOURS)], MARKERS[c % len(MARKERS)]
        label = f" {clean(corpus)}"  # a legend drops names that begin with "_"
        for w, width in enumerate(widths):
            same = [run for run in runs if (run.data, run.bits) == (corpus, width)]
            x, rates = [run.separation for run in same], [100 * run.change_rate for run in same]
            low, high = ([100 * float(getattr(run.changed, end) or 0) for run in same] for end in ("low", "high"))
            axes.vlines(x, low, high, color=colour, linewidth=0.7, alpha=0.45, zorder=2)
            look: dict[str, Any] = {
                "marker": marker,
                "markersize": 5,
                "markerfacecolor": (colour, (w + 1) / len(widths)),
            }
            axes.plot(x, rates, color=colour, linestyle="", gid=f"runs-{c}-{w}", zorder=3, label=label, **look)
            label = "_once"
