"""Hold the lines of code of every package against the budget in budget.toml.

    python tests/size/size.py           # what is over its budget, with exit code 1 if something is
    python tests/size/size.py --table   # all packages: files, lines of code, docstrings, comments, blanks; and budgets

A line of code is one that is neither blank nor a comment nor in a docstring; golden outputs count whole. Raising a
budget takes a line in a decision under docs/adr/ that says what was removed for it.
"""

import ast
import sys
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TOPS = ("quantdrift", "plugins", "tasks", "tests")
KINDS = ("files", "code", "docstring", "comment", "blank")
ADR = "docs/adr"
SHELVES = ("quantdrift/builtin", "quantdrift/features")
"""Folders of packages that stand for themselves; those without a budget of their own have that of a feature."""


def lines_of(source: str) -> Counter[str]:
    """How many lines of each kind a module has."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    counts = Counter(files=1)
    for number, line in enumerate(source.splitlines(), start=1):
        text = line.strip()
        if number in documented:
            counts["docstring"] += 1
        else:
            counts["blank" if not text else "comment" if text.startswith("#") else "code"] += 1
    return counts


def package_of(path: Path) -> str:
    """The package that a file counts for: two levels deep; three of features, and of parts that come along."""
    parts = path.parts[:-1]
    return "/".join(parts[: 3 if "/".join(parts[:2]) in SHELVES else 2])


def measured(root: Path) -> dict[str, Counter[str]]:
    """Every package's lines."""
    packages: dict[str, Counter[str]] = {}
    for top in TOPS:
        for path in sorted((root / top).rglob("*.py")):
            name = package_of(path.relative_to(root))
            packages.setdefault(name, Counter()).update(lines_of(path.read_text(encoding="utf-8")))
    return packages


def golden(root: Path) -> int:
    """Lines of the outputs that the golden commands are held against."""
    return sum(len(path.read_bytes().splitlines()) for path in (root / "tests/golden/expected").iterdir())


def sums(packages: dict[str, Counter[str]]) -> dict[str, int]:
    """Lines of code by package, and of what has a budget as a whole: quantdrift/, product, tests."""
    code = {name: counts["code"] for name, counts in packages.items()}
    kit = code.get("tasks/quantdrift_paper", 0)
    tests = sum(n for name, n in code.items() if name.startswith("tests"))
    house = sum(n for name, n in code.items() if name.startswith("quantdrift"))
    product = sum(code.values()) - tests - kit
    return {**code, "quantdrift/": house, "product": product, "tests": tests}


def over(found: dict[str, int], budget: dict[str, int]) -> list[str]:
    """What is over its budget, and what has none, a sentence each."""
    told = []
    for name, lines in sorted(found.items()):
        limit = budget.get(name, budget["feature"] if name.startswith(SHELVES) else None)
        if limit is None and not name.startswith("tests"):
            told.append(f"{name} has no budget: give it one in tests/size/budget.toml ({lines:,} lines now)")
        elif limit is not None and lines > limit:
            told.append(
                f"{name}: {lines:,} lines, {lines - limit:,} more than its budget of {limit:,}. Take them from "
                f"elsewhere, or raise it in tests/size/budget.toml with a line in {ADR}/ that says what was removed"
            )
    told += [f"{name} has a budget and is not there" for name in budget if name not in {*found, "feature"}]
    return told


def main(arguments: list[str]) -> int:
    """The command line."""
    packages = measured(ROOT)
    budget = tomllib.loads((HERE / "budget.toml").read_text(encoding="utf-8"))["lines"]
    found = {**sums(packages), "golden": golden(ROOT)}
    if "--table" in arguments:
        print(f"{'package':34}" + "".join(f"{kind:>11}" for kind in KINDS) + f"{'budget':>11}")
        for name, counts in sorted(packages.items(), key=lambda item: -item[1]["code"]):
            print(f"{name:34}" + "".join(f"{counts[kind]:>11,}" for kind in KINDS) + f"{budget.get(name, ''):>11}")
        for name in ("quantdrift/", "product", "tests", "golden"):
            print(f"{name:34}{'':>11}{found[name]:>11,}{'':>33}{budget.get(name, ''):>11}")
    told = over(found, budget)
    for line in told:
        print(line, file=sys.stderr)
    return bool(told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
