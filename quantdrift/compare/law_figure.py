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
from quantdrift.errors import MissingExtraError, QuantDriftError
from quantdrift.records import check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
_GREY, _BLACK = "0.35", "black"


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be drawn, before anything is computed."""
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise QuantDriftError(f"a figure's name ends in {', '.join(f'.{name}' for name in FORMATS)}; got {path}")
    if not path.absolute().parent.is_dir():
        raise QuantDriftError(f"the folder for the figure does not exist: {path.parent}; make it")
    check_writable(path, what="the figure")
    try:
        import matplotlib  # noqa: F401, PLC0415 -- an optional extra
    except ImportError as error:
        raise MissingExtraError("matplotlib", "figures", needed_for="a figure") from error


def save_figure(figure: Figure, path: Path, **options: Any) -> None:
    """Write a figure, without the dates that would make every file another."""
    kind = path.suffix.lower().removeprefix(".")
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    try:
        figure.savefig(path, format=kind, dpi=200, metadata=metadata[kind], **options)
    except OSError as error:
        raise QuantDriftError(f"the figure cannot be written to {path}: {error}") from error


def draw_law(runs: Sequence[LawPoint], line: Line | None, path: Path, *, line_label: str = "least squares") -> None:
    """Draw the runs, the line and the stability threshold of an input, and write the file."""
    check_figure(path)
    shown = on_the_axis(runs)
    if not shown:
        raise QuantDriftError(f"nothing to draw: the median separation of all {len(runs)} runs is 0 or infinite")
    from matplotlib import style  # noqa: PLC0415 -- an optional extra, slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415 -- likewise

    with style.context(["default", STYLE]):  # a user's own settings do not change the figure
        axes = (figure := Figure(figsize=(6.6, 3.9))).add_subplot()
        x = [run.separation for run in shown]
        axes.axvline(1, color=_BLACK, linestyle=":", linewidth=1.2, gid="threshold", zorder=1)
        if line is not None:
            ends = np.array([min(x), max(x)])
            rates = 100 * (line.intercept + line.slope * np.log10(ends))
            axes.plot(ends, rates, color=_GREY, linewidth=1.4, gid="line", zorder=1.5)
        corpora = sorted({run.data for run in shown}, key=str.lower)
        widths = list(dict.fromkeys(run.bits for run in sorted(shown, key=lambda run: run.width)))
        _markers(axes, shown, corpora, widths)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # 0.1 instead of a power
        axes.set_xlim(min(*x, 1) / 1.4, max(*x, 1) * 1.4)
        top = max(100 * float(run.changed.high or 0) for run in shown)
        axes.set_ylim(-0.03 * top, min(1.05 * top, 102))
        axes.set_xlabel("median separation ratio, gap / (2 epsilon)")
        axes.set_ylabel("change rate: first answer differs (%)")
        _legend(axes, corpora, widths, None if line is None else line_label, len(runs) - len(shown))
        save_figure(figure, path, bbox_inches="tight")


def _markers(axes: Axes, runs: Sequence[LawPoint], corpora: Sequence[str], widths: Sequence[str]) -> None:
    """Intervals and markers; a group of the file, `runs-CORPUS-BITS` by number, for each kind."""
    for c, corpus in enumerate(corpora):
        colour, own = COLOURS[c % len(COLOURS)], [run for run in runs if run.data == corpus]
        ends = [[100 * float(end or 0) for end in (run.changed.low, run.changed.high)] for run in own]
        axes.vlines(
            [run.separation for run in own],
            *zip(*ends, strict=True),
            color=colour,
            linewidth=0.7,
            alpha=0.45,
            gid=f"intervals-{c}",
            zorder=2,
        )
        for w, width in enumerate(widths):
            same = [run for run in own if run.bits == width]
            axes.scatter(
                [run.separation for run in same],
                [100 * run.change_rate for run in same],
                marker=MARKERS[c % len(MARKERS)],
                s=24,
                color=_tint(colour, w, len(widths)),
                edgecolors=colour,
                linewidths=0.9,
                gid=f"runs-{c}-{w}",
                zorder=3,
            )


def _legend(axes: Axes, corpora: Sequence[str], widths: Sequence[str], line: str | None, n_absent: int) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 -- an optional extra

    def mark(place: int) -> dict[str, Any]:
        return {"marker": MARKERS[place % len(MARKERS)], "color": COLOURS[place % len(COLOURS)]}

    rows: list[tuple[str, dict[str, Any]]] = [("corpus", {})]
    rows += [(corpus, mark(place)) for place, corpus in enumerate(corpora)]
    rows += [("", {}), ("bits", {})]
    rows += [
        (width, {"marker": "o", "color": "0.2", "markerfacecolor": _tint("0.2", place, len(widths))})
        for place, width in enumerate(widths)
    ]
    rows.append(("", {}))
    if line is not None:
        rows.append((line, {"color": _GREY, "linewidth": 1.4, "linestyle": "-"}))
    rows.append(("one input's threshold", {"color": _BLACK, "linewidth": 1.2, "linestyle": ":"}))
    rows.append(("95 % interval", {"color": _GREY, "linewidth": 0.7, "linestyle": "-"}))
    if n_absent:
        rows.append((f"not shown: {n_absent} without a finite logarithm", {}))
    handles = [Line2D([], [], **{"linestyle": "", "markersize": 5.5, **look}) for _, look in rows]
    # a legend drops names that begin with "_"
    labels = [f" {name}" if name.startswith("_") else clean(name) for name, _ in rows]
    for text in axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.02)).get_texts():
        text.set_parse_math(False)  # a "$" in a name is a "$"


def _tint(colour: str, position: int, n: int) -> tuple[float, ...]:
    """White for the fewest bits, the full colour for the most."""
    from matplotlib.colors import to_rgb  # noqa: PLC0415 -- an optional extra

    share = 1.0 if n == 1 else position / (n - 1)
    return tuple(1 - share * (1 - part) for part in to_rgb(colour))
