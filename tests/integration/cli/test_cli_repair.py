"""`quantdrift repair` on a tiny model: what it recommends is a run, and a second time nothing is made again."""

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.engine.sensitivity.guide import guide_of
from quantdrift.evidence.perturbation import flips
from quantdrift.runs.folder import read_run
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]

CONFIGURATIONS = ("--quantizers", "rtn,hqq")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials on 8 queries and then on 16: there are 20."""
    monkeypatch.setattr("quantdrift.features.repair.search.STEPS", (8, 16))


@pytest.mark.usefixtures("small")
def test_a_deployment_is_recommended_and_its_rates_are_those_of_its_run(quantdrift: Run, tmp_path: Path) -> None:
    asked = ("repair", "TINY@W3-g32", "--data", "ROOT/data", "--bits", "4.25", *CONFIGURATIONS, "--out", "out")
    result = json.loads(quantdrift(*asked, "--json"))
    plain, chosen = result["deployments"][0], result["deployments"][result["chosen"]]
    assert plain["scheme"] == "W3-g32-rtn"
    assert chosen["bits"] <= 4.25
    fitting = [trial for trial in result["deployments"] if trial["bits"] <= 4.25 and trial["cost"] == 1]
    assert chosen["flip@1"]["value"] == min(trial["flip@1"]["value"] for trial in fitting)
    # the inputs of the choice and those of what was chosen are the run's, and none is both
    apart = result["confirmed"]
    changed = sum(trial["flip@1"]["value"] * trial["flip@1"]["n"] for trial in (chosen, apart["chosen"]))
    assert changed == pytest.approx(flips(read_run(Path(chosen["run"])).evidence()).sum())
    assert apart["n"] == apart["plain"]["flip@1"]["n"]
    assert all(trial["front"] or trial != chosen for trial in result["deployments"])
    trials = {trial["scheme"]: trial for trial in result["tried"] if trial["shift"] is not None}
    assert {"W3-g32-rtn", "W3-g32-hqq"} <= trials.keys()
    for trial in result["deployments"]:
        run = read_run(Path(trial["run"]))
        assert len(run.evidence().input_ids) == result["deployments"][0]["flip@1"]["n"] + apart["n"]
    # the allocation that the recommendation may name is there, and quantize takes it
    made = [trial["scheme"] for trial in result["deployments"]]
    assert any("allocation" in scheme for scheme in made)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("run.json")}
    shown = quantdrift(*asked)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("run.json")} == stamps
    for words in (
        "Trials, on inputs that no rate below is over",
        "held-out inputs of the choice",
        "other inputs, which no choice saw",
        "make it: quantdrift quantize",
    ):
        assert words in shown
    (command,) = [line for line in shown.splitlines() if line.startswith("make it: ")]
    assert "saved as safetensors" in quantdrift(*command.replace("FOLDER", "made", 1).split()[3:])


@pytest.mark.usefixtures("small")
def test_the_best_quantizer_is_tried_guided_by_the_gap_too(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        asked_for.append(1)
        return guide_of(*args, **kwargs)

    monkeypatch.setattr("quantdrift.engine.pair.guide_of", counted)
    asked = ("repair", "TINY@W3-g32-adaround", "--data", "ROOT/data", "--bits", "4.25", "--quantizers", "adaround")
    result = json.loads(quantdrift(*asked, "--json"))
    shifts = {trial["scheme"]: trial["shift"] for trial in result["tried"]}
    guided = [scheme for scheme in shifts if "guided" in scheme]
    assert guided
    assert None not in [shifts[scheme] for scheme in guided]
    assert len(asked_for) <= 2  # once for all widths and groups, and once with the embedding table rounded
    best = min((scheme for scheme in shifts if "gap+" not in scheme), key=lambda scheme: shifts[scheme] or 0.0)
    assert best in [trial["scheme"] for trial in result["deployments"]]


@pytest.mark.usefixtures("small")
def test_a_target_is_reached_by_asking_again(quantdrift: Run) -> None:
    asked = ("repair", "TINY@W2-channel", "--data", "ROOT/data", "--quantizers", "rtn")
    result = json.loads(quantdrift(*asked, "--target", "flip@1=0.4", "--json"))
    chosen = result["deployments"][result["chosen"]]
    reaching = [trial for trial in result["deployments"] if trial["flip@1"]["high"] <= 0.4]
    if reaching:
        assert chosen["cost"] == min(trial["cost"] for trial in reaching)
    assert result["confirmed"]["target_shown"] is (result["confirmed"]["chosen"]["flip@1"]["high"] <= 0.4)
    shown = quantdrift(*asked, "--latency", "1", "--target", "flip@1=0")
    assert "Not shown: that at most 0.0 % change there: the interval ends at" in shown


def test_the_plan_needs_no_model(quantdrift: Run) -> None:
    shown = quantdrift("repair", "nowhere@W4", "--plan")
    assert "nowhere@W4-g128-rtn: what repair tries" in shown
    assert "whole runs" in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("TINY@W3.5+gap",), "its bits are chosen by layer already; expected the plain scheme"),
        (("TINY@W4", "--target", "0.05"), "--target 0.05: expected flip@1=RATE"),
        (("TINY@W4", "--quantizers", "rtn,gtpq"), "--quantizers 'gtpq': expected names of rtn"),
        (("TINY@W4", "--bits", "4"), "takes 4.16312 bits a linear weight, scales counted, and 4 are allowed"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], message: str, quantdrift: Run) -> None:
    error = quantdrift("repair", *args, "--data", "ROOT/data", code=2)
    assert message in error
    assert len(error.splitlines()) == 1
