"""What `quantdrift gate` writes, what it reads besides run folders, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from quantdrift.cli import Interrupted, tell_crash
from support.gate_command_line import RULE, Cli, bad, baseline, cli, good, run_of

__all__ = ["bad", "baseline", "cli", "good"]  # fixtures


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
def test_what_ci_offers_is_used(cli: Cli, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        lines += [f"q{query} Q0 doc{item} {rank} {1 - rank / 20:.3f} tag\n" for rank, item in enumerate(items, start=1)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_two_trec_files(cli: Cli, tmp_path: Path) -> None:
    full = write_trec(tmp_path / "full.trec", 0)
    old = write_trec(tmp_path / "old.trec", 3)
    new = write_trec(tmp_path / "new.trec", 20)
    labels = tmp_path / "qrels.tsv"
    labels.write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\tdoc0\t1\n" for n in range(120)), encoding="utf-8"
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
    assert "--data does not apply to two finished runs (labels go to --qrels)" in err


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
                    f"gen_args_{c}": {"arg_0": f"secret question {n}", "arg_1": f" choice {c}"} for c in range(2)
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
    full, old, new = (write_samples(tmp_path / name, wrong) for name, wrong in (("full", 0), ("old", 1), ("new", 9)))
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


def test_other_prompts_of_lm_eval_are_other_data(cli: Cli, tmp_path: Path) -> None:
    """The ids are numbers, so only the hashes tell."""
    full, old = (write_samples(tmp_path / name, wrong) for name, wrong in (("full", 0), ("old", 1)))
    assert cli("gate", full, old, "--update")[0] == 0
    for folder in (full, old):
        for path in folder.glob("samples_*.jsonl"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace('"prompt_hash": "', '"prompt_hash": "five'), "utf-8")
    code, out, _ = cli("gate", full, old)
    assert code == 3
    assert "differ in data" in out.splitlines()[-1]


@pytest.mark.usefixtures("baseline")
def test_what_cannot_be_printed_does_not_change_the_verdict(good: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quantdrift", "gate", str(good)]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0
    assert "the result could not be printed" in done.stderr
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0


@pytest.mark.usefixtures("baseline")
def test_options_that_a_finished_run_does_not_take(cli: Cli, good: Path) -> None:
    code, _, err = cli("gate", good, "--k", 5, "--out", "elsewhere")
    assert code == 2
    assert "--out, --k does not apply to a finished run" in err
    # what is given as it is by itself is given too
    code, _, err = cli("gate", good, "--k", 200, "--split", "test")
    assert code == 2
    assert "--split, --k does not apply to a finished run" in err


def test_what_is_wrong_anyway_is_said_before_anything_is_measured(cli: Cli) -> None:
    spec = ("gate", "unheard-of@W4", "--data", "nowhere")
    for more, told in (
        (("-r", "flip@1 <= 0.1", "--alpha", 7), "alpha is a probability"),
        (("-r", "flip@1 [de] <= 0.1"), "unknown slice 'de'"),
    ):
        code, _, err = cli(*spec, *more)
        assert code == 2
        assert told in err


@pytest.mark.usefixtures("baseline")
def test_an_update_keeps_what_others_compare(cli: Cli, good: Path, tmp_path: Path) -> None:
    assert cli("gate", good, "-r", "recall@5 no worse by 0.1", "--update")[0] == 0
    assert cli("gate", good, "--update")[0] == 0
    assert "recall@5" in json.loads((tmp_path / "drift-baseline.json").read_text())["columns"]


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "pass"


@pytest.mark.usefixtures("baseline")
def test_a_reader_that_goes_does_not_change_the_verdict(bad: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quantdrift", "gate", str(bad)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 1
    good = run_of(tmp_path / "again", range(10))
    with subprocess.Popen([*command[:-1], str(good)], stdout=subprocess.PIPE, cwd=tmp_path) as one:
        assert one.stdout is not None
        one.stdout.close()
        assert one.wait(60) == 0


@pytest.mark.usefixtures("baseline")
def test_a_crash_is_not_taken_for_a_failure(
    cli: Cli, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr("quantdrift.cli.gate.gate", crash)
    monkeypatch.setattr("quantdrift.cli.tell_crash", tell_crash)  # as users have it
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    code, out, err = cli("gate", good)
    assert (code, out) == (2, "")
    assert err == ("quantdrift: unexpected RuntimeError: out of order (QUANTDRIFT_DEBUG=1 shows where)\n")
    assert (tmp_path / "outputs").read_text() == "verdict=error\nexit-code=2\n"


def test_ctrl_c_while_measuring_is_no_verdict(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("no run was written")

    monkeypatch.setattr("quantdrift.cli.gate.measured", stopped)
    code, out, err = cli("gate", "minilm@W4", "--data", "faq", "-r", "flip@1 <= 0.1")
    assert (code, out) == (130, "")
    assert err == "quantdrift: interrupted; no run was written\n"


def test_a_baseline_with_both_sides_of_a_merge_can_be_written_anew(cli: Cli, good: Path, baseline: Path) -> None:
    whole = baseline.read_text()
    baseline.write_text(f"<<<<<<< ours\n{whole}=======\n{whole}>>>>>>> theirs\n")
    assert cli("gate", good)[0] == 2
    code, _, err = cli("gate", good, "--update")
    assert code == 0
    assert "the earlier baseline is not compared with" in err
    assert baseline.read_text() == whole
