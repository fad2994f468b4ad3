"""The pages name what there is, and without the extras every command says what to install."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import docs_commands
from quantdrift.base.errors import MissingExtraError, QuantDriftError
from quantdrift.base.extras import EXTRAS
from quantdrift.builtin.index.engine import ENGINES
from quantdrift.cli import app
from quantdrift.metrics import FAMILIES, parse_metric
from quantdrift.metrics import base as metrics
from support.beir_folder import write_beir_folder
from support.places import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GROUP: Any = get_command(app)
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.commands}
NAME = rf"(?:{'|'.join(GROUP.forms)}|[a-z][a-z-]*)(?![a-z-])"


def test_every_metric_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert not [name for name in FAMILIES if not re.search(rf"`{name}[`@]", page)]


def test_the_reference_of_commands_is_what_they_say() -> None:
    assert docs_commands.PAGE.read_text(encoding="utf-8") == docs_commands.text(), "python tests/docs_commands.py"


def test_places_and_decorators_that_contributors_are_sent_to_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("## What goes where") : text.index("## A release")]
    places = [place.partition("NAME")[0] for place in re.findall(r"`((?:quantdrift|plugins|tasks)/[^`]*)`", table)]
    assert len(places) > 5
    assert not [place for place in places if not (ROOT / place).exists()]
    decorators = re.findall(r"`@(\w+)", table)
    assert decorators
    assert not [name for name in decorators if not callable(getattr(metrics, name, None))]


def test_every_command_is_shown_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not [name for name in COMMANDS if f"quantdrift {name}" not in text and f"`{name}`" not in text]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {"study", "canary", "mteb", "lm-eval"}])
def test_help_has_an_example_and_a_page_to_read(name: str) -> None:
    said = COMMANDS[name].help
    assert "quantdrift " in said
    (page,) = re.findall(r"^More: (docs/\S+)$", said, re.MULTILINE)
    assert (ROOT / page).exists()


def test_what_everybody_needs_comes_first() -> None:
    said = CliRunner().invoke(app, ["run", "--help"]).output
    places = [said.index(part) for part in ("\nData:", "--data", "\nOptions:", "--quiet", "\nModel:", "\nServers:")]
    assert places == sorted(places)


def anchors(page: Path) -> set[str]:
    """What a link can name in a page: its headings, spelled as GitHub does."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_metrics_of_a_page_are_real(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
        if target.startswith("http"):
            continue
        place = page.parent / target if target else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), (target, anchor)
    said = "" if page == docs_commands.PAGE else text  # which speaks of -m in sentences
    for name in re.findall(r"(?<!python )-m ([\w@.:=]+)", said):
        try:
            parse_metric(name)
        except QuantDriftError as error:
            pytest.fail(f"{page.name}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_shows_exist(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        shown_command = re.search(rf"(?:^    |`)quantdrift ({NAME})((?: [^`#]+)?)", line)
        if shown_command is None or shown_command[1] not in COMMANDS or shown_command[1] in {"mteb", "lm-eval"}:
            continue
        command, inside = COMMANDS[shown_command[1]], shown_command[2].split()[:1]
        command = getattr(command, "commands", {}).get(*inside, command) if inside else command
        options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        shown = set(re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", shown_command[2]))
        assert shown <= options | {"--help"}, line


def test_the_readme_has_ten_commands_and_a_link_to_all() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    table = text[text.index("## Commands") : text.index("In Python")]
    shown = re.findall(r"^\| `([a-z -]+)` \|", table, re.MULTILINE)
    assert len(shown) == len({*shown} & {*COMMANDS}) == 10
    assert "](docs/reference/commands.md)" in table


@pytest.mark.parametrize("folder", ["quantdrift", "plugins", "tasks"])
def test_what_code_tells_people_to_type_is_there(folder: str) -> None:
    for file in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.yaml")]:
        text = re.sub(r'"\n\s+f?"', "", file.read_text(encoding="utf-8"))
        for name in re.findall(rf"`quantdrift ({NAME})", text):
            assert name in COMMANDS, (file, name)
        for name, rest in re.findall(rf"quantdrift ({NAME})((?: [^\s`;,:()]+)*)", text):
            command = COMMANDS.get(name)
            options = {option for option_of in getattr(command, "params", []) for option in option_of.opts}
            if options:
                asked = {*re.findall(r"(?<= )--[a-z-]+", rest)} - {"--help"}
                assert asked <= options | {"--json", "--markdown"}, (file, name, asked - options)


# --- without the extras ------------------------------------------------------------------------------


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted({m for extra in EXTRAS.values() for m in extra})!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without(folder: Path, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run code in a Python that finds none of the modules that an extra brings."""
    program = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, cwd=folder)


NEEDING = {
    "run minilm@W4-rtn --data data": "models",
    "run bge-small@W4-rtn --data data": "models",  # of the hub, whose library is missing, too
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


def test_a_command_names_the_extra_in_one_line(tmp_path: Path) -> None:
    write_beir_folder(tmp_path / "data", {"q": "b"}, {"d": "a", "e": "c"})
    done = without(tmp_path, EACH, *NEEDING)
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["2"] * len(NEEDING), done.stderr
    for line, (command, extra) in zip(lines[::2], NEEDING.items(), strict=True):
        assert line.endswith(f'pip install "quantdrift[{extra}]"')
        assert f"quantdrift {command.split(maxsplit=1)[0]}" in line
    assert done.stdout == ""


def test_a_hub_that_is_switched_off_is_told_before_torch_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir_folder(tmp_path / "data", {"q": "b"}, {"d": "a", "e": "c"})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = "import sys\nsys.modules['torch'] = None\n" + EACH
    program = [sys.executable, "-c", code, "run some/model@W4 --data data"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "HF_HUB_OFFLINE is set" in done.stderr, done.stderr


def test_a_name_of_the_package_names_the_extra_too(tmp_path: Path) -> None:
    done = without(
        tmp_path,
        "import quantdrift\n"
        "try: from quantdrift import QuantizedPair\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
        "from quantdrift import Evidence, Run, compare_runs, parse_spec, read_run\n"
        "print('read')\n",
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
