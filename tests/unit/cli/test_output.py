"""One object, printed as tables, JSON or Markdown; and what `quantdrift --help` loads."""

import ast
import subprocess
import sys

import pytest
from typer.main import get_command

from quantdrift.base.errors import QuantDriftError
from quantdrift.cli import app
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
    commands = {f"quantdrift.cli.{file.stem}" for file in files if file.parent.name == "cli"} - {
        f"quantdrift.cli.{name}" for name in (*shared, "__init__")
    }
    commands |= {f"quantdrift.features.{file.parent.name}.command" for file in files if file.name == "command.py"}
    assert {"quantdrift.cli.run", "quantdrift.features.repair.command"} <= commands
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not names & commands, file
