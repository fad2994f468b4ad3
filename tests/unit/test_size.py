"""What holds the shape of the code: lines of packages against a budget, and planted import circles."""

from pathlib import Path

import pytest

from support.places import ROOT, module_at

SIZE = module_at(ROOT / "tests" / "size" / "size.py")


SOURCE = '''"""A module.

Two lines more.
"""

import os  # a comment behind code is code

# a comment


def name() -> str:
    """One line."""
    return """text
    that is no docstring"""
'''


def test_lines_are_of_four_kinds() -> None:
    counts = SIZE.lines_of(SOURCE)
    assert counts == {"files": 1, "docstring": 5, "blank": 4, "comment": 1, "code": 4}


def test_a_feature_is_a_package_of_its_own(tmp_path: Path) -> None:
    files = {"quantdrift/features/toy/command.py": 3, "quantdrift/cli/run.py": 2, "tests/unit/x.py": 7}
    for name, lines in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines)
    (tmp_path / "tests/golden/expected").mkdir(parents=True)
    (tmp_path / "tests/golden/expected/run.json").write_text("{\n\n}\n")
    assert SIZE.golden(tmp_path) == 3
    sums = SIZE.sums(SIZE.measured(tmp_path))
    assert sums == {
        "quantdrift/features/toy": 3, "quantdrift/cli": 2, "tests/unit": 7, "quantdrift/": 5, "product": 5, "tests": 7,
    }  # fmt: skip
    budget = {"feature": 3, "quantdrift/cli": 1, "product": 5, "quantdrift/": 5}
    (line,) = SIZE.over(sums, budget)
    assert line.startswith("quantdrift/cli: 2 lines, 1 more than its budget of 1.")
    assert "docs/adr" in line
    assert SIZE.over({**sums, "quantdrift/new": 1}, {**budget, "quantdrift/cli": 2}) == [
        "quantdrift/new has no budget: give it one in tests/size/budget.toml (1 lines now)"
    ]
    assert SIZE.over(sums, {**budget, "feature": 2, "quantdrift/cli": 2})[0].startswith("quantdrift/features/toy: 3")


# --- import circles ----------------------------------------------------------------------------------


COUNTER = module_at(ROOT / "tests" / "size" / "circles.py")


FILES = {
    "quantdrift/__init__.py": "def f():\n    from quantdrift import a\n",  # a package may know its own modules
    "quantdrift/a.py": "import os\nfrom quantdrift.b import g\n",
    "quantdrift/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from quantdrift.c.d import H\n",
    "quantdrift/c/__init__.py": "",
    "quantdrift/c/d.py": "",
    "plugins/other/__init__.py": "from quantdrift import a\nfrom . import x\n",
    "plugins/other/x.py": "import quantdrift.a\n",
}


@pytest.mark.parametrize(
    ("planted", "circle"),
    [
        ({}, set()),
        ({"quantdrift/c/d.py": "def h():\n    from quantdrift import a\n"}, {"a.py", "b.py", "c/d.py"}),
        ({"quantdrift/c/d.py": "class H:\n    from ..a import g\n"}, {"a.py", "b.py", "c/d.py"}),
        ({"quantdrift/c/d.py": "import quantdrift.b as b\n"}, {"b.py", "c/d.py"}),
        ({"quantdrift/c/d.py": "from . import N\n", "quantdrift/c/__init__.py": "from .d import M\n"},
         {"c/d.py", "c/__init__.py"}),
    ],
)  # fmt: skip
def test_a_planted_circle_is_named(tmp_path: Path, planted: dict[str, str], circle: set[str]) -> None:
    for name, text in {**FILES, **planted}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = COUNTER.circles(tmp_path)
    assert [{str(path) for path in one} for one in found] == [{f"quantdrift/{name}" for name in circle}] * bool(circle)


def test_two_circles_are_two(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for one, other in ("ab", "ba", "cd", "dc", "ea"):
        (tmp_path / "tasks" / f"{one}.py").write_text(f"import {other}\n")
    assert sorted(sorted(map(str, one)) for one in COUNTER.circles(tmp_path)) == [
        ["tasks/a.py", "tasks/b.py"],
        ["tasks/c.py", "tasks/d.py"],
    ]
