"""Name the files that import each other in a circle; imports in functions and for the type checker alone count.

python tests/size/circles.py   # one line a circle, with exit code 1 if there is one
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TOPS = {"quantdrift": "", "plugins": "plugins", "tasks": "tasks"}
"""The folders of the product, to the folder that their modules are found in."""


def modules(root: Path) -> dict[str, Path]:
    """The files below the root, by name of their module."""
    found = {}
    for top, base in TOPS.items():
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root / base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path) -> Iterator[str]:
    """The dotted names that a module imports anywhere in its file; of `from a import b` that is a.b."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = package[: len(package) - node.level + 1] if node.level else []
            yield from (".".join([*inside, *filter(None, [node.module]), alias.name]) for alias in node.names)


def circles(root: Path) -> list[list[Path]]:
    """Files of which each imports the next, and the last one the first; none that is in a circle named before."""
    files, found = modules(root), list[list[Path]]()
    graph = {
        name: {_module(wanted, files) for wanted in imports(name, path)} - {"", name} for name, path in files.items()
    }
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1][:0:-1]  # from one that imports to what it imports
            found.append([files[name].relative_to(root) for name in circle])
            graph = {name: wanted - {*circle} for name, wanted in graph.items() if name not in circle}
        else:
            return found


def _module(wanted: str, files: dict[str, Path]) -> str:
    """The module that a dotted name is of, or is; empty for one of elsewhere."""
    while wanted and wanted not in files:
        wanted = wanted.rpartition(".")[0]
    return wanted


if __name__ == "__main__":
    told = [" -> ".join(map(str, [*circle, circle[0]])) for circle in circles(ROOT)]
    for line in told:
        print(f"these files import each other in a circle; take out an import: {line}", file=sys.stderr)
    sys.exit(bool(told))
