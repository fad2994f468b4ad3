"""The law as a figure: change rate against median separation, one point per run.

Marker and colour tell the corpus, the filling tells the bits (the more bits, the darker), so that
it reads in grey too. The same runs and the same matplotlib give the same file, byte for byte.

Source: paper, section 5.2, figure "One quantity predicts the top-1 change rate".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quantdrift.compare.law import LawRun, Line, left_out_of_line
from quantdrift.display import clean
from quantdrift.errors import MissingExtraError, QuantDriftError
from quantdrift.records import check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Colour = str | tuple[float, float, float]

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
# dates would make every file another; matplotlib writes none into a PNG
METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be drawn, before anything is computed.

    Args:
        path: where it is to be written.

    Raises:
        QuantDriftError: not a format of FORMATS, or no folder to write into.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        expected = ", ".join(f".{name}" for name in FORMATS)
        raise QuantDriftError(f"a figure's name ends in {expected}; got {path}")
    if not path.absolute().parent.is_dir():
        raise QuantDriftError(f"the folder for the figure does not exist: {path.parent}; make it")
    check_writable(path, what="the figure")
    try:
        import matplotlib  # noqa: F401, PLC0415 -- an optional extra
    except ImportError as error:
        raise MissingExtraError("matplotlib", "figures", needed_for="a figure") from error


def draw_law(runs: Sequence[LawRun], line: Line | None, path: Path, *, line_label: str = "least squares") -> None:
    """Draw the runs, the line and the stability threshold of an input, and write the file.

    Args:
        runs: those whose median separation is 0 or infinite have no place on the axis; a note says
            how many.
        line: on the median separation; none is drawn for None.
        path: .svg, .png or .pdf; replaced if it is there.
        line_label: of the line, in the legend.

    Raises:
        QuantDriftError: no run has a place, or the file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    check_figure(path)
    absent = set(left_out_of_line([run.point for run in runs]))
    shown = [run for run in runs if run.point not in absent]
    if not shown:
        raise QuantDriftError(f"nothing to draw: the median separation of all {len(runs)} runs is 0 or infinite")
    from matplotlib import style  # noqa: PLC0415 -- an optional extra, slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415 -- likewise

    # from the defaults, so that a user's own settings do not change the figure
    with style.context(["default", STYLE]):
        axes = (figure := Figure(figsize=(6.6, 3.9))).add_subplot()
        x = [run.point.separation for run in shown]
        left, right = min(*x, 1) / 1.4, max(*x, 1) * 1.4
        axes.axvline(1, color="black", linestyle=":", linewidth=1.2, gid="threshold", zorder=1)
        if line is not None:
            ends = np.array([min(x), max(x)])
            axes.plot(
                ends,
                100 * (line.intercept + line.slope * np.log10(ends)),
                color="0.35",
                linewidth=1.4,
                gid="line",
                zorder=1.5,
            )
        _points(axes, shown)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # 0.1 instead of a power
        axes.set_xlim(left, right)
        top = max(100 * float(run.changed.high or 0) for run in shown)
        axes.set_ylim(-0.03 * top, min(1.05 * top, 102))
        axes.set_xlabel("median separation ratio, gap / (2 epsilon)")
        axes.set_ylabel("change rate: first answer differs (%)")
        _legend(axes, shown, line_label if line is not None else None, len(absent))
        kind = path.suffix.lower().removeprefix(".")
        try:
            figure.savefig(path, format=kind, dpi=200, bbox_inches="tight", metadata=METADATA[kind])
        except OSError as error:
            raise QuantDriftError(f"the figure cannot be written to {path}: {error}") from error


def _points(axes: Axes, runs: Sequence[LawRun]) -> None:
    """Intervals and markers; a group of the file, `runs-CORPUS-BITS` by number, for each kind."""
    corpora, widths = _names([run.data for run in runs]), _widths(runs)
    for c, corpus in enumerate(corpora):
        colour, marker = COLOURS[c % len(COLOURS)], MARKERS[c % len(MARKERS)]
        own = [run for run in runs if run.data == corpus]
        axes.vlines(
            [run.point.separation for run in own],
            [100 * float(run.changed.low or 0) for run in own],
            [100 * float(run.changed.high or 0) for run in own],
            color=colour,
            linewidth=0.7,
            alpha=0.45,
            gid=f"intervals-{c}",
            zorder=2,
        )
        for w, width in enumerate(widths):
            same = [run for run in own if run.bits == width]
            axes.scatter(
                [run.point.separation for run in same],
                [100 * run.point.change_rate for run in same],
                marker=marker,
                s=24,
                color=_tint(colour, w, len(widths)),
                edgecolors=colour,
                linewidths=0.9,
                gid=f"runs-{c}-{w}",
                zorder=3,
            )


def _legend(axes: Axes, runs: Sequence[LawRun], line_label: str | None, n_absent: int) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 -- an optional extra

    def mark(label: str, marker: str, edge: str, fill: Colour) -> Line2D:
        return Line2D(
            [], [], linestyle="", marker=marker, markersize=5.5, color=edge,
            markerfacecolor=fill, label=label,
        )  # fmt: skip

    def heading(label: str) -> Line2D:
        return Line2D([], [], linestyle="", label=label)

    corpora, widths = _names([run.data for run in runs]), _widths(runs)
    handles = [heading("corpus")]
    for c, corpus in enumerate(corpora):
        colour = COLOURS[c % len(COLOURS)]
        handles.append(mark(corpus, MARKERS[c % len(MARKERS)], colour, colour))
    handles += [heading(""), heading("bits")]
    for w, width in enumerate(widths):
        handles.append(mark(width, "o", "0.2", _tint("0.2", w, len(widths))))
    handles.append(heading(""))
    if line_label is not None:
        handles.append(Line2D([], [], color="0.35", linewidth=1.4, label=line_label))
    handles += [
        Line2D([], [], color="black", linestyle=":", linewidth=1.2, label="one input's threshold"),
        Line2D([], [], color="0.35", linewidth=0.7, label="95 % interval"),
    ]
    if n_absent:
        handles.append(heading(f"not shown: {n_absent} without a finite logarithm"))
    names = [str(handle.get_label()) for handle in handles]
    # a legend drops names that begin with "_"
    labels = [f" {name}" if name.startswith("_") else clean(name) for name in names]
    legend = axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.02))
    for text in legend.get_texts():
        text.set_parse_math(False)  # a "$" in a name is a "$"


def _names(values: Sequence[str]) -> list[str]:
    return sorted(set(values), key=str.lower)


def _widths(runs: Sequence[LawRun]) -> list[str]:
    """Bits that occur, fewest first."""
    by_width = {run.bits: run.width for run in runs}
    return sorted(by_width, key=lambda bits: by_width[bits])


def _tint(colour: str, position: int, n: int) -> Colour:
    """White for the fewest bits, the full colour for the most."""
    from matplotlib.colors import to_rgb  # noqa: PLC0415 -- an optional extra

    share = 1.0 if n == 1 else position / (n - 1)
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue
