"""`quantdrift study` on a tiny model: what is measured once, kept, gone on with, refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.runs.folder import read_run
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

FOLDER = Path("quantdrift-runs/study")


def write(place: Path, **changes: Any) -> None:
    """A study of three schemes on two corpora, in YAML, of which JSON is a part."""
    study = {
        "models": [{"model": str(place / "tiny"), "name": "tiny"}],
        "schemes": ["W8", "W3", "W2"],
        "data": [str(place / "a"), str(place / "b")],
        "settings": {"k": 20},
    }
    Path("study.yaml").write_text(json.dumps({**study, **changes}))


def states(quantdrift: Run) -> dict[str, str]:
    result = json.loads(quantdrift("study", "status", "study.yaml", "--json", quiet=False))
    return {cell["name"]: cell["state"] for cell in result["cells"]}


def stamps() -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in FOLDER.glob("cells/*/run.json")}


def test_cells_are_the_runs_of_the_plain_command_and_results_say_what_they_say(place: Path, quantdrift: Run) -> None:
    write(place)
    plan = json.loads(quantdrift("study", "run", "study.yaml", "--plan", "--json"))
    assert (plan["cells"], plan["to_do"]) == (6, 6)
    assert [(work["data"], work["cells"]) for work in plan["work"]] == [("a", 3), ("b", 3)]
    quantdrift("study", "run", "study.yaml")
    assert set(states(quantdrift).values()) == {"done"}
    quantdrift("run", "TINY@W3", "--data", "ROOT/a", "--out", "plain", "-k", "20")
    plain, cell = read_run("plain"), read_run(FOLDER / "cells" / "tiny@W3-g128-rtn_on_a")
    assert cell.record["metrics"] == plain.record["metrics"]
    assert cell.record["files"] == plain.record["files"]  # bit for bit

    Path(FOLDER).rename("elsewhere")
    moved = quantdrift("study", "results", "study.yaml", "--out", "elsewhere", "--json", quiet=False)
    assert json.loads(moved)["cells"]
    Path("elsewhere").rename(FOLDER)
    line = ("study", "results", "study.yaml", "--pooled", "flip@1", "--table", "t.parquet", "--json")
    result = json.loads(quantdrift(*line, quiet=False))
    rows = {(row["scheme"], row["data"]): row for row in result["cells"]}
    assert rows["W3-g128-rtn", "a"]["flip@1"] == pytest.approx(plain["flip@1"].value)
    assert pq.read_table("t.parquet").column("flip@1").to_pylist() == [row["flip@1"] for row in result["cells"]]
    assert {test["scheme"] for test in result["pooled"]} == {"W3-g128-rtn", "W2-g128-rtn"}


def test_what_is_done_stays_and_what_is_damaged_or_other_is_made_again(place: Path, quantdrift: Run) -> None:
    write(place, schemes=["W8", "W3"])
    quantdrift("study", "run", "study.yaml")
    before = stamps()
    quantdrift("study", "run", "study.yaml")
    assert stamps() == before
    evidence = FOLDER / "cells" / "tiny@W3-g128-rtn_on_b" / "evidence.parquet"
    content = bytearray(evidence.read_bytes())
    content[100] ^= 1
    evidence.write_bytes(content)
    assert states(quantdrift)["tiny@W3-g128-rtn_on_b"] == "damaged"
    quantdrift("study", "run", "study.yaml")
    assert {name for name, stamp in stamps().items() if stamp != before[name]} == {"tiny@W3-g128-rtn_on_b"}
    write(place, schemes=["W8", "W3", "W2"], settings={"k": 10})  # other settings are other cells
    plan = json.loads(quantdrift("study", "run", "study.yaml", "--plan", "--json"))
    assert (plan["cells"], plan["to_do"]) == (6, 6)


def test_a_cell_that_fails_is_named_and_the_others_go_on(place: Path, quantdrift: Run) -> None:
    write(place, data=[str(place / "a"), {"folder": "./none", "name": "gone"}], schemes=["W8"])
    assert "cannot be measured: tiny@W8-g128-rtn_on_gone: " in quantdrift("study", "run", "study.yaml", "--plan")
    shown = quantdrift("study", "run", "study.yaml", code=1)
    assert "gone" in shown
    assert states(quantdrift) == {"tiny@W8-g128-rtn_on_a": "done", "tiny@W8-g128-rtn_on_gone": "failed"}
    quantdrift("study", "run", "study.yaml", code=1)  # what failed is not tried again by itself
    write(place, data=[str(place / "a"), {"folder": str(place / "b"), "name": "gone"}], schemes=["W8"])
    quantdrift("study", "retry", "study.yaml")
    assert set(states(quantdrift).values()) == {"done"}


def test_a_folder_of_something_else_is_refused(place: Path, quantdrift: Run) -> None:
    write(place)
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    shown = quantdrift("study", "run", "study.yaml", "--out", "mine", code=2)
    assert "something that is not a study" in shown
    assert "expected the folder of a study" in quantdrift("study", "status", "mine", code=2, quiet=False)
