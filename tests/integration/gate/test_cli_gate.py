"""`quantdrift gate` as a user types it, on small runs and without a model: verdicts and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.gate_command_line import RULE, Cli, bad, baseline, cli, good, run_of

__all__ = ["bad", "baseline", "cli", "good"]  # fixtures


def test_write_a_baseline_and_pass_against_it(cli: Cli, good: Path, tmp_path: Path) -> None:
    code, out, err = cli("gate", good, "--update")
    assert code == 0
    assert "wrote the baseline drift-baseline.json (300 inputs); commit it" in err
    assert out == ""
    first = (tmp_path / "drift-baseline.json").read_bytes()
    code, out, err = cli("gate", good)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("minilm@W4-g128-rtn on corpus (test), 300 inputs")
    assert out.splitlines()[-1] == "pass: all 3 rules hold"
    code, _, err = cli("gate", good, "--update")
    assert code == 0
    assert "updated the baseline" in err
    assert (tmp_path / "drift-baseline.json").read_bytes() == first


@pytest.mark.usefixtures("baseline")
def test_a_regression_fails(cli: Cli, bad: Path) -> None:
    code, out, err = cli("gate", bad)
    assert (code, err) == (1, "")
    assert "fail" in out.splitlines()[-1]
    words = " ".join(out.split())
    assert (
        "failed: shown to be worse, and by 0.03 or more cannot be ruled out "
        "(30 inputs worse than in the baseline, 0 better)" in words
    )
    assert f"{RULE}, worse on: " in words
    assert " and 20 more. " in words
    assert "Look at the inputs listed and repair" in words
    assert "40 of 300 inputs have another first answer than the reference; 30 of them had not" in words
    assert "the baseline is of minilm@W4-g128-rtn" in words
    assert "doc0" in out
    assert "10 of 40 changed inputs, the worst first" in words


@pytest.mark.usefixtures("baseline")
def test_an_improvement_passes(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("gate", run_of(tmp_path / "better", []))
    assert code == 0
    assert "None of 300 inputs has another first answer" in out


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"fingerprint": "other"}}, "data: corpus (test) (digest texts in the baseline,"),
        ({"model": {"fingerprint": "x"}}, "reference model: minilm (digest reference in the"),
        ({"settings": {"similarity": "dot"}}, "setting similarity: cosine in the baseline, dot"),
        ({"settings": {"prompts": "query: "}}, "setting prompts: nothing in the baseline, query:"),
    ],
)
def test_what_does_not_belong_together_is_incomparable(
    cli: Cli, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    code, out, _ = cli("gate", run_of(tmp_path / "other", range(10), **changes))
    assert code == 3
    assert told in " ".join(out.split())
    assert out.splitlines()[-1].startswith("incomparable: the run and the baseline differ in")


@pytest.mark.usefixtures("baseline")
def test_other_software_is_only_told(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("gate", run_of(tmp_path / "other", range(10), settings={"torch": "2.7"}))
    assert code == 0
    assert "torch differs: 2.6 in the baseline, 2.7 now" in " ".join(out.split())


def test_too_few_inputs(cli: Cli, tmp_path: Path) -> None:
    few = run_of(tmp_path / "few", range(3), n=40)
    assert cli("gate", few, "--update")[0] == 0
    other = run_of(tmp_path / "other", range(1, 5), n=40)
    code, out, _ = cli("gate", other)
    assert code == 4
    assert "too few inputs to tell: 40, and it takes about" in " ".join(out.split())
    code, out, _ = cli("gate", other, "--accept-underpowered")
    assert code == 0
    assert "underpowered, which is accepted" in out


def test_a_missing_baseline_says_how_it_is_written(cli: Cli, good: Path) -> None:
    code, out, err = cli("gate", good)
    assert (code, out) == (2, "")
    assert "drift-baseline.json does not exist. Write it with the same command and --update" in err
    code, _, err = cli("gate", good, "--rule", RULE)
    assert code == 2
    assert f"the rule '{RULE}' needs a baseline, and drift-baseline.json does not exist" in err
    code, _, err = cli("gate", good, "--rule", "flip@1 <= 0.5", "--baseline", "none.json")
    assert code == 2
    assert "none.json does not exist" in err


def test_an_update_tells_what_it_writes(cli: Cli, tmp_path: Path) -> None:
    few = run_of(tmp_path / "few", range(3), n=40, data={"warnings": ["2 texts are empty."]})
    code, out, err = cli("gate", few, "--update", "-r", RULE, "-r", "flip@1 no worse by 0.2")
    assert (code, out) == (0, "")
    told = " ".join(err.split())
    assert "it holds flip@1 7.5 %" in told
    assert "2 texts are empty" in told
    assert f"'{RULE}' rests on 40 inputs" in told
    assert "it takes 99 to show it" in told
    assert "by 0.2'" not in told  # 40 inputs are enough for that


@pytest.mark.usefixtures("baseline")
def test_limits_alone_leave_the_baseline_alone(cli: Cli, tmp_path: Path) -> None:
    other = run_of(tmp_path / "other", range(10), data={"fingerprint": "other"})
    code, out, _ = cli("gate", other, "-r", "flip@1 <= 0.5", "--json")
    read = json.loads(out)
    assert (code, read["baseline"], read["differs"], read["n_new"]) == (0, None, [], None)


def test_limits_need_no_baseline(cli: Cli, good: Path) -> None:
    assert cli("gate", good, "-r", "flip@1 <= 5 %")[0] == 0
    code, out, _ = cli("gate", good, "-r", "flip@1 <= 3 %", "-r", "gold_lost@10 <= 0")
    assert code == 1
    assert out.splitlines()[-1].startswith("fail: 1 of 2 rules failed, flip@1 <= 0.03")
    code, out, _ = cli("gate", good, "-r", "noise_floor <= 5 %")
    assert code == 2
    assert "noise floor was not measured" in out
    assert "expected a rule such as" in cli("gate", good, "-r", "ndcg@10 within 0.02")[2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rule", "flip@1"), "expected a rule such as"),
        (("--rule", "flop@1 <= 0.1"), "did you mean flip@1"),
        (("--rule", "flip@1 <= 25"), "25 % is 0.25"),
        (("--rule", "flip@1 [german] <= 0.1"), "unknown slice 'german'"),
        (("--rule", "flip@1 <= 0.1", "--slice", "german"), "expected a slice as NAME=PATTERN"),
        (("--rule", "flip@1 <= 0.1", "--alpha", "5"), "alpha is a probability"),
        (("--rule", "flip@1 <= 0.1", "--report", "r.txt"), "the name of a report tells its format"),
        (("--rule", "flip@1 <= 0.1", "--data", "x"), "--data does not apply to a finished run"),
        (("--rule", "flip@1 <= 0.1", "--qrels", "x"), "--qrels does not apply to a finished run"),
        (("--json", "--markdown"), "--json"),
        (("--config", "none.toml"), "none.toml cannot be read as TOML"),
    ],
)
def test_what_is_asked_for_wrongly(cli: Cli, good: Path, arguments: tuple[str, ...], told: str) -> None:
    code, out, err = cli("gate", good, *arguments)
    assert (code, out) == (2, "")
    assert told in " ".join(err.split())


def test_nothing_and_something_unknown_to_judge(cli: Cli, tmp_path: Path) -> None:
    assert cli("gate")[0] == 2
    code, _, err = cli("gate", "-r", "flip@1 <= 0.1")
    assert code == 2
    assert "expected what to judge" in err
    code, _, err = cli("gate", "quantdrift-runs/none", "-r", "flip@1 <= 0.1")
    assert code == 2
    assert "is neither a run folder that exists nor a spec" in err
    (tmp_path / "empty").mkdir()
    code, _, err = cli("gate", "empty", "-r", "flip@1 <= 0.1")
    assert code == 2
    assert "has no run.json" in err


def test_one_run_below_a_folder_is_found_and_two_are_not_guessed(cli: Cli, tmp_path: Path) -> None:
    run_of(tmp_path / "runs" / "one", range(3))
    assert cli("gate", "runs", "-r", "flip@1 <= 0.1")[0] == 0
    run_of(tmp_path / "runs" / "two", range(3))
    code, _, err = cli("gate", "runs", "-r", "flip@1 <= 0.1")
    assert code == 2
    assert "expected one run; runs holds 2" in err


def test_damage_is_an_error_and_never_a_verdict(cli: Cli, good: Path, baseline: Path) -> None:
    text = baseline.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for damaged in (
        text[: len(text) // 2],
        "".join([*lines[:-3], "<<<<<<< HEAD\n", *lines[-3:]]),
        text.replace('"flip@1"', '"flop@1"'),
        text.replace(", 1, 1, 0, 0,", ", 7, 1, 0, 0,", 1),
        "[]",
    ):
        assert damaged != text
        baseline.write_text(damaged, encoding="utf-8")
        code, out, err = cli("gate", good)
        assert (code, out) == (2, "")
        assert "drift-baseline.json" in err
        assert "Traceback" not in err


def test_another_file_is_not_replaced(cli: Cli, good: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    code, _, err = cli("gate", good, "--baseline", "notes.json", "--update")
    assert code == 2
    assert "holds something that is not a baseline" in err
    assert (tmp_path / "notes.json").read_text(encoding="utf-8") == "{}"


@pytest.mark.usefixtures("baseline")
def test_an_update_shows_first_what_it_accepts(cli: Cli, bad: Path) -> None:
    code, out, err = cli("gate", bad, "--update")
    assert code == 0
    assert out.splitlines()[-1].startswith("fail: ")
    assert "updated the baseline" in err
    assert cli("gate", bad)[0] == 0


CONFIG = """
[tool.quantdrift.gate]
target = "good"
baseline = "ci/b.json"
rules = ["flip@1 no worse by 0.03", "flip@1 [german] <= 0.1", "ndcg@10 no worse by 0.03"]
alpha = 0.04

