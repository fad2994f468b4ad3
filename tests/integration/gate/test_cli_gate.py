"""`quantdrift gate` as a user types it, on small runs and without a model: verdicts and errors."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from quantdrift.cli import Interrupted
from support.finished_samples import question, write_samples, write_trec
from support.gate_command_line import RULE, Cli, bad, baseline, cli, good, run_of

__all__ = ["bad", "baseline", "cli", "good"]  # fixtures


def test_write_a_baseline_and_pass_against_it(cli: Cli, good: Path, tmp_path: Path) -> None:
    code, out, err = cli("gate", good, "--update")
    assert (code, out) == (0, "")
    assert "wrote the baseline drift-baseline.json (300 inputs); commit it" in err
    assert "--plan" not in err  # which takes a spec
    first = (tmp_path / "drift-baseline.json").read_bytes()
    code, out, err = cli("gate", good)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("minilm@W4-g128-rtn on corpus (test), 300 inputs")
    assert out.splitlines()[-1].startswith("pass: 3 of 3 rules, flip@1 no worse by 0.03, ")
    code, _, err = cli("gate", good, "--update")
    assert code == 0
    assert "updated the baseline" in err
    assert (tmp_path / "drift-baseline.json").read_bytes() == first


@pytest.mark.usefixtures("baseline")
def test_a_regression_fails_until_it_is_accepted(cli: Cli, bad: Path) -> None:
    code, out, err = cli("gate", bad)
    assert (code, err) == (1, "")
    words = " ".join(out.split())  # the sentences are golden ones
    assert all(said in words for said in ("30 inputs worse", "40 of 300", "The worst 3 of 40"))
    named = [word.strip(",.:") for word in words.split()]
    (rule, *_), worst = (json.loads(cli("gate", bad, "--json")[1])[name] for name in ("rules", "worst"))
    assert [named.count(one["input_id"]) for one in worst] == [1] * 3 + [0] * 7
    assert sum(map(named.count, {*rule["inputs"]} - {one["input_id"] for one in worst})) == 0
    assert "The worst 12 of 40" in " ".join(cli("gate", bad, "--worst", 12)[1].split())
    code, out, err = cli("gate", bad, "--update")
    assert code == 0
    assert out.splitlines()[-1].startswith("fail: ")  # what is accepted
    code, out, _ = cli("gate", bad)
    assert (code, "changed inputs" in out) == (0, False)


def test_too_few_inputs(cli: Cli, tmp_path: Path) -> None:
    few = run_of(tmp_path / "few", range(3), n=40)
    assert cli("gate", few, "--update")[0] == 0
    other = run_of(tmp_path / "other", range(1, 5), n=40)
    code, out, _ = cli("gate", other)
    assert code == 4
    assert "too few inputs to tell: there are 40" in " ".join(out.split())
    code, out, _ = cli("gate", other, "--accept-underpowered")
    assert code == 0
    assert "underpowered, which is accepted" in out


def test_limits_need_no_baseline(cli: Cli, good: Path) -> None:
    assert cli("gate", good, "-r", "flip@1 <= 5 %")[0] == 0
    code, out, _ = cli("gate", good, "-r", "flip@1 <= 3 %", "-r", "gold_lost@10 <= 0")
    assert code == 1
    assert out.splitlines()[-1].startswith("fail: 1 of 2 rules, flip@1 <= 0.03")
    code, out, _ = cli("gate", good, "-r", "noise_floor <= 5 %")
    assert code == 2
    assert "noise floor was not measured" in out
    assert "expected a rule such as" in cli("gate", good, "-r", "ndcg@10 within 0.02")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rule", "flip@1 [german] <= 0.1"), "names an unknown slice"),
        (("--rule", "flip@1 <= 0.1", "--data", "x"), "--data does not apply to a finished run"),
        (("--json", "--markdown"), "--json"),
        (("--report", "gate.html"), ".md (Markdown), .xml (JUnit) or .json; got 'gate.html'"),
        (("--config", "none.toml"), "none.toml cannot be read as TOML"),
        ((), "drift-baseline.json does not exist. Write it with the same command and --update"),
    ],
)
def test_what_is_asked_for_wrongly(cli: Cli, good: Path, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = cli("gate", good, *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


CONFIG = """
[tool.quantdrift.gate]
target = "good"
baseline = "ci/b.json"
rules = ["flip@1 no worse by 0.03", "flip@1 [german] <= 0.1", "ndcg@10 no worse by 0.03"]
alpha = 0.04

