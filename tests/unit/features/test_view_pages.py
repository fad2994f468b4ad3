"""What a server of finished runs shows: two candidates beside each other, and the history of a gate's baseline."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from integration.report.page_samples import search_run
from quantdrift.base.errors import RunError
from quantdrift.evidence.perturbation import flips
from quantdrift.features.view.found import find
from quantdrift.features.view.history import commits_of, history
from quantdrift.features.view.pair import pair_page
from quantdrift.runs.folder import Run
from support.command_line import cli


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    root = tmp_path_factory.mktemp("pair")
    a, b = (
        search_run(root / name, noise=noise, spec=f"minilm@{name}-g128-rtn")
        for name, noise in (("W4", 0.3), ("W3", 0.6))
    )
    return a, b


def test_every_input_that_either_changes_stands_there_with_three_answers(runs: tuple[Run, Run]) -> None:
    first, second = (run.evidence() for run in runs)
    names = [str(name) for name in first.input_ids]
    changed = [dict(zip(names, flips(evidence), strict=True)) for evidence in (first, second)]
    tops = [
        [str(evidence.item_ids[item]) for item in top.items[:, 0]]
        for evidence, top in (
            (first, first.reference_top),
            (first, first.candidate_top),
            (second, second.candidate_top),
        )
    ]
    answers = {name: tuple(top[row] for top in tops) for row, name in enumerate(names)}
    content = pair_page(*runs).sections[0].changed
    assert content is not None
    assert {entry["id"] for entry in content["changed"]} == {
        name for name in names if any(its[name] for its in changed)
    }
    for entry in content["changed"]:
        name = entry["id"]
        shown = tuple(content["items"][entry[arm]][0] for arm in ("before", "after", "other_after"))
        assert shown == answers[name]
        for arm, top in zip(("reference", "candidate", "other"), tops, strict=True):
            assert content["items"][entry[arm][0][0]][0] == top[names.index(name)]
        both = changed[0][name] and changed[1][name]
        kind = (
            ("both change it alike" if answers[name][1] == answers[name][2] else "both change it, each otherwise")
            if both
            else f"only {'W4' if changed[0][name] else 'W3'}-g128-rtn changes it"
        )
        assert entry["kind"] == kind
    assert sum(content["kinds"].values()) == len(content["changed"])
    assert content["arms"] == ["full precision", "W4-g128-rtn", "W3-g128-rtn"]
    assert content["changed"][0]["text"].startswith("query number")


def test_what_harms_in_either_comes_first(runs: tuple[Run, Run]) -> None:
    content = pair_page(*runs).sections[0].changed
    assert content is not None
    harmful = ["harmful" in entry["kinds"] for entry in content["changed"]]
    assert any(harmful)
    assert harmful == sorted(harmful, reverse=True)


def test_runs_on_other_data_are_refused(runs: tuple[Run, Run], tmp_path: Path) -> None:
    other = search_run(tmp_path, {f"q{row}": f"another {row}" for row in range(120)})
    with pytest.raises(RunError, match="differ in"):
        pair_page(runs[0], other)


def test_a_folder_that_is_being_written_is_not_listed(runs: tuple[Run, Run], tmp_path: Path) -> None:
    runs[0].save(tmp_path / "done")
    runs[0].save(tmp_path / ".partial-run")
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "run.json").write_text("{}")  # of another tool
    (tmp_path / "gate.json").write_text(json.dumps({"verdict": "pass"}))
    found = find(tmp_path, [tmp_path / "gate.json"])
    assert (list(found.runs), found.problems, found.gates) == (["done"], {}, {})


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_baseline_is_read_as_every_commit_left_it(runs: tuple[Run, Run], tmp_path: Path) -> None:
    baseline = tmp_path / "drift-baseline.json"
    assert list(commits_of(baseline)) == []
    git(tmp_path, "init", "-q")
    for number, run in enumerate(runs):
        assert cli("gate", run.path, "--update", "--baseline", baseline)[0] == 0
        git(tmp_path, "add", "."), git(tmp_path, "commit", "-qm", f"baseline {number}")
    baseline.write_text("{}")
    git(tmp_path, "commit", "-qam", "damaged")
    commits = list(commits_of(baseline))
    assert [commit["subject"] for commit in commits] == ["baseline 0", "baseline 1"]
    assert [commit["rate"].value for commit in commits] == [run["flip@1"].value for run in runs]
    assert np.allclose([commit["rate"].low for commit in commits], [run["flip@1"].low for run in runs])
    (section,) = history(baseline)
    assert [row[2] for row in section.grids[0].rows] == ["baseline 1", "baseline 0"]


def test_the_command_refuses_what_is_no_folder(tmp_path: Path) -> None:
    code, _, err = cli("view", tmp_path / "nothing")
    assert code == 2
    assert "expected a folder with runs" in err
