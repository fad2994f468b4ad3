"""`quantdrift gate` as a user types it, on small runs and without a model."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.cli import main
from quantdrift.measurement.assembly import assemble
from quantdrift.runs import write_run
from quantdrift.scoring import score_matrix

Cli = Callable[..., tuple[int, str, str]]
N = 300
RULE = "flip@1 no worse by 0.03"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run a command line in an empty folder; gives exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quantdrift", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


def run_of(
    path: Path, flips: Iterable[int], *, n: int = N, labels: bool = True, **changes: Any
) -> Path:
    """The first of twelve items gives way to the second on some inputs; it is the relevant one."""
    reference = np.tile(np.linspace(1, 0, 12), (n, 1))
    candidate = reference.copy()
    candidate[list(flips), :2] = reference[0, 1::-1]
    names = [f"{'de' if row % 3 == 0 else 'en'}-{row}" for row in range(n)]
    evidence = assemble(
        score_matrix(reference, candidate, k=12),
        input_ids=names,
        item_ids=[f"doc{item}" for item in range(12)],
        qrels={name: {"doc0": 1} for name in names} if labels else None,
    )
    record: dict[str, Any] = {
        "spec": "minilm@W4-g128-rtn",
        "model": {"name": "minilm", "fingerprint": "reference", "candidate_fingerprint": str(path)},
        "data": {"name": "corpus", "split": "test", "fingerprint": "texts"},
        "settings": {"k": 12, "similarity": "cosine", "torch": "2.6"},
    }
    for part, change in changes.items():
        record[part] = {**record[part], **change} if isinstance(change, dict) else change
    return write_run(path, evidence=evidence, record=record).path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return run_of(tmp_path / "good", range(10))


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Flips thirty inputs more."""
    return run_of(tmp_path / "bad", range(40), spec="minilm@W3-g128-rtn")


@pytest.fixture
def baseline(cli: Cli, good: Path, tmp_path: Path) -> Path:
    code, _, err = cli("gate", good, "--update")
    assert code == 0, err
    return tmp_path / "drift-baseline.json"


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
    assert "failed: shown to be worse (30 inputs worse than in the baseline, 0 better)" in words
    assert (
        "40 of 300 inputs have another first answer than the reference; 30 of them had not" in words
    )
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
    assert f"the rule '{RULE}' needs one" in err
    code, _, err = cli("gate", good, "--rule", "flip@1 <= 0.5", "--baseline", "none.json")
    assert code == 2
    assert "none.json does not exist" in err


def test_limits_need_no_baseline(cli: Cli, good: Path) -> None:
    assert cli("gate", good, "-r", "flip@1 <= 5 %")[0] == 0
    code, out, _ = cli("gate", good, "-r", "flip@1 <= 3 %", "-r", "gold_lost@10 <= 0")
    assert code == 1
    assert out.splitlines()[-1].startswith("fail: 1 of 2 rules failed, flip@1 <= 0.03")
    code, out, _ = cli("gate", good, "-r", "flip@1 beyond noise <= 5 %")
    assert code == 2
    assert "no noise floor" in out


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
def test_what_is_asked_for_wrongly(
    cli: Cli, good: Path, arguments: tuple[str, ...], told: str
) -> None:
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
rules = ["flip@1 no worse by 0.03", "flip@1 [german] <= 0.1", "ndcg@10 within 0.03"]
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
        "ndcg@10 within 0.03",
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


@pytest.mark.usefixtures("baseline")
def test_json_markdown_and_reports(cli: Cli, bad: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("r.md", "r.xml", "r.json")]
    reports = [argument for place in places for argument in ("--report", place)]
    code, out, _ = cli("gate", bad, "--json", "--worst", "2", *reports)
    read = json.loads(out)
    assert code == read["exit_code"] == 1
    assert (read["verdict"], read["n_changed"], read["n_new"]) == ("fail", 40, 30)
    assert [each["new"] for each in read["worst"]] == [True, True]
    rule = read["rules"][0]
    assert (rule["rule"], rule["worse"], rule["better"], rule["outcome"]) == (RULE, 30, 0, "fail")
    assert rule["p_worse"] == pytest.approx(2**-30)
    assert json.loads(places[2].read_text(encoding="utf-8")) == read
    suite = ET.fromstring(places[1].read_text(encoding="utf-8"))
    assert len(suite.findall(".//testcase")) == 3
    assert len(suite.findall(".//failure")) == 2
    code, out, _ = cli("gate", bad, "--markdown", "--worst", "2")
    assert code == 1
    assert out == places[0].read_text(encoding="utf-8")
    assert out.startswith("## quantdrift gate: fail")


