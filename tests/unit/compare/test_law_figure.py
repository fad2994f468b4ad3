"""The figure of the law: what is in the file, where it lies, and that it is the same each time."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra 'figures' is not installed")

from quantdrift.compare.law import LawPoint, LawRun, fit_line
from quantdrift.compare.law_figure import draw_law
from quantdrift.errors import QuantDriftError
from quantdrift.spec import parse
from quantdrift.statistics import rate_estimate

SVG = "{http://www.w3.org/2000/svg}"


def run(separation: float, flips: int, *, spec: str = "minilm@W4", data: str = "med") -> LawRun:
    changed = rate_estimate(np.arange(100) < flips)
    return LawRun(
        path=Path("run"),
        point=LawPoint(
            label=f"{spec} on {data} at {separation}",
            separation=separation,
            gap=1.0,
            epsilon=1.0,
            n_items=100.0,
            change_rate=flips / 100,
        ),
        changed=changed,
        spec=parse(spec),
        data=data,
        n_documents=100,
    )


RUNS = [
    run(0.01, 60, spec="minilm@W3"),
    run(0.1, 40),
    run(0.2, 30),
    run(5, 5, spec="minilm@W8"),
    run(0.05, 45, data="scifact"),
    run(2, 0, spec="minilm@W8", data="scifact"),
]
LINE = fit_line([one.point for one in RUNS])


def drawn(path: Path, runs: list[LawRun] = RUNS, **options: str) -> ElementTree.Element:
    draw_law(runs, LINE, path, **options)
    return ElementTree.parse(path).getroot()


def part(root: ElementTree.Element, name: str) -> ElementTree.Element:
    (found,) = (group for group in root.iter(f"{SVG}g") if group.get("id") == name)
    return found


def markers(group: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(use.get("x", "")), float(use.get("y", ""))) for use in group.iter(f"{SVG}use")]


def numbers(path: ElementTree.Element) -> list[float]:
    return [float(number) for number in re.findall(r"-?[0-9.]+", path.get("d", ""))]


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_every_run_is_one_marker_in_its_corpus_and_bits(tmp_path: Path) -> None:
    root = drawn(tmp_path / "law.svg")
    counts = {
        name: len(markers(group)) for group in root.iter(f"{SVG}g") if (name := group.get("id", "")).startswith("runs-")
    }
    # corpora med and scifact; bits 3, 4 and 8
    assert {name: n for name, n in counts.items() if n} == {
        "runs-0-0": 1, "runs-0-1": 2, "runs-0-2": 1, "runs-1-1": 1, "runs-1-2": 1,
    }  # fmt: skip


def test_positions_are_log_separation_and_percent(tmp_path: Path) -> None:
    root = drawn(tmp_path / "law.svg")
    placed = [*markers(part(root, "runs-0-0")), *markers(part(root, "runs-0-1"))]
    placed += markers(part(root, "runs-0-2"))
    shown = RUNS[:4]
    for (x0, y0), (x1, y1), a, b in zip(placed, placed[1:], shown, shown[1:], strict=False):
        decades = math.log10(b.point.separation / a.point.separation)
        rates = b.point.change_rate - a.point.change_rate
        assert (x1 - x0) / decades == pytest.approx((placed[3][0] - placed[0][0]) / math.log10(500), rel=1e-4)
        assert (y1 - y0) / rates == pytest.approx((placed[3][1] - placed[0][1]) / (0.05 - 0.60), rel=1e-4)
    assert placed[0][0] < placed[1][0]  # to the right: larger; up (a lower y): more changes
    assert placed[0][1] < placed[1][1]


def test_intervals_span_the_wilson_limits(tmp_path: Path) -> None:
    root = drawn(tmp_path / "law.svg")
    per_rate = (placed := markers(part(root, "runs-0-0")))[0][1]
    last = markers(part(root, "runs-0-2"))[0][1]
    scale = (last - per_rate) / (0.05 - 0.60)
    bars = [numbers(path) for path in part(root, "intervals-0").iter(f"{SVG}path")]
    assert len(bars) == 4
    x0, low, x1, high = bars[0]
    assert x0 == x1 == pytest.approx(placed[0][0], abs=1e-3)
    first = RUNS[0].changed
    assert low == pytest.approx(per_rate + scale * ((first.low or 0) - 0.6), abs=1e-2)
    assert high == pytest.approx(per_rate + scale * ((first.high or 0) - 0.6), abs=1e-2)


def test_the_threshold_stands_at_one_and_the_line_is_the_line(tmp_path: Path) -> None:
    root = drawn(tmp_path / "law.svg")
    (threshold,) = part(root, "threshold").iter(f"{SVG}path")
    (line,) = part(root, "line").iter(f"{SVG}path")
    (x_tenth, y_40), (x_fifth, y_30) = markers(part(root, "runs-0-1"))
    x_one = x_tenth + (x_fifth - x_tenth) / math.log10(2)
    assert numbers(threshold)[0] == pytest.approx(x_one, abs=0.01)
    assert "stroke-dasharray" in threshold.get("style", "")
    (x0, y0), (x1, y1) = (numbers(line)[i : i + 2] for i in (0, 2))
    assert x0 == pytest.approx(markers(part(root, "runs-0-0"))[0][0], abs=0.01)
    predicted = LINE.intercept + LINE.slope * -2
    assert y0 == pytest.approx(y_40 + (y_30 - y_40) * (0.4 - predicted) / 0.1, abs=0.05)
    assert y1 > y0
    assert x1 > x0


def test_labels_are_text_in_the_words_of_the_glossary(tmp_path: Path) -> None:
    found = texts(drawn(tmp_path / "law.svg", line_label="line through 6 runs"))
    assert "median separation ratio, gap / (2 epsilon)" in found
    assert "change rate: first answer differs (%)" in found
    order = ["corpus", "med", "scifact", "bits", "W3", "W4", "W8", "line through 6 runs"]
    places = [found.index(text) for text in order]
    assert places == sorted(places)
    assert "one input's threshold" in found
    assert "95 % interval" in found
    assert not any("not shown" in text for text in found)


def test_more_bits_are_darker_so_that_it_reads_in_grey(tmp_path: Path) -> None:
    root = drawn(tmp_path / "law.svg")
    fills = []
    for bits in range(3):
        use = next(part(root, f"runs-0-{bits}").iter(f"{SVG}use"))
        found = re.search(r"fill: #(..)(..)(..)", use.get("style", ""))
        assert found is not None
        fills.append(sum(int(channel, 16) for channel in found.groups()))
    assert fills[0] == 3 * 255  # white
    assert all(lighter > darker for lighter, darker in pairwise(fills))


def test_runs_without_a_logarithm_are_counted_in_a_note(tmp_path: Path) -> None:
    copies = [run(math.inf, 0), run(0, 90)]
    root = drawn(tmp_path / "law.svg", [*RUNS, *copies])
    assert "not shown: 2 without a finite logarithm" in texts(root)
    with pytest.raises(QuantDriftError, match=r"nothing to draw: .* all 2 runs"):
        draw_law(copies, None, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    odd = [run(0.1, 3, data="$x^2$ & <b>"), run(0.2, 2, data="_hidden")]
    found = texts(drawn(tmp_path / "law.svg", odd))
    assert "$x^2$ & <b>" in found
    assert " _hidden" in found


def test_the_same_runs_give_the_same_small_file(tmp_path: Path) -> None:
    many = [run(0.01 * 1.1**i, 90 - i, spec=f"minilm@W{3 + i % 3}", data=f"corpus {i % 5}") for i in range(90)]
    for name in ("one", "two"):
        for kind in ("svg", "pdf", "png"):
            draw_law(many, LINE, tmp_path / f"{name}.{kind}")
    for kind in ("svg", "pdf", "png"):
        one, two = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("one", "two"))
        assert one == two, kind
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "one.svg").stat().st_size < 80_000
    assert "<dc:date>" not in (tmp_path / "one.svg").read_text(encoding="utf-8")


def test_a_users_own_settings_do_not_change_the_figure(tmp_path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 -- after importorskip

    draw_law(RUNS, LINE, tmp_path / "plain.svg")
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        draw_law(RUNS, LINE, tmp_path / "own.svg")
        assert mpl.rcParams["font.size"] == 30  # and it leaves theirs alone
    assert (tmp_path / "own.svg").read_bytes() == (tmp_path / "plain.svg").read_bytes()


def test_a_figure_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantDriftError, match=r"ends in \.svg, \.png, \.pdf; got .*law\.jpeg"):
        draw_law(RUNS, LINE, tmp_path / "law.jpeg")
    with pytest.raises(QuantDriftError, match="folder for the figure does not exist"):
        draw_law(RUNS, LINE, tmp_path / "none" / "law.svg")
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(QuantDriftError, match="cannot be written"):
        draw_law(RUNS, LINE, tmp_path / "taken.svg")
