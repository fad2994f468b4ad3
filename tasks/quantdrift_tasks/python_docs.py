"""Retrieval data made from the docstrings of the running Python's standard library, no download.

The first paragraph of a docstring is a query, the rest of the docstring its one relevant document. The sources are
parsed, never imported: importing a module can open a browser or print a poem.
"""

from __future__ import annotations

import ast
import inspect
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import DataError

NAME = "PythonDocsRetrieval"
SMALL = "PythonDocsSmall"

# Raise this whenever the rules below change, so that results of other pairs are not mistaken for
# results of these.
_RULES = 1

REVISION = f"{platform.python_implementation().lower()}-{platform.python_version()}-rules{_RULES}"
"""What decides the data: the Python whose sources are read, and the rules they are read by."""

_MIN_QUERY_WORDS = 4
_MIN_DOCUMENT_WORDS = 20

# Left out, so that one Python version gives the same pairs on every machine: what distributions put
# into packages of their own or a build may lack; what they patch, down to the docstrings; what is
# generated or there only for Python's own tests.
_OPTIONAL = {"curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "msilib", "sqlite3"}
_OPTIONAL |= {"tkinter", "turtle", "turtledemo", "venv"}
_PATCHED = {"site", "sysconfig"}
_NOT_WRITTEN_TO_BE_READ = {"__phello__", "pydoc_data"}
_LEFT_OUT = frozenset(_OPTIONAL | _PATCHED | _NOT_WRITTEN_TO_BE_READ)
_LEFT_OUT_FOLDERS = frozenset({"macholib", "test", "tests"})

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n")


def load() -> RetrievalDataset:
    """The pairs of the running Python, as the split "test".

    Generated anew at each call, in about a second; that is too short to be worth a cache.
    """
    return generate(Path(sysconfig.get_path("stdlib")))


def generate(library: Path) -> RetrievalDataset:
    """The pairs of the standard library in a folder.

    A document's id is `module.qualname`, its query's is the same after "q:". They differ on purpose: beir, and mteb
    when told to `ignore_identical_ids`, drops results whose id equals the query's, which here would be the one
    relevant document.

    A query has at least 4 words and a document at least 20. Of pairs that share an id, a query or a document, the
    first in the order of ids and source is kept; texts that differ in whitespace only count as the same, so that
    every query has exactly one relevant document.
    """
    pairs: dict[str, tuple[str, str]] = {}
    for file in _source_files(library):
        for identifier, docstring in _docstrings(file, library):
            pair = _split(docstring)
            if pair is not None:
                pairs.setdefault(identifier, pair)
    if not pairs:
        raise DataError(
            f"{library} has no docstrings to make {NAME} from: Python's standard library was "
            "expected with its .py sources, and only compiled or zipped modules are there; use a "
            "Python that was installed with its sources, or another task"
        )
    seen: set[str] = set()
    kept: dict[str, tuple[str, str]] = {}
    for identifier, (query, document) in sorted(pairs.items()):
        keys = {f"query {query}", f"document {_fold(document)}"}
        if seen.isdisjoint(keys):
            kept[identifier] = (query, document)
            seen |= keys
    return RetrievalDataset(
        name=NAME,
        query_ids=tuple(f"q:{identifier}" for identifier in kept),
        queries=tuple(query for query, _ in kept.values()),
        document_ids=tuple(kept),
        documents=tuple(document for _, document in kept.values()),
        qrels={f"q:{identifier}": {identifier: 1} for identifier in kept},
        split="test",
    )


def load_small() -> RetrievalDataset:
    """Every fourth pair of `load`: enough to see a difference in a minute or two, too few for a figure to rely on."""
    whole = load()
    return replace(
        whole,
        name=SMALL,
        query_ids=whole.query_ids[::4],
        queries=whole.queries[::4],
        document_ids=whole.document_ids[::4],
        documents=whole.documents[::4],
        qrels={query: whole.qrels[query] for query in whole.query_ids[::4]},
    )


def _source_files(library: Path) -> Iterator[Path]:
    """The sources that belong to Python itself, whatever else was installed beside them."""
    # The same list on all platforms; it holds neither site-packages nor _sysconfigdata.
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
        for file in (library / f"{name}.py", *sorted((library / name).rglob("*.py"))):
            if file.is_file() and _LEFT_OUT_FOLDERS.isdisjoint(file.relative_to(library).parts):
                yield file


def _docstrings(file: Path, library: Path) -> Iterator[tuple[str, str]]:
    """Identifier and docstring of the module, its classes, functions and methods."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        problem = f"a source file of Python {platform.python_version()} was expected"
        raise DataError(f"{file}: {problem}; {error}; reinstall Python") from error
    module = file.relative_to(library).with_suffix("").parts
    if module[-1] == "__init__":
        module = module[:-1]
    for identifier, node in _definitions(tree, ".".join(module)):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield identifier, inspect.cleandoc(docstring)


def _definitions(node: ast.AST, identifier: str) -> Iterator[tuple[str, _Documented]]:
    """What can carry a docstring, in source order, with its identifier."""
    if isinstance(node, _Documented):
        yield identifier, node
    # What a function defines inside has no name that anyone could look up.
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _definitions(child, f"{identifier}.{child.name}")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            # Both branches of a platform check, so that the platform makes no difference.
            yield from _definitions(child, identifier)


def _split(docstring: str) -> tuple[str, str] | None:
    """Query and document, or None when either is too short."""
    head, *rest = _PARAGRAPH_END.split(docstring, maxsplit=1)
    query, document = _fold(head), "".join(rest).strip()
    long_enough = len(query.split()) >= _MIN_QUERY_WORDS and len(document.split()) >= _MIN_DOCUMENT_WORDS
    return (query, document) if long_enough else None


def _fold(text: str) -> str:
    return " ".join(text.split())