@pytest.mark.usefixtures("baseline")
def test_what_ci_offers_is_used(
    cli: Cli, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert cli("gate", bad)[0] == 1
    assert "quantdrift gate: fail" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text("utf-8")
    assert (tmp_path / "GITHUB_OUTPUT").read_text("utf-8") == "verdict=fail\nexit-code=1\n"
    (tmp_path / "drift-baseline.json").unlink()
    assert cli("gate", bad)[0] == 2
    assert (tmp_path / "GITHUB_OUTPUT").read_text("utf-8").endswith("verdict=error\nexit-code=2\n")


def write_trec(path: Path, flips: int, *, n: int = 120, depth: int = 12) -> Path:
    lines = []
    for query in range(n):
        items = list(range(depth))
        if query < flips:
            items[:2] = [1, 0]
        lines += [
            f"q{query} Q0 doc{item} {rank} {1 - rank / 20:.3f} tag\n"
            for rank, item in enumerate(items, start=1)
        ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_two_trec_files(cli: Cli, tmp_path: Path) -> None:
    full = write_trec(tmp_path / "full.trec", 0)
    old = write_trec(tmp_path / "old.trec", 3)
    new = write_trec(tmp_path / "new.trec", 20)
    labels = tmp_path / "qrels.tsv"
    labels.write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\tdoc0\t1\n" for n in range(120)),
        encoding="utf-8",
    )
    code, _, err = cli("gate", full, old, "--qrels", labels, "--update")
    assert code == 0, err
    text = (tmp_path / "drift-baseline.json").read_text(encoding="utf-8")
    assert "doc" not in text
    code, out, _ = cli("gate", full, old, "--qrels", labels)
    assert code == 0, out
    code, out, _ = cli("gate", full, new, "--qrels", labels)
    assert code == 1
    assert "17 inputs worse than in the baseline, 0 better" in " ".join(out.split())
    # without labels it is other data, and with another reference too
    assert cli("gate", full, old)[0] == 3
    code, out, _ = cli("gate", new, old, "--qrels", labels)
    assert code == 3
    assert "which is another model" in " ".join(out.split())
    code, _, err = cli("gate", full, new, "--data", "x")
    assert code == 2
    assert "take no --data or --task; labels go to --qrels" in err


def test_a_written_comparison_is_judged_by_the_same_baseline(cli: Cli, tmp_path: Path) -> None:
    full = write_trec(tmp_path / "full.trec", 0)
    old = write_trec(tmp_path / "old.trec", 3)
    assert cli("gate", full, old, "--update")[0] == 0
    assert cli("diff", full, old, "--out", tmp_path / "written")[0] == 0
    code, out, _ = cli("gate", tmp_path / "written")
    assert code == 0, out


def test_lists_that_are_cut_short_have_rules_of_their_own(cli: Cli, tmp_path: Path) -> None:
    """nDCG@10 of five ranks is unknown; it is neither asked for nor an error."""
    full, old = (write_trec(tmp_path / f"{n}.trec", n, depth=5) for n in (0, 3))
    labels = tmp_path / "qrels.tsv"
    labels.write_text("query-id\tcorpus-id\tscore\nq0\tdoc0\t1\n", encoding="utf-8")
    assert cli("gate", full, old, "--qrels", labels, "--update")[0] == 0
    code, out, _ = cli("gate", full, old, "--qrels", labels, "--json")
    assert code == 0
    assert [rule["rule"] for rule in json.loads(out)["rules"]] == [RULE]
    code, out, _ = cli("gate", full, old, "-r", "epsilon <= 0.01", "-r", "at_risk <= 1")
    assert code == 2
    assert "only a bound is known" in " ".join(out.split())


def write_samples(folder: Path, wrong: int, tasks: tuple[str, ...] = ("arc", "piqa")) -> Path:
    """As lm-eval --log_samples leaves them: sixty questions of two choices per task."""
    folder.mkdir()
    configs = {}
    for task in tasks:
        lines = []
        for n in range(60):
            scores = ["-2.0", "-1.0"] if n < wrong else ["-1.0", "-2.0"]
            sample = {
                "doc_id": n,
                "doc": {"q": f"secret question {n}"},
                "target": "0",
                "arguments": {
                    f"gen_args_{c}": {"arg_0": f"secret question {n}", "arg_1": f" choice {c}"}
                    for c in range(2)
                },
                "resps": [[[score, "False"]] for score in scores],
                "filtered_resps": [[score, "False"] for score in scores],
                "filter": "none",
                "metrics": ["acc"],
                "doc_hash": f"doc{n}",
                "prompt_hash": f"prompt{n}",
                "target_hash": f"target{n}",
                "acc": float(n >= wrong),
            }
            lines.append(json.dumps(sample) + "\n")
        name = f"samples_{task}_2026-01-02T03-04-05.678901.jsonl"
        (folder / name).write_text("".join(lines), encoding="utf-8")
        configs[task] = {"task": task, "output_type": "multiple_choice"}
    content = {"results": {}, "configs": configs, "model_name": folder.name}
    (folder / "results_2026-01-02T03-04-05.678901.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_samples_of_lm_eval(cli: Cli, tmp_path: Path) -> None:
    full, old, new = (
        write_samples(tmp_path / name, wrong)
        for name, wrong in (("full", 0), ("old", 1), ("new", 9))
    )
    assert cli("gate", full, old, "--update")[0] == 0
    assert "secret" not in (tmp_path / "drift-baseline.json").read_text(encoding="utf-8")
    assert "choice" not in (tmp_path / "drift-baseline.json").read_text(encoding="utf-8")
    code, out, _ = cli("gate", full, old, "--json")
    assert code == 0
    assert [rule["rule"] for rule in json.loads(out)["rules"]] == [
        "flip@1 no worse by 0.03",
        "accuracy no worse by 0.03",
    ]
    code, out, _ = cli("gate", full, new, "--json")
    assert code == 1
    assert [rule["worse"] for rule in json.loads(out)["rules"]] == [16, 16]
    assert {each["part"] for each in json.loads(out)["worst"]} == {"arc", "piqa"}
    code, out, _ = cli("gate", full, new, "--part", "arc")
    assert code == 3


@pytest.mark.usefixtures("baseline")
def test_it_needs_neither_torch_nor_scipy_stats(good: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from quantdrift.cli import main
sys.argv = ["quantdrift", "gate", {str(good)!r}, "--json", "--report", "r.xml", "--report", "r.md"]
try:
    main()
finally:
    heavy = {{"torch", "transformers", "scipy.stats", "scipy.optimize", "pandas", "sklearn"}}
    assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "pass"
