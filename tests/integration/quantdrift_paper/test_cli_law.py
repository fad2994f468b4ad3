"""The kit's `law` and `contenders` as a user types them, on small runs on disk."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from quantdrift.runs.folder import write_run
from quantdrift_paper.contenders import fit_effective_scale
from support.command_line import cli
from support.theory_samples import evidence

N = 100


def save(path: Path, spec: str, data: str, *gaps: float, separation: float, flips: int, n: int = 4) -> None:
    """A run of N inputs alike, whose first item leads by these gaps, with n documents."""
    made = evidence(
        [[0.0, *(-gap for gap in gaps)]] * N,
        [gaps[0] / (2 * separation)] * N,
        flips=[row < flips for row in range(N)],
        n_items=[n] * N,
    )
    about = {"name": data, "fingerprint": data, "split": "test", "n_documents": n}
    record = {"spec": spec, "model": {"fingerprint": "m"}, "data": about, "settings": {"seed": 0}}
    write_run(path, evidence=made, record=record)


GRID = [  # rates on a line but for a point or two: 10 % at 1, 20 points per factor of ten
    ("minilm@W3-g128-rtn", "med", 0.01, 51, 1.0),
    ("minilm@W4-g128-rtn", "med", 0.1, 29, 1.0),
    ("minilm@W8-g128-rtn", "med", 1.0, 10, 1.0),
    ("minilm@W3-g128-rtn", "scifact", 0.02, 44, 2.0),
    ("minilm@W4-g128-rtn", "scifact", 0.2, 25, 2.0),
    ("minilm@W8-g128-rtn", "scifact", 2.0, 4, 2.0),
]


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    for spec, data, separation, flips, gap in GRID:
        place = tmp_path / "runs" / data / spec.partition("@")[2]
        save(place, spec, data, gap, 9 * gap, separation=separation, flips=flips, n=300 if data == "med" else 500)
    return tmp_path / "runs"


def test_the_law_of_some_runs_is_told(grid: Path) -> None:
    code, out, err = cli("law", grid)
    words = " ".join(out.split())
    assert (code, err) == (0, "")
    assert all(part in words for part in ("(Spearman -1.00 over 6 runs)", "6 runs are too few to rely on that"))
    assert "| median separation ratio | -1.00 |" in cli("law", grid, "--markdown")[1]
    held = json.loads(cli("law", grid, "--by", "scheme", "--json")[1])["held_out"]
    assert [group["name"] for group in held["predictors"]["separation"]["groups"]] == ["W3", "W4", "W8"]


def test_json_has_every_point_and_result(grid: Path) -> None:
    result = json.loads(cli("law", grid, "--json")[1])
    first = result["runs"][0]
    assert (first["label"], first["n_documents"]) == ("minilm@W3-g128-rtn on med", 300)
    assert [first["separation"], first["gap"], first["epsilon"]] == pytest.approx([0.01, 1, 50])
    assert first["change_rate"]["low"] < first["change_rate"]["value"] == 0.51 < first["change_rate"]["high"]
    everywhere, med = result["spearman"]["all"], result["spearman"]["by_data"]["med"]
    # Pearson of the ranks 5.5 3.5 1.5 5.5 3.5 1.5 and 6 4 2 5 3 1; of 2 2 2 5 5 5 with them
    expected = {"separation": -1, "epsilon": 16 / 280**0.5, "gap": -4.5 / 236.25**0.5}
    assert {name: everywhere[name]["value"] for name in expected} == pytest.approx(expected)
    assert (med["separation"]["value"], med["gap"]["value"]) == (pytest.approx(-1), None)
    x = np.log10([row[2] for row in GRID])
    line = np.polyfit(x, [row[3] / 100 for row in GRID], 1)
    assert [result["line"]["slope"], result["line"]["intercept"]] == pytest.approx([*line])
    groups = result["held_out"]["predictors"]["separation"]["groups"]
    slope, intercept = np.polyfit(x[3:], [0.44, 0.25, 0.04], 1)
    assert first["predicted_unseen"] == pytest.approx(intercept + slope * -2)
    assert (groups[0]["name"], groups[0]["line"]["slope"]) == ("med", pytest.approx(slope))


def test_choices_that_make_no_sense_are_refused(grid: Path) -> None:
    two = [grid / "med" / "W3-g128-rtn", grid / "med" / "W4-g128-rtn"]
    copied = [grid, shutil.copytree(two[0], grid.with_name("copy"))]
    for arguments, said in (
        ((grid, "--by", "shceme"), "did you mean scheme?"),
        (two, "expected 3 or more, of other schemes, models or corpora; got 2"),
        (copied, "the same run lies in two folders"),
    ):
        code, out, err = cli("law", *arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err


def test_one_scale_per_scheme_predicts_each_contender_count(tmp_path: Path) -> None:
    """W4: one contender per input on `near`, two on `far`; W8: nothing ever flips."""
    save(tmp_path / "a", "minilm@W4", "near", 1.0, 9.0, separation=0.5, flips=20)
    save(tmp_path / "b", "minilm@W4", "far", 1.0, 1.5, 9.0, separation=0.5, flips=26)
    save(tmp_path / "c", "minilm@W8", "near", 1.0, 9.0, separation=2, flips=0)
    w4, w8 = json.loads(cli("contenders", tmp_path, "--json")[1])["groups"]
    assert (w4["name"], w4["n"], w4["flip_rate"]) == ("W4-g128-rtn", 200, pytest.approx(0.23))
    scale = fit_effective_scale([[1, 9, np.nan]] * N + [[1, 1.5, 9]] * N, 0.23).scale  # epsilon is 1
    assert w4["scale"] == pytest.approx(scale)
    rows = {bucket["low"]: bucket for bucket in w4["buckets"]}
    assert [(rows[count]["n"], rows[count]["measured"]["value"]) for count in (1, 2)] == [(100, 0.2), (100, 0.26)]
    assert rows[1]["predicted"] == pytest.approx((1 - 1 / (2 * scale)) ** 2 / 2)
    assert rows[1]["predicted"] + rows[2]["predicted"] == pytest.approx(0.46)
    assert rows[3]["measured"] == {"value": None, "reason": "no input has so many"}
    assert (w8["name"], w8["scale"]) == ("W8-g128-rtn", None)
    assert "no one scale predicts" in w8["reason"]