[tool.quantdrift.gate.slices]
german = "de-*"
"""


def test_everything_from_pyproject(
    cli: Cli, good: Path, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(CONFIG, encoding="utf-8")
    assert cli("gate", "--update")[0] == 0
    assert (tmp_path / "ci" / "b.json").is_file()
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    code, out, _ = cli("gate", "--json")
    read = json.loads(out)
    assert code == 0
    assert [rule["rule"] for rule in read["rules"]] == [
        "flip@1 no worse by 0.03",
        "flip@1 [german] <= 0.1",
        "ndcg@10 no worse by 0.03",
    ]
    assert (read["alpha"], read["n_inputs"], read["rules"][1]["n"]) == (0.04, 300, 100)
    # what is typed goes before it
    code, out, _ = cli("gate", bad, "--rule", "flip@1 <= 0.5", "--alpha", "0.01", "--json")
    assert code == 0
    assert json.loads(out)["alpha"] == 0.01
    assert cli("gate", bad)[0] == 1
    assert cli("gate", good)[0] == 0
    code, out, _ = cli("gate", "-r", "flip@1 [few] <= 0.5", "--slice", "few=de-3,en-1")
    assert code == 1
    assert " 2 " in out


def test_the_baseline_is_beside_the_pyproject_that_was_found(
    cli: Cli, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.quantdrift.gate]\ntarget = "good"\n', "utf-8")
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert cli("gate", "--update")[0] == 0
    assert (tmp_path / "drift-baseline.json").is_file()
    assert not list(below.iterdir())
    assert cli("gate", good)[0] == 0
    monkeypatch.chdir(tmp_path)
    assert cli("gate")[0] == 0


def test_a_broken_pyproject_is_an_error(cli: Cli, good: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.quantdrift.gate", encoding="utf-8")
    code, _, err = cli("gate", good, "--update")
    assert code == 2
    assert "pyproject.toml cannot be read as TOML" in err
    (tmp_path / "pyproject.toml").write_text("[tool.quantdrift.gate]\nrule = 1", encoding="utf-8")
    code, _, err = cli("gate", good, "--update")
    assert code == 2
    assert "there is no setting 'rule'; did you mean rules?" in err
    assert not (tmp_path / "drift-baseline.json").exists()
