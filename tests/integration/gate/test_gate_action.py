"""The GitHub Action: what it declares, and its scripts, run by bash as a runner runs them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.finished_samples import write_trec
from support.places import ROOT

TEXT = (ROOT / "action.yml").read_text(encoding="utf-8")
ACTION: dict[str, Any] = yaml.safe_load(TEXT)
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
HOSTILE = "$(touch owned) `touch owned`; touch owned; \"'*"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


class Ran(NamedTuple):
    """What a script came to."""

    code: int
    lines: list[str]
    argv: list[str] | None
    outputs: dict[str, str]


def value_of(text: str, inputs: Mapping[str, str]) -> str:
    """An expression as a runner fills it in; there are no others than of inputs in `env`."""

    def fill(expression: re.Match[str]) -> str:
        kind, _, name = expression[1].partition(".")
        assert kind == "inputs"
        return inputs.get(name, str(ACTION["inputs"][name]["default"]))

    return EXPRESSION.sub(fill, text)


def run_step(
    name: str,
    place: Path,
    inputs: Mapping[str, str],
    *,
    stubs: Mapping[str, str] | None = None,
    path: str | None = None,
    **environ: str,
) -> Ran:
    """Run the script of a step in a folder; stubs stand for commands and write down their arguments."""
    step = STEPS[name]
    assert step["shell"] == "bash"
    fakes, record, output = place / "fakes", place / "argv", place / "output"
    fakes.mkdir(exist_ok=True)
    for command, script in (stubs or {}).items():
        stub = fakes / command
        stub.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > '{record}'\n{script}\n")
        stub.chmod(0o755)
    work = place / "work"
    work.mkdir(exist_ok=True)
    script = place / "script.sh"
    script.write_text(step["run"], encoding="utf-8")
    output.write_text("", encoding="utf-8")
    variables = {name: value_of(text, inputs) for name, text in step["env"].items()}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        cwd=work,
        env={
            "HOME": str(place),
            "PATH": f"{fakes}:{os.environ['PATH'] if path is None else path}",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_ACTION_PATH": "/actions/quantdrift",
            **variables,
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert not list(work.glob("owned"))
    argv = record.read_text(encoding="utf-8").split("\0")[:-1] if record.exists() else None
    lines = output.read_text(encoding="utf-8").splitlines()
    pairs = [(name, text) for name, _, text in (line.partition("=") for line in lines)]
    return Ran(
        code=done.returncode,
        lines=(done.stdout + done.stderr).splitlines(),
        argv=argv,
        outputs=dict(pairs),  # the last of a name counts
    )


def gate(place: Path, *, stub: str = "echo verdict=pass >> $GITHUB_OUTPUT", **inputs: str) -> Ran:
    named = {name.replace("_", "-"): text for name, text in inputs.items()}
    return run_step("Gate", place, named, stubs={"quantdrift": stub})


def install(place: Path, **inputs: str) -> list[str] | None:
    ran = run_step("Install quantdrift", place, inputs, stubs={"python": ""})
    assert ran.code == 0
    return ran.argv


def test_no_expression_stands_in_a_script() -> None:
    scripts = [step for step in STEPS.values() if "run" in step]
    assert len(scripts) == 2
    for step in scripts:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
        # a variable takes one input whole
        for value in step["env"].values():
            assert re.fullmatch(r"\$\{\{ inputs\.[a-z-]+ \}\}", value)


@pytest.mark.parametrize(
    ("inputs", "package"),
    [
        ({}, "/actions/quantdrift[models]"),
        ({"version": "0.2.0"}, "quantdrift[models]==0.2.0"),
        ({"version": ">=0.2,<0.3", "extras": ""}, "quantdrift>=0.2,<0.3"),
        ({"version": "1 " + HOSTILE}, f"quantdrift[models]==1 {HOSTILE}"),
        ({"extras": HOSTILE}, f"/actions/quantdrift[{HOSTILE}]"),
    ],
)
def test_what_is_installed(tmp_path: Path, inputs: dict[str, str], package: str) -> None:
    assert install(tmp_path, **inputs) == ["-m", "pip", "install", package]


def test_all_arguments_in_their_order(tmp_path: Path) -> None:
    ran = gate(
        tmp_path,
        target="minilm@W4-rtn",
        data="some data/cranfield",
        task="SciFact",
        baseline="base line.json",
        rules="flip@1 no worse by 0.03\n  flip@1 [de, at] <= 25 %  \n\n\t\nndcg@10 >= 0.3\r\n",
        report="drift gate.xml\ndrift.md\n",
        accept_underpowered="true",
        args="--slice=german words=de-*\n--worst=20\n",
    )
    assert ran.argv == [
        "gate",
        "--data=some data/cranfield",
        "--task=SciFact",
        "--baseline=base line.json",
        "--rule=flip@1 no worse by 0.03",
        "--rule=flip@1 [de, at] <= 25 %",
        "--rule=ndcg@10 >= 0.3",
        "--report=drift gate.xml",
        "--report=drift.md",
        "--accept-underpowered",
        "--slice=german words=de-*",
        "--worst=20",
        "--",
        "minilm@W4-rtn",
    ]


@pytest.mark.parametrize(
    "name", ["target", "data", "task", "baseline", "rules", "report", "args", "accept-underpowered"]
)
def test_what_stands_in_an_input_is_never_run(tmp_path: Path, name: str) -> None:
    ran = gate(tmp_path, **{name: HOSTILE})
    if name == "accept-underpowered":
        assert ran.argv is None
        assert (ran.code, ran.outputs) == (2, {"verdict": "error", "exit-code": "2"})
        assert ran.lines == ["::error::accept-underpowered: expected true or false"]
    else:
        assert sum(HOSTILE in argument for argument in ran.argv) == 1


def test_nothing_that_the_command_prints_is_a_command_to_the_runner(tmp_path: Path) -> None:
    ran = gate(tmp_path, stub="echo ::add-mask::secret; exit 1")
    stop, inside, go = ran.lines
    token = stop.removeprefix("::stop-commands::")
    assert (ran.code, ran.outputs["exit-code"]) == (1, "1")
    assert re.fullmatch(r"quantdrift-[0-9a-f]{32}", token)
    assert (inside, go) == ("::add-mask::secret", f"::{token}::")
    assert gate(tmp_path).lines[0] != stop


def test_the_real_command_on_two_finished_runs(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name, first in (("full run.trec", "d1"), ("int4.trec", "d2")):
        write_trec(work / name, {f"q{n}": {first if n < 2 else "d1": 2.0, "d3": 1.0} for n in range(8)})
    summary = tmp_path / "summary"
    rules, reports = "flip@1 <= 20 %\nflip@1 <= 0.5\n", "drift gate.xml\ndrift.json"
    ran = run_step(
        "Gate",
        tmp_path,
        {"target": "full run.trec\nint4.trec", "rules": rules, "report": reports},
        path=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        GITHUB_STEP_SUMMARY=str(summary),
        OMP_NUM_THREADS="1",
    )
    assert (ran.code, ran.outputs) == (1, {"verdict": "fail", "exit-code": "1"}), ran.lines
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("## quantdrift gate: fail\n")
    assert "| `flip@1 <= 0.2` | 25.0 % " in text
    assert "1 of 2 rules, `flip@1` <= 0.2 (above the limit)" in text
    assert 'tests="2" failures="1" errors="0"' in (work / "drift gate.xml").read_text("utf-8")
    assert '"verdict": "fail"' in (work / "drift.json").read_text("utf-8")
