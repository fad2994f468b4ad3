"""`quantdrift gate --plan` on a tiny model: the pilot is a run that is kept, and rules are those of the gate."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.data.labelled import sampled
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.metrics import parse_metric
from quantdrift.runs.folder import read_run
from quantdrift.statistics.verdicts import inputs_for_rate
from support.command_line import cli
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

LINE = ("gate", "--plan", "TINY@W3", "--data", "ROOT/data", "--pilot", "25", "--json")


def test_a_pilot_is_measured_once_and_answers_other_questions(place: Path, quantdrift: Run) -> None:
    result = json.loads(quantdrift(*LINE, "--margin", "0.02"))
    (kept,) = Path("quantdrift-runs").glob("[!.]*")
    stamp = (kept / "run.json").stat().st_mtime_ns
    assert (result["pilot"], result["inputs"], Path(result["run"])) == (25, 40, kept.absolute())
    (rule,) = result["rules"]  # without labels there is one
    assert rule["rule"] == "flip@1 no worse by 0.02"
    run = read_run(kept)
    drawn = sampled(read_beir_folder(place / "data"), 25, 0)
    assert [str(name) for name in run.evidence().input_ids] == list(drawn.query_ids)  # type: ignore[union-attr]
    flips = parse_metric("flip@1").per_input(run.evidence())
    assert rule["pilot"]["value"] == pytest.approx(flips.mean())

    other = json.loads(
        quantdrift(*LINE, "--margin", "0.1", "--power", "0.9", "-m", "flip@1", "-r", "flip@1 no worse by 0.2")
    )
    assert (kept / "run.json").stat().st_mtime_ns == stamp
    assert [asked["rule"] for asked in other["rules"]] == ["flip@1 no worse by 0.2", "flip@1 no worse by 0.1"]
    assert other["rules"][1]["to_pass"] < rule["to_pass"]
    quantdrift(*LINE, "--seed", "1")
    assert len(list(Path("quantdrift-runs").glob("[!.]*"))) == 2  # another draw


def test_against_a_run_the_disagreement_is_measured(place: Path, quantdrift: Run) -> None:
    quantdrift("run", "TINY@W4", "--data", "ROOT/data", "--out", "w4", "--no-noise-floor")
    result = json.loads(quantdrift(*LINE, "--against", "w4", "--margin", "0.05", "--no-noise-floor"))
    (kept,) = Path("quantdrift-runs").glob("[!.]*")
    pilot, whole = read_run(kept).evidence(), read_run("w4").evidence()
    row = {str(name): number for number, name in enumerate(whole.input_ids)}
    flip = parse_metric("flip@1").per_input
    before = flip(whole)[[row[str(name)] for name in pilot.input_ids]]
    apart = int((before != flip(pilot)).sum())
    share = (apart + 2) / (25 + 4)
    (rule,) = result["rules"]
    assert (rule["differs"], rule["to_pass"]) == (pytest.approx(share), inputs_for_rate(share, margin=0.05))
    shown = quantdrift(*LINE[:-1], "--against", "w4", "--margin", "0.05", "--no-noise-floor")
    assert "is assumed" not in shown
    assert f"{rule['to_pass']:,}" in shown


def test_a_new_baseline_of_a_spec_points_to_the_plan(place: Path, quantdrift: Run) -> None:
    code, _, err = cli("gate", f"{place / 'tiny'}@W3", "--data", str(place / "data"), "--update")
    assert (code, "quantdrift gate --plan with the same words" in err) == (0, True)


def test_what_cannot_be_planned_is_refused(quantdrift: Run) -> None:
    quantdrift("run", "TINY@W4", "--data", "ROOT/a", "--out", "other")
    assert "on other data or a part of them" in quantdrift(*LINE, "--against", "other", code=2)
    assert "too few" in quantdrift(*LINE[:2], "TINY@W3.5+gap", *LINE[3:], code=2)
    assert "has no paired test" in quantdrift(*LINE, "-m", "separation", code=2)
    assert "--pilot" in quantdrift("gate", "--plan", "TINY@W3", "--data", "ROOT/data", "--pilot", "5", code=2)
    for rule in ("flip@1 [german] no worse", "flip@1 <= 0.2"):
        assert "expected a comparison on all inputs" in quantdrift(*LINE, "-r", rule, code=2)
    assert not Path("quantdrift-runs").exists()


SETTINGS = """
[tool.quantdrift.gate]
target = "TINY@W3"
data = "ROOT/data"
rules = ["flip@1 no worse by 10 %", "flip@1 <= 0.4", "flip@1 [one] <= 0.4"]
slices.one = ["q1*"]
"""


def test_what_pyproject_says_is_planned(place: Path, quantdrift: Run) -> None:
    settings = SETTINGS.replace("TINY", str(place / "tiny")).replace("ROOT", str(place))
    Path("pyproject.toml").write_text(settings)
    planned = json.loads(quantdrift("gate", "--plan", "--pilot", "25", "--json"))
    assert [rule["rule"] for rule in planned["rules"]] == ["flip@1 no worse by 0.1"]
    assert (planned["inputs"], planned["alpha"]) == (40, 0.05)
    other = json.loads(quantdrift("gate", "--plan", "--pilot", "25", "--json", "--margin", "5%", "--alpha", "1 %"))
    assert [rule["rule"] for rule in other["rules"]] == ["flip@1 no worse by 0.05"]
    assert other["alpha"] == 0.01
    Path("pyproject.toml").unlink()
    assert "target = " in quantdrift("gate", "--plan", code=2)
