"""Charts: specs that Vega-Lite takes without a word, whose numbers are the metrics'."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.metrics import parse_metric
from quantdrift.report import figures, study_figures
from quantdrift.report.figures import Figure, theme
from quantdrift.spec.grammar import parse, parse_scheme
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell, CellSettings, DataEntry
from quantdrift.study.results import Result, results_of
from quantdrift_paper import figures as paper_figures
from quantdrift_paper.law import law_runs
from support.small_evidence import FOUR, THREE
from support.study_samples import study_of

vl_convert = pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")

METRICS = ("flip@1", "gold_lost@1", "change.ndcg@10", "change.accuracy", "separation", "noise_floor")
HOSTILE = '<script>alert(1)</script> datum["x"] \u202e\n{{signal}} \x1b[31m'


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    schemes = ("W8", "W3", "W3-gptq", "W3.5+gap", "W2")
    folder = tmp_path_factory.mktemp("study")
    return study_of(folder, models=("minilm", "e5"), schemes=schemes, data=("docs", "classes"), n=40, missing=("W2",))


@pytest.fixture(scope="module")
def results(study: StudyFolder) -> list[Result]:
    return results_of(study, [parse_metric(name) for name in METRICS])[0]


def charts(results: list[Result]) -> list[Figure]:
    runs = [done.run for done in results if done.run is not None]
    links = {done.cell.name: f"#{done.cell.name}" for done in results}
    return [
        study_figures.heat_map(results, links),
        paper_figures.law_chart(law_runs(runs), {run.path: "#there" for run in runs}, {}),
        study_figures.change_rates(results),
        study_figures.pareto(results),
        figures.separation_histogram([run.evidence() for run in runs]),
    ]


def rows(figure: Figure) -> list[dict[str, Any]]:
    return list(figure.spec["data"]["values"])


def told(spec: Any, capfd: pytest.CaptureFixture[str]) -> str:
    """What Vega-Lite and Vega say of a spec, if anything."""
    vl_convert.vegalite_to_svg(spec, config=theme(False), show_warnings=True, allowed_base_urls=[])
    return "".join(capfd.readouterr())


def test_every_spec_is_drawn_and_loads_nothing(results: list[Result], capfd: pytest.CaptureFixture[str]) -> None:
    for figure in charts(results):
        text = json.dumps(figure.spec, allow_nan=False)
        assert "config" not in figure.spec
        assert text.count("http") == 1  # the name of the format
        assert rows(figure)
        assert told(figure.spec, capfd) == "", figure.name
    wrong = {"field": "n", "type": "nominal", "scale": {"type": "log"}}
    assert told({**figure.spec, "layer": [{"mark": "bar", "encoding": {"x": wrong}}]}, capfd)  # it would have been said


def test_charts_of_a_study_where_nothing_is_done_can_be_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    failed = replace(result("W4", "docs", 0.0), state="failed", run=None, metrics={})
    figure = study_figures.heat_map([failed], {})
    assert ([row["told"] for row in rows(figure)], told(figure.spec, capfd)) == (["failed"], "")


def test_the_heat_map_has_every_metric_of_every_cell(results: list[Result]) -> None:
    squares = {(row["model"], row["data"], row["scheme"], row["shown"]): row for row in rows(charts(results)[0])}
    (gptq,) = [done for done in results if str(done.cell.spec) == "e5@W3-g128-gptq" and done.cell.data.called == "docs"]
    flip, change = (gptq.run[name].value for name in ("flip@1", "change.ndcg@10"))
    assert squares["e5", "docs", "W3-gptq", "top-1 changes, %"]["told"] == f"{100 * flip:.1f}"
    assert squares["e5", "docs", "W3-gptq", "top-1 changes, %"]["open"] == f"#{gptq.cell.name}"
    assert squares["e5", "docs", "W3-gptq", "change of nDCG@10"]["told"] == f"{change:+.4f}"
    assert squares["e5", "docs", "W2-rtn", "top-1 changes, %"]["told"] == "open"
    shades = [squares["e5", "docs", scheme, "top-1 changes, %"]["shade"] for scheme in ("W8-rtn", "W3-rtn")]
    assert shades[0] < shades[1]


def test_points_of_the_law_are_the_runs(study: StudyFolder, results: list[Result]) -> None:
    drawn = {(row["model"], row["data"], row["scheme"]): row for row in rows(charts(results)[1])}
    assert len(drawn) == sum(done.run is not None for done in results)
    for done in results:
        if done.run is not None:
            row = drawn[done.cell.model, done.cell.data.called, done.scheme]
            assert (row["separation"], row["rate"]) == (done.run["separation"].value, done.run["flip@1"].value)


def result(scheme: str, data: str, flip: float, bits: float = 4.0) -> Result:
    cell = Cell(name=data, spec=parse(f"m@{scheme}"), model="m", data=DataEntry(task=data), settings=CellSettings())
    run: Any = type("Stub", (), {"record": {"bits_per_weight": {"linear_with_scales": bits}}, "path": Path()})()
    metrics = {"flip@1": Estimate(value=flip, low=flip - 0.01, high=flip + 0.02, n=100)}
    return Result(cell=cell, state="done", run=run, metrics=metrics)


def test_means_over_corpora_have_the_papers_standard_error() -> None:
    seeds = [result("W3-gptq", "a", 0.4), result("W3-gptq+seed=1", "a", 0.6)]
    single, several, seeded = study_figures.averaged(
        [result("W8", "a", 0.05), result("W4", "a", 0.1), result("W4", "b", 0.2), result("W4", "c", 0.6), *seeds]
    )
    assert (single.value, single.low, single.high, single.n) == (0.05, pytest.approx(0.04), pytest.approx(0.07), 1)
    error = np.std([0.1, 0.2, 0.6], ddof=1) / np.sqrt(3)
    assert several.value == pytest.approx(0.3)
    assert (several.low, several.high) == (pytest.approx(0.3 - error), pytest.approx(0.3 + error))
    assert (seeded.scheme, seeded.value, seeded.n) == (parse_scheme("W3-gptq"), pytest.approx(0.5), 2)


def test_the_best_choices_are_those_that_nothing_beats() -> None:
    figure = study_figures.pareto(
        [
            result("W8", "a", 0.01, 8.1),
            result("W4", "a", 0.2, 4.1),
            result("W4-gptq", "a", 0.1, 4.1),  # beats W4: as many bits
            result("W3.5+gap", "a", 0.3, 3.6),
            result("W3", "a", 0.3, 3.1),  # beats W3.5: as many changes
        ]
    )
    best = {row["scheme"]: row["best"] for row in rows(figure)}
    assert best == {"W8-rtn": True, "W4-rtn": False, "W4-gptq": True, "W3.5-rtn+gap": False, "W3-rtn": True}
    assert {row["scheme"] for row in rows(figure) if row["kind"] != "one width"} == {"W3.5-rtn+gap"}


def test_the_histogram_counts_every_input_once() -> None:
    # FOUR: separations inf (an exact copy), 2, 0.25 and 0; the last two changed
    bars = rows(figures.separation_histogram([FOUR, THREE]))
    assert sum(row["n"] for row in bars) == 7
    assert sum(row["n"] for row in bars if row["answer"] == "changed") == 4
    safe = [row for row in bars if row["low"] >= 1 and row["n"]]
    assert {row["answer"] for row in safe} == {"kept"}
    for row in bars:
        assert row["top"] - row["base"] == row["n"]


def test_hostile_names_are_text(results: list[Result], capfd: pytest.CaptureFixture[str]) -> None:
    cell = results[0].cell.model_copy(update={"model": HOSTILE, "data": DataEntry(task="x", name=HOSTILE * 9)})
    hostile = [replace(results[0], cell=cell), *results]
    for figure in (study_figures.heat_map(hostile, {}), study_figures.change_rates(hostile)):
        text = json.dumps(figure.spec)
        assert "\\n" not in text
        assert "\\u001b" not in text
        assert told(figure.spec, capfd) == ""
        picture = figures.drawn(figure, "svg").decode()
        assert "<script" not in picture
        assert "&lt;script&gt;" in picture


def test_pictures_of_all_forms() -> None:
    figure = figures.separation_histogram([FOUR])
    assert figures.drawn(figure, "png").startswith(b"\x89PNG")
    assert figures.drawn(figure, "pdf").startswith(b"%PDF")
    assert figures.drawn(figure, "svg").startswith(b"<svg")
