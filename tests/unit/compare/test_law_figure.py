"""The figure of the law: what is in the file, where it lies, and that it is the same each time."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra 'figures' is not installed")

from quantdrift.compare.law import LawPoint, fit_line
from quantdrift.compare.law_figure import draw_law
from quantdrift.errors import QuantDriftError
from quantdrift.statistics.estimates import rate_estimate

SVG = "{http://www.w3.org/2000/svg}"


def run(separation: float, flips: int, bits: int = 4, data: str = "med") -> LawPoint:
    return LawPoint(
        label=f"{bits} on {data} at {separation}",
        separation=separation,
        gap=1.0,
        epsilon=1.0,
        n_items=100.0,
        change_rate=flips / 100,
        changed=rate_estimate(np.arange(100) < flips),
        data=data,
        bits=f"W{bits}",
        width=bits,
    )


RUNS = [run(0.01, 60, 3), run(0.1, 40), run(0.2, 30), run(5, 5, 8), run(0.05, 45, 4, "sci"), run(2, 0, 8, "sci")]
LINE = fit_line(RUNS)


def markers(root: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    (part,) = (group for group in root.iter(f"{SVG}g") if group.get("id") == name)
    return [(float(use.get("x", "")), float(use.get("y", ""))) for use in part.iter(f"{SVG}use")]


def test_every_run_is_a_marker_at_log_separation_and_percent(tmp_path: Path) -> None:
    draw_law(RUNS, LINE, tmp_path / "law.svg")
    root = ElementTree.parse(tmp_path / "law.svg").getroot()
    # corpora med and sci; bits 3, 4 and 8
    counts = {(c, w): len(markers(root, f"runs-{c}-{w}")) for c in (0, 1) for w in (0, 1, 2)}
    assert counts == {(0, 0): 1, (0, 1): 2, (0, 2): 1, (1, 0): 0, (1, 1): 1, (1, 2): 1}
    placed = [place for w in (0, 1, 2) for place in markers(root, f"runs-0-{w}")]
    decades, rates = [math.log10(one.separation) for one in RUNS[:4]], [one.change_rate for one in RUNS[:4]]
    for axis, values, grows in ((0, decades, 1), (1, rates, -1)):  # to the right; up is a lower y
        slope, offset = np.polyfit(values, [place[axis] for place in placed], 1)
        assert slope * grows > 0
        assert [place[axis] for place in placed] == pytest.approx(np.polyval([slope, offset], values), abs=0.01)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_runs_give_the_same_file_whatever_a_user_has_set(kind: str, tmp_path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 -- after importorskip

    draw_law(RUNS, LINE, tmp_path / f"one.{kind}")
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        draw_law(RUNS, LINE, tmp_path / f"two.{kind}")
        assert mpl.rcParams["font.size"] == 30  # and it leaves theirs alone
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_a_figure_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for place, told in (("law.jpeg", r"ends in \.svg, \.png, \.pdf"), ("none/law.svg", "folder .* does not exist")):
        with pytest.raises(QuantDriftError, match=told):
            draw_law(RUNS, LINE, tmp_path / place)
    with pytest.raises(QuantDriftError, match="nothing to draw"):
        draw_law([run(math.inf, 0), run(0, 90)], None, tmp_path / "none.svg")
    assert not [*tmp_path.iterdir()]
