"""What is printed, as tables, JSON or Markdown; what `--help` loads; `doctor` and the list of quantizers."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from quantdrift import _hook
from quantdrift.base import paths
from quantdrift.base.errors import QuantDriftError
from quantdrift.cli import app
from quantdrift.features.doctor import checks as doctor
from quantdrift.show.output import Output, emit, form_of
from quantdrift.show.tables import Grid
from support.command_line import cli
from support.places import ROOT

SHOWN = Output(
    data={"flips": 3},
    title="a title",
    grids=[Grid(head=["run", "value"], rows=[["a\x1b[31m|b", "0.5 (0.4 to 0.6)"]], stacked=True, lines=["below"])],
    lines=["<i>a finding</i>"],
    next=["/a/path/that/is/not/broken" * 10],
)


def test_a_terminal_gets_tables_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    emit(SHOWN)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "│ 0.5 │" in " ".join(out.split())
    assert "(0.4 to 0.6)" in out
    assert out.index("a title") < out.index("below") < out.index("a finding")
    assert SHOWN.next[0] in out.splitlines()


def test_a_path_is_whole_wherever_it_stands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    path = SHOWN.next[0]
    words = "words that are wrapped " * 10
    emit(Output(about=[f"from {path}"], grids=[Grid(head=["run"], rows=[], lines=[f"to see {path}"])], lines=[words]))
    lines = capsys.readouterr().out.splitlines()
    assert {f"from {path}", f"to see {path}"} < {*lines}
    assert max(len(line) for line in lines if "wrapped" in line) <= 110


def test_markdown_has_an_interval_in_one_cell_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    emit(SHOWN, "markdown")
    out = capsys.readouterr().out
    assert all(part in out for part in ("| 0.5 (0.4 to 0.6) |", "- below"))
    assert "<i>" not in out.replace("`<i>a`", "")
    assert SHOWN.next[0] not in out


def test_json_is_the_data_alone(capsys: pytest.CaptureFixture[str]) -> None:
    emit(SHOWN, "json")
    assert capsys.readouterr().out == '{\n  "flips": 3\n}\n'


def test_two_formats_are_refused() -> None:
    assert [form_of([]), form_of(["json"])] == ["table", "json"]
    with pytest.raises(QuantDriftError, match="--json or --markdown"):
        form_of(["json", "markdown"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--help", ""),
        ("--version", ""),
        ("run minilm@W99 --data x", "unknown bits 'W99'"),
        ("quantize minilm@W99 -o x", "unknown bits 'W99'"),
    ],
)
def test_help_and_a_spec_that_is_none_load_nothing_heavy(words: str, said: str) -> None:
    code = (
        "import sys; from quantdrift.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'numpy', 'rich', 'pyarrow', 'torch'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr) == (0, True)


def test_the_help_groups_every_command() -> None:
    _, out, err = cli()
    assert not out
    groups = get_command(app).groups
    assert groups["Trust and repair"]["repair"]  # a feature's
    for title, commands in groups.items():
        assert f"\n{title}:\n" in err
        assert all(f"\n  {name} " in err for name in commands)


@pytest.mark.parametrize(("words", "said"), [(("gat",), "Did you mean 'gate'?"), (("run", "--dta", "x"), "--data")])
def test_a_name_that_is_not_known_gets_the_nearest(words: tuple[str, ...], said: str) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_no_command_imports_another() -> None:
    shared = {"options", "measuring", "studying", "pages"}
    files = [*ROOT.glob("quantdrift/cli/*.py"), *ROOT.glob("quantdrift/features/*/command.py")]
    made_of_others = {"ship", "demo"}  # ship calls the others (ADR 49), and the demo shows its page
    commands = {f"quantdrift.cli.{file.stem}" for file in files if file.parent.name == "cli"} - {
        f"quantdrift.cli.{name}" for name in (*shared, "__init__")
    }
    commands |= {f"quantdrift.features.{file.parent.name}.command" for file in files if file.name == "command.py"}
    assert {"quantdrift.cli.run", "quantdrift.features.repair.command"} <= commands
    for file in (file for file in files if file.parent.name not in made_of_others):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not names & commands, file


# --- doctor, and the list of quantizers --------------------------------------------------------------


INSTALLED = {"mteb": "2.26.24", "torch": "2.13.0+cpu", "transformers": "5.23.0", "sentence-transformers": "6.2.0"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages this environment seems to hold; a test changes them as it likes."""
    packages = dict(INSTALLED)
    monkeypatch.setattr(doctor, "version_of", packages.get)
    return packages


