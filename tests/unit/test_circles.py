"""The counter of import circles: a planted circle is found, whatever kind of imports it hangs on."""

from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT, module_at


@pytest.fixture(scope="module")
def counter() -> Any:
    return module_at(ROOT / "tests" / "size" / "circles.py")


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
def test_a_planted_circle_is_named(counter: Any, tmp_path: Path, planted: dict[str, str], circle: set[str]) -> None:
    for name, text in {**FILES, **planted}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = counter.circles(tmp_path)
    assert [{str(path) for path in one} for one in found] == [{f"quantdrift/{name}" for name in circle}] * bool(circle)


def test_two_circles_are_two(counter: Any, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for one, other in ("ab", "ba", "cd", "dc", "ea"):
        (tmp_path / "tasks" / f"{one}.py").write_text(f"import {other}\n")
    assert sorted(sorted(map(str, one)) for one in counter.circles(tmp_path)) == [
        ["tasks/a.py", "tasks/b.py"],
        ["tasks/c.py", "tasks/d.py"],
    ]
