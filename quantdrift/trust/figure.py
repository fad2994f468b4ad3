"""What routing gives back against what it costs, as a figure; one line per confidence.

The same runs and the same matplotlib give the same file, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quantdrift.compare.law_figure import COLOURS, STYLE, check_figure, save_figure
from quantdrift.errors import QuantDriftError
from quantdrift.trust.sweep import RoutedRun, mean_curve, relative_cost

STEPS = 200
"""Routed shares at which the lines have a point."""
DASHES = {"gap": "-", "msp": "--", "entropy": ":"}


def draw_cost(runs: Sequence[RoutedRun], path: Path, *, speed_up: float) -> None:
    """Draw changed answers and lost accuracy given back, averaged over runs, against cost."""
    check_figure(path)
    by_score = {
        curve.score: [each for run in runs for each in run.curves if each.score == curve.score]
        for curve in runs[0].curves
    }
    shares, logits = np.linspace(0, 1, STEPS + 1).tolist(), any(run.logits for run in runs)
    rows = {score: mean_curve(curves, shares) for score, curves in by_score.items() if len(curves) == len(runs)}
    panels = {"changes": f"changed answers {'recovered' if logits else 'caught'} (%)"}
    if logits:  # of a search nothing says what accuracy comes back: first items are rescored, not answered
        panels["accuracy"] = "lost accuracy recovered (%)"
    panels = {
        name: title for name, title in panels.items() if any(found[0][name] is not None for found in rows.values())
    }
    if not panels:
        raise QuantDriftError("nothing to draw: no answer changed, so there is nothing to recover")
    from matplotlib import style  # noqa: PLC0415 -- an optional extra, slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415 -- likewise

    with style.context(["default", STYLE]):
        figure = Figure(figsize=(3.5 * len(panels) + 0.6, 3.2), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for number, (score, found) in enumerate(rows.items()):
                values = np.array([(row["cost"], row[name]) for row in found], dtype=np.float64)  # NaN for None
                axes.plot(
                    *(100 * values.T),
                    color=COLOURS[number],
                    linestyle=DASHES[score],
                    linewidth=1.4,
                    label=score,
                    gid=f"{name}-{score}",
                )
            axes.axvline(100, color="black", linestyle=":", linewidth=1.0, gid="break-even")
            axes.set_xlabel(f"{'cost' if logits else 'cost of encoding queries'} (% of full precision)")
            axes.set_ylabel(title)
            axes.set_xlim(100 * relative_cost(0, speed_up) - 2, 100 * relative_cost(1, speed_up))
            axes.legend(loc="lower right")
        save_figure(figure, path)