def test_doctor_fails_only_where_models_cannot_be_scored(installed: dict[str, str]) -> None:
    code, printed, _ = cli("doctor")
    assert code == 0
    assert 'For beir: pip install "quantdrift[beir]"' in printed
    assert "whl/cpu" not in printed
    del installed["torch"]
    code, printed, _ = cli("doctor")
    assert code == 1
    assert 'torch is not installed (runs the models): pip install "quantdrift[models]"' in printed
    assert "whl/cpu" in printed  # what pip would bring by itself is CUDA's libraries, gigabytes
    code, printed, _ = cli("doctor", "--json")
    report = json.loads(printed)
    assert (code, len(report["problems"])) == (1, 1)
    assert {c["name"]: c["version"] for c in report["components"]}["mteb"] == "2.26.24"


def test_what_a_library_warns_of_on_import_stands_in_doctor_alone(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], tmp_path: Path
) -> None:
    installed["torchao"] = "0.1"
    (tmp_path / "torchao.py").write_text("import logging; logging.getLogger(__name__).warning('no kernels: lost.so')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert "Note: torchao warns: no kernels: lost.so (when torchao is imported)" in cli("doctor")[1]
    ended = subprocess.run([sys.executable, "-c", "import quantdrift.models, torchao"], capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")


@pytest.mark.parametrize(
    ("installed", "off", "errors", "says"),
    [
        (True, "", {}, "is active"),
        (True, "0", {}, "switched off by QUANTDRIFT_HOOK"),
        (False, "", {}, "install quantdrift with pip"),
        (True, "", {"mteb.evaluate": "KeyError: 'x'"}, "KeyError"),
    ],
)
def test_the_advice_names_the_reason_and_the_way_without_the_hook(
    monkeypatch: pytest.MonkeyPatch, installed: bool, off: str, errors: dict[str, str], says: str
) -> None:
    finder = _hook.HookFinder("pth")
    finder.errors.update(errors)
    monkeypatch.setenv(_hook.OFF_SWITCH, off)
    monkeypatch.setattr(_hook, "installed_finder", lambda: finder if installed else None)
    monkeypatch.setattr(doctor, "version_of", INSTALLED.get)
    report = doctor.diagnose()["hook"]
    assert says in report["advice"]
    assert report["active"] == (installed and not off)
    assert bool(errors) or report["active"] or "`quantdrift mteb run ...` works" in report["advice"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"QUANTDRIFT_CACHE": "/big/disk", "XDG_CACHE_HOME": "/xdg"}, "/big/disk"),
        ({"QUANTDRIFT_CACHE": "~/mine"}, "/home/me/mine"),
        ({"QUANTDRIFT_CACHE": " ", "XDG_CACHE_HOME": "/xdg"}, "/xdg/quantdrift"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/quantdrift"),
        ({}, "/home/me/.cache/quantdrift"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="the expected paths are POSIX ones")
def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("QUANTDRIFT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert paths.cache_dir() == Path(expected)


def test_quantizers_are_listed_with_what_is_installed(installed: dict[str, str]) -> None:
    installed["gptqmodel"] = "7.6.0"
    rows = {row.pop("quantizer"): row for row in json.loads(cli("list", "quantizers", "--json")[1])}
    gptq = {"calibrated": True, "libraries": ["gptqmodel"], "versions": {"gptqmodel": "7.6.0"}}
    assert rows["gptq"] == {**gptq, "available": True, "install": None}
    assert (rows["rtn"]["libraries"], rows["rtn"]["available"]) == ([], True)
    assert (rows["awq"]["libraries"], rows["awq"]["available"]) == (["gptqmodel", "autoawq"], True)
    assert rows["hqq"]["available"] is False
    assert rows["hqq"]["install"] == 'pip install "quantdrift[hqq]"'