[tool.quantdrift.gate.slices]
german = "de-*"
"""


def test_all_from_pyproject(cli: Cli, good: Path, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(CONFIG, encoding="utf-8")
    assert cli("gate", "--update")[0] == 0
    assert (tmp_path / "ci" / "b.json").is_file()
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    code, out, _ = cli("gate", "--json")
    read = json.loads(out)
    assert code == 0
    assert (read["alpha"], read["n_inputs"], read["rules"][1]["n"]) == (0.04, 300, 100)
    # what is typed goes before it
    code, out, _ = cli("gate", bad, "--rule", "flip@1 <= 0.5", "--alpha", "0.01", "--json")
    assert (code, json.loads(out)["alpha"]) == (0, 0.01)
    assert cli("gate", bad)[0] == 1
    assert cli("gate", "-r", "flip@1 [few] <= 0.5", "--slice", "few=de-3,en-1")[0] == 1


@pytest.mark.usefixtures("baseline")
def test_json_markdown_and_reports(cli: Cli, bad: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("r.md", "r.xml", "r.json")]
    reports = [argument for place in places for argument in ("--report", place)]
    code, out, _ = cli("gate", bad, "--json", "--worst", "2", *reports)
    read = json.loads(out)
    assert code == read["exit_code"] == 1
    assert (read["verdict"], read["n_changed"], read["n_new"]) == ("fail", 40, 30)
    assert [row["new"] for row in read["worst"]] == [True, True]
    rule = read["rules"][0]
    assert (rule["rule"], rule["worse"], rule["better"], rule["outcome"]) == (RULE, 30, 0, "fail")
    assert rule["p_worse"] == pytest.approx(2**-30)
    assert json.loads(places[2].read_text(encoding="utf-8")) == read
    suite = ET.fromstring(places[1].read_text(encoding="utf-8"))
    assert (len(suite.findall(".//testcase")), len(suite.findall(".//failure"))) == (3, 2)
    code, out, _ = cli("gate", bad, "--markdown", "--worst", "2")
    assert (code, out) == (1, places[0].read_text(encoding="utf-8"))
    assert out.startswith("## quantdrift gate: fail")


def test_two_trec_files(cli: Cli, tmp_path: Path) -> None:
    scores = [1 - rank / 20 for rank in range(12)]
    lists = [
        {f"q{q}": {f"doc{n ^ (n < 2 and q < flips)}": score for n, score in enumerate(scores)} for q in range(120)}
        for flips in (0, 3, 20)
    ]
    full, old, new = (write_trec(tmp_path / f"{n}.trec", held) for n, held in enumerate(lists))
    labels = tmp_path / "qrels.tsv"
    rows = "".join(f"q{n}\tdoc0\t1\n" for n in range(120))
    labels.write_text(f"query-id\tcorpus-id\tscore\n{rows}", encoding="utf-8")
    assert cli("gate", full, old, "--qrels", labels, "--update")[0] == 0
    assert "doc" not in (tmp_path / "drift-baseline.json").read_text(encoding="utf-8")
    assert cli("gate", full, old, "--qrels", labels)[0] == 0
    code, out, _ = cli("gate", full, new, "--qrels", labels)
    assert code == 1
    # without labels it is other data, and with another reference too
    assert cli("gate", full, old)[0] == 3
    code, out, _ = cli("gate", new, old, "--qrels", labels)
    assert code == 3
    assert "its model, prompt" in " ".join(out.split())
    assert "--data does not apply to two finished runs" in cli("gate", full, new, "--data", "x")[2]
    # what diff writes of them is judged by the same baseline
    assert cli("gate", full, old, "--update")[0] == 0
    assert cli("diff", full, old, "--out", tmp_path / "written")[0] == 0
    assert cli("gate", tmp_path / "written")[0] == 0


def test_samples_of_lm_eval(cli: Cli, tmp_path: Path) -> None:
    """The ids of its documents are numbers, so other prompts are only told by their hashes."""
    folders = []
    for name, wrong in (("full", 0), ("old", 1), ("new", 9)):
        for task in ("arc", "piqa"):
            samples = [question(n, (-2.0, -1.0) if n < wrong else (-1.0, -2.0)) for n in range(60)]
            write_samples(tmp_path / name, task, samples)
        folders.append(tmp_path / name)
    full, old, new = folders
    assert cli("gate", full, old, "--update")[0] == 0
    code, out, _ = cli("gate", full, new, "--json")
    read = json.loads(out)
    assert code == 1
    assert [rule["rule"] for rule in read["rules"]] == ["flip@1 no worse by 0.03", "accuracy no worse by 0.03"]
    assert [rule["worse"] for rule in read["rules"]] == [16, 16]
    assert {row["part"] for row in read["worst"]} == {"arc", "piqa"}
    assert cli("gate", full, new, "--part", "arc")[0] == 3
    for path in (path for folder in (full, old) for path in folder.glob("samples_*.jsonl")):
        path.write_text(path.read_text("utf-8").replace('"prompt_hash": "', '"prompt_hash": "five'), "utf-8")
    code, out, _ = cli("gate", full, old)
    assert code == 3
    assert "differ in data" in out.splitlines()[-1]


@pytest.mark.usefixtures("baseline")
def test_a_crash_is_no_failure(cli: Cli, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.cli.gate.gate", lambda *_, **__: 1 / 0)
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    with pytest.raises(ZeroDivisionError):  # which test_cli_endings.py has in one line
        cli("gate", good)
    assert (tmp_path / "outputs").read_text() == "verdict=error\nexit-code=2\n"


def test_ctrl_c_while_measuring_is_no_verdict(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("no run was written")

    monkeypatch.setattr("quantdrift.cli.gate.measured", stopped)
    code, out, err = cli("gate", "minilm@W4", "--data", "faq", "-r", "flip@1 <= 0.1")
    assert (code, out) == (130, "")
    assert err == "quantdrift: interrupted; no run was written\n"
