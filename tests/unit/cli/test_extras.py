"""Without the extras: every command and every name says in one line what to install."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from quantdrift.base.errors import MissingExtraError, QuantDriftError
from quantdrift.base.extras import EXTRAS
from quantdrift.builtin.index.engine import ENGINES
from support.beir_folder import write_beir_folder
from support.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted({m for extra in EXTRAS.values() for m in extra})!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""

RunWithout = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def without(tmp_path: Path) -> RunWithout:
    """Runs code in a Python that finds none of the modules that an extra brings."""

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", WITHOUT + code, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    return run


COMMANDS = {
    "run minilm@W4-rtn --data data": "models",
    "quantize minilm@W4-rtn -o out": "models",
    "allocate minilm@W3.5+gap --data data": "models",
    "gate minilm@W4-rtn --data data --update": "models",
    "mteb run --model quantdrift:minilm@W4-rtn -t PythonDocsRetrieval": "mteb",
    "lm-eval --model quantdrift": "lm-eval",
}
EACH = """
from quantdrift.cli import main
for command in sys.argv[1:]:
    sys.argv = ["quantdrift", *command.split()]
    try: main()
    except SystemExit as stopped: print(stopped.code, file=sys.stderr)
"""


def test_a_command_names_the_extra_in_one_line(without: RunWithout, tmp_path: Path) -> None:
    write_beir_folder(tmp_path / "data", {"q": "b"}, {"d": "a", "e": "c"})
    done = without(EACH, *COMMANDS)
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["2"] * len(COMMANDS), done.stderr
    for line, (command, extra) in zip(lines[::2], COMMANDS.items(), strict=True):
        assert line.endswith(f'pip install "quantdrift[{extra}]"')
        assert f"quantdrift {command.split(maxsplit=1)[0]}" in line
    assert done.stdout == ""


def test_a_name_of_the_package_names_the_extra_too(without: RunWithout) -> None:
    done = without(
        "import quantdrift\n"
        "try: from quantdrift import QuantizedPair\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
        "from quantdrift import Evidence, Run, compare_runs, parse_spec, read_run\n"
        "print('read')\n"
    )
    said, read = done.stdout.splitlines()
    assert said.startswith("MissingExtraError quantdrift.QuantizedPair")
    assert said.endswith('pip install "quantdrift[models]"')
    assert read == "read", done.stderr
    assert issubclass(MissingExtraError, QuantDriftError)


def test_every_module_that_is_imported_is_had_at_once_or_has_an_extra() -> None:
    base = {"numpy", "scipy", "pyarrow", "rich", "typer", "pydantic", "yaml"}
    ours = {"quantdrift", *(path.name for path in (ROOT / "plugins").iterdir()), "quantdrift_tasks", "quantdrift_paper"}
    allowed = {*base, *ours, *sys.stdlib_module_names, *(m for modules in EXTRAS.values() for m in modules)}
    allowed |= {package.module for package in ENGINES.packages.values()}
    imported: dict[str, Path] = {}
    for folder in ("quantdrift", "plugins", "tasks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                imported.update((name.split(".")[0], path) for name in names)
    assert {name: path for name, path in imported.items() if name not in allowed} == {}
    extras = {*EXTRAS, *(package.extra for package in ENGINES.packages.values())}
    assert extras <= set(PROJECT["optional-dependencies"])
    assert "torch" in imported
