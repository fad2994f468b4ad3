"""`quantdrift law` and `quantdrift contenders` as a user types them, on small runs on disk."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.compare.contenders import fit_effective_scale
from quantdrift.evidence import Evidence, Top
from quantdrift.records import sealed
from quantdrift.runs import write_run
from support.command_line import cli

WIDTH = 110
N = 100


def save(
    path: Path,
    spec: str,
    data: str,
    *,
    separation: float,
    flips: int,
    gap: float = 1.0,
    n_documents: int = 3,
    gaps: tuple[float, ...] | None = None,
) -> Path:
    """A run of N inputs alike: ranks at 0, -gap and -9 gap, or at those `gaps`."""
    scores = -np.array([0, *(gaps or (gap, 9 * gap))], dtype=np.float32)
    reference = np.tile(scores, (N, 1))
    items = np.tile(np.arange(len(scores)), (N, 1))
    candidate = items.copy()
    candidate[:flips, :2] = [1, 0]
    epsilon = 0.0 if np.isinf(separation) else gap / (2 * separation)
    evidence = Evidence(
        input_ids=np.arange(N).astype(str),
        item_ids=np.arange(len(scores)).astype(str),
        reference_top=Top(items=items, reference_scores=reference, candidate_scores=reference),
        candidate_top=Top(items=candidate, reference_scores=reference, candidate_scores=reference),
        delta_min=np.full(N, -epsilon, dtype=np.float32),
        delta_max=np.zeros(N, dtype=np.float32),
        n_items=np.full(N, max(n_documents, len(scores))),
    )
    record = {
        "spec": spec,
        "model": {"fingerprint": "m"},
        "data": {"name": data, "fingerprint": data, "split": "test", "n_documents": n_documents},
        "settings": {"seed": 0},
    }
    return write_run(path, evidence=evidence, record=record).path


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
        n = 300 if data == "med" else 500
        save(place, spec, data, separation=separation, flips=flips, gap=gap, n_documents=n)
    return tmp_path / "runs"


def change(path: Path, **fields: Any) -> None:
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(sealed(record | fields)))


# --- law ----------------------------------------------------------------------------------------


def test_the_law_of_some_runs_is_told(grid: Path) -> None:
    code, out, err = cli("law", grid)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= WIDTH
    told = " ".join(out.split())
    assert "As the law says, runs with a larger separation change fewer answers" in told
    assert "(Spearman -1.00 over 6 runs)" in told
    assert "6 runs are too few to rely on that" in told
    assert "predicted by a line fitted without their corpus" in told
    for word in ("median gap alone", "median epsilon alone", "number of items alone", "scifact"):
        assert word in told


def test_json_has_every_point_and_result(grid: Path) -> None:
    _, out, _ = cli("law", grid, "--json")
    found = json.loads(out)
    first = found["runs"][0]
    assert first["label"] == "minilm@W3-g128-rtn on med"
    assert first["path"] == str(grid / "med" / "W3-g128-rtn")
    assert (first["spec"], first["data"], first["n_documents"]) == (*GRID[0][:2], 300)
    assert first["separation"] == pytest.approx(0.01)
    assert [first["gap"], first["epsilon"]] == pytest.approx([1, 50])
    assert first["change_rate"]["value"] == 0.51
    assert first["change_rate"]["low"] < 0.51 < first["change_rate"]["high"]
    assert len(found["runs"]) == 6

    assert found["spearman"]["all"]["separation"]["value"] == pytest.approx(-1)
    # Pearson of the ranks 5.5 3.5 1.5 5.5 3.5 1.5 and 6 4 2 5 3 1
    assert found["spearman"]["all"]["epsilon"]["value"] == pytest.approx(16 / 280**0.5)
    # and of 2 2 2 5 5 5 with them
    assert found["spearman"]["all"]["gap"]["value"] == pytest.approx(-4.5 / 236.25**0.5)
    assert found["spearman"]["by_data"]["med"]["separation"]["value"] == pytest.approx(-1)
    assert found["spearman"]["by_data"]["med"]["gap"]["value"] is None

    assert found["line"]["n"] == 6
    x = np.log10([row[2] for row in GRID])
    slope, intercept = np.polyfit(x, [row[3] / 100 for row in GRID], 1)
    assert [found["line"]["slope"], found["line"]["intercept"]] == pytest.approx([slope, intercept])
    held = found["held_out"]
    assert held["by"] == "data"
    groups = held["predictors"]["separation"]["groups"]
    assert [group["name"] for group in groups] == ["med", "scifact"]
    slope, intercept = np.polyfit(x[3:], [0.44, 0.25, 0.04], 1)
    assert first["predicted_unseen"] == pytest.approx(intercept + slope * -2)
    assert groups[0]["line"]["slope"] == pytest.approx(slope)
    assert held["predictors"]["separation"]["r_squared"]["value"] > 0.95


def test_what_is_left_out_can_be_chosen(grid: Path) -> None:
    _, out, _ = cli("law", grid, "--by", "scheme", "--json")
    held = json.loads(out)["held_out"]
    assert held["by"] == "scheme"
    assert [g["name"] for g in held["predictors"]["separation"]["groups"]] == ["W3", "W4", "W8"]

    _, out, _ = cli("law", grid, "--hold-out", "@W8", "--hold-out", "*@W3* on med", "--json")
    found = json.loads(out)
    (group,) = found["held_out"]["predictors"]["separation"]["groups"]
    assert (found["held_out"]["by"], found["held_out"]["patterns"]) == ("pattern", ["@W8", "*@W3* on med"])
    assert group["labels"] == [
        "minilm@W3-g128-rtn on med",
        "minilm@W8-g128-rtn on med",
        "minilm@W8-g128-rtn on scifact",
    ]
    assert found["line"]["n"] == group["line"]["n"] == 3
    assert [run["predicted_unseen"] is None for run in found["runs"]] == [
        False, True, False, True, True, False,
    ]  # fmt: skip
    _, out, _ = cli("law", grid, "--hold-out", "scifact")
    assert "predicted by a line fitted on the other 3 runs" in " ".join(out.split())


def test_choices_that_make_no_sense_are_refused(grid: Path) -> None:
    for arguments, said in (
        (("--hold-out", "W5"), "no run matches 'W5'"),
        (("--hold-out", "minilm"), "matches every run"),
        (("--by", "shceme"), "did you mean scheme?"),
        (("--by", "data", "--hold-out", "W3"), "give one of them"),
        (("--figure", "law.gif"), "ends in .svg, .png, .pdf"),
    ):
        code, out, err = cli("law", grid, *arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err


def test_one_corpus_leaves_nothing_unseen(grid: Path) -> None:
    code, out, _ = cli("law", grid / "med")
    told = " ".join(out.split())
    assert code == 0
    assert "The line was not tried on runs it never saw: all runs are on one corpus, med" in told
    assert "--by scheme or --hold-out PATTERN" in told


def test_two_runs_make_no_law(grid: Path) -> None:
    runs = [grid / "med" / "W3-g128-rtn", grid / "med" / "W4-g128-rtn"]
    for given in (runs, runs[:1]):
        for form in ((), ("--json",), ("--markdown",)):
            code, out, err = cli("law", *given, *form)
            assert (code, out) == (2, "")
            assert f"expected 3 or more, of other schemes, models or corpora; got {len(given)}" in err


def test_an_order_against_the_law_is_said_plainly(tmp_path: Path) -> None:
    for data, sign in (("up", 1), ("down", -1)):
        for position, bits in enumerate((3, 4, 8)):
            save(
                tmp_path / f"{data}{bits}",
                f"minilm@W{bits}",
                data,
                separation=0.01 * 10**position,
                flips=50 + sign * 20 * position,
            )
    _, out, _ = cli("law", tmp_path)
    told = " ".join(out.split())
    assert "The order is NOT as the law says: Spearman" in told
    assert "the line does NOT carry over" in told


def test_runs_off_the_line_are_named(grid: Path, tmp_path: Path) -> None:
    save(grid / "copy", "minilm@W8-g32", "med", separation=np.inf, flips=0)
    save(grid / "tied", "minilm@W2", "med", separation=1, flips=60, gaps=(0.0, 1.0))
    _, out, _ = cli("law", grid)
    told = " ".join(out.split())
    assert "is infinite (an exact copy for most inputs): minilm@W8-g32-rtn on med." in told
    assert "is 0 (most inputs are tied at the top): minilm@W2-g128-rtn on med." in told
    _, out, _ = cli("law", grid, "--json")
    found = json.loads(out)
    (copy,) = (run for run in found["runs"] if run["separation_is_infinite"])
    assert copy["separation"] is None
    assert copy["predicted_unseen"] is None
    assert found["line"]["n"] == 6
    assert found["spearman"]["all"]["separation"]["n"] == 8


def test_labels_are_made_unique_and_copies_refused(grid: Path) -> None:
    extra = save(grid / "large", *GRID[0][:2], separation=0.01, flips=60, n_documents=9000)
    again = save(grid / "seed", *GRID[0][:2], separation=0.01, flips=61, n_documents=9000)
    change(again, settings={"seed": 1})
    _, out, _ = cli("law", grid, grid / "med", "--json")  # the same folders twice count once
    labels = [run["label"] for run in json.loads(out)["runs"]]
    assert len(set(labels)) == len(labels) == 8
    assert "minilm@W3-g128-rtn on med, 300 documents" in labels
    assert f"minilm@W3-g128-rtn on med, 9,000 documents, {extra}" in labels
    assert "minilm@W4-g128-rtn on med" in labels
    shutil.copytree(extra, grid / "zz")
    for command in ("law", "contenders"):
        code, _, err = cli(command, grid)
        assert code == 2
        assert "the same run lies in two folders and would count twice" in err
        assert str(extra) in err
        assert str(grid / "zz") in err


def test_markdown_is_tables_and_findings(grid: Path) -> None:
    _, out, _ = cli("law", grid, "--markdown")
    assert "| median separation ratio | -1.00 |" in out
    assert "| med | 3 | -1.00 | - | +1.00 | - |" in out
    assert "\n- As the law says" in out
    widths = [line.count("|") for line in out.splitlines() if line.startswith("|")]
    assert set(widths) == {5, 6, 7}


def test_a_figure_needs_matplotlib(grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = cli("law", grid, "--figure", tmp_path / "law.svg")
    assert (code, out) == (2, "")
    assert 'pip install "quantdrift[figures]"' in err


def test_a_figure_is_drawn(grid: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'figures' is not installed")
    code, out, _ = cli("law", grid, "--figure", tmp_path / "law.svg", "--hold-out", "scifact")
    assert code == 0
    assert f"figure: {tmp_path / 'law.svg'}" in out
    assert "line through the other 3 runs" in (tmp_path / "law.svg").read_text(encoding="utf-8")


# --- contenders ---------------------------------------------------------------------------------


@pytest.fixture
def two_groups(tmp_path: Path) -> Path:
    """W4: one contender per input on `near`, two on `far`; W8: nothing ever flips."""
    near = save(tmp_path / "a", "minilm@W4", "near", separation=0.5, flips=20)
    save(tmp_path / "b", "minilm@W4", "far", separation=0.5, flips=26, gaps=(1.0, 1.5, 9.0))
    save(tmp_path / "c", "minilm@W8", "near", separation=2, flips=0)
    return near.parent


def test_one_scale_per_scheme_predicts_each_contender_count(two_groups: Path) -> None:
    _, out, _ = cli("contenders", two_groups, "--json")
    found = json.loads(out)
    assert found["group_by"] == "scheme"
    w4, w8 = found["groups"]
    assert (w4["name"], w8["name"]) == ("W4-g128-rtn", "W8-g128-rtn")
    assert [w4["n"], w4["flip_rate"]] == [200, pytest.approx(0.23)]
    gaps = [[1, 9, np.nan]] * N + [[1, 1.5, 9]] * N  # epsilon is 1
    scale = fit_effective_scale(gaps, 0.23).scale
    assert w4["scale"] == pytest.approx(scale)
    rows = {bucket["low"]: bucket for bucket in w4["buckets"]}
    assert [rows[1]["n"], rows[1]["measured"]["value"]] == [100, 0.2]
    assert [rows[2]["n"], rows[2]["measured"]["value"]] == [100, 0.26]
    assert rows[1]["predicted"] == pytest.approx((1 - 1 / (2 * scale)) ** 2 / 2)
    assert rows[1]["predicted"] + rows[2]["predicted"] == pytest.approx(0.46)
    assert rows[3]["measured"] == {"value": None, "reason": "no input has so many"}
    assert rows[3]["within"] is None
    for row in (rows[1], rows[2]):
        inside = row["measured"]["low"] <= row["predicted"] <= row["measured"]["high"]
        assert row["within"] is inside
    assert w8["scale"] is None
    assert "every scale up to" in w8["reason"]


def test_the_table_says_whether_the_model_holds(two_groups: Path) -> None:
    code, out, err = cli("contenders", two_groups)
    told = " ".join(out.split())
    assert code == 0
    assert "one scale per group" in err  # a progress bar: many groups take a while
    assert max(map(len, out.splitlines())) <= WIDTH
    assert "2 │ 200" in told
    assert "23.0 %" in told
    assert "of 2 predictions lie in the 95 % interval of the measured rate" in told
    assert "W8-g128-rtn: no scale, because every scale" in told
    _, out, _ = cli("contenders", two_groups, "--markdown")
    assert "| W4-g128-rtn | 2 | 200 | 23.0 % |" in out
    assert "| W4-g128-rtn | 1 | 100 |" in out


def test_a_model_that_does_not_hold_is_said_plainly(tmp_path: Path) -> None:
    """More flips with one contender than with two, which no scale explains."""
    save(tmp_path / "a", "minilm@W4", "near", separation=0.5, flips=45)
    save(tmp_path / "b", "minilm@W4", "far", separation=0.5, flips=5, gaps=(1.0, 1.01, 9.0))
    _, out, _ = cli("contenders", tmp_path)
    told = " ".join(out.split())
    assert "0 of 2 predictions lie in the 95 % interval" in told
    assert "Of the other 2, 1 are too high and 1 too low. The model does NOT describe" in told
    assert "1 of these rows hold more than half of the flips" in told


def test_groups_can_be_corpora_or_everything(two_groups: Path) -> None:
    _, out, _ = cli("contenders", two_groups, "--group-by", "data", "--json")
    found = json.loads(out)["groups"]
    assert [(group["name"], group["n"]) for group in found] == [("near", 200), ("far", 100)]
    assert [group["inputs_repeated"] for group in found] == [True, False]
    _, out, _ = cli("contenders", two_groups, "--group-by", "none")
    told = " ".join(out.split())
    assert "3 │ 300" in told
    assert "the same inputs count in each" in told
    code, _, err = cli("contenders", two_groups, "--group-by", "bits")
    assert code == 2
    assert "unknown grouping 'bits'" in err


def test_lists_that_end_too_early_are_counted(tmp_path: Path) -> None:
    save(
        tmp_path / "a", "minilm@W4", "near", separation=0.1, flips=55, gaps=(1.0, 1.1),
        n_documents=50,
    )  # fmt: skip
    _, out, _ = cli("contenders", tmp_path)
    told = " ".join(out.split())
    assert "For 100 inputs the stored list ends among items that could still overtake" in told
    assert "100 inputs have more contenders than stored ranks" in told


def test_neither_command_needs_torch(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "transformers", "sentence_transformers", "mteb"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli("law", grid)[0] == 0
    assert cli("contenders", grid)[0] == 0


def test_a_record_without_a_spec_is_refused(grid: Path) -> None:
    change(grid / "med" / "W3-g128-rtn", data={})
    for command in ("law", "contenders"):
        code, _, err = cli(command, grid)
        assert code == 2
        assert "run.json is damaged" in err
        assert "data.name is missing" in err
