"""Data made from the docstrings of the running Python's standard library, without a download.

As a search, the first paragraph of a docstring is a query, the rest of the docstring its one relevant document. As
classes, a docstring is an input, and the package it is from its class. The sources are parsed, never imported:
importing a module can open a browser or print a poem.
"""

from __future__ import annotations

import ast
import inspect
import platform
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from quantdrift.base.errors import DataError
from quantdrift.data.labelled import ClassificationDataset, Labelled
from quantdrift.data.retrieval import RetrievalDataset

NAME = "PythonDocsRetrieval"
SMALL = "PythonDocsSmall"
SHORT = "PythonDocsShort"
MODULES = "PythonDocsModules"

# Raise this whenever the rules below change, so that results of other pairs are not mistaken for
# results of these.
_RULES = 1

REVISION = f"{platform.python_implementation().lower()}-{platform.python_version()}-rules{_RULES}"
"""Identifies the data: the Python whose sources are read, and the rules."""

_MIN_QUERY_WORDS = 4
_MIN_DOCUMENT_WORDS = 20
_CLASSES, _MIN_INPUT_WORDS = 16, 8

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


@cache
def load() -> RetrievalDataset:
    """Return the pairs of the running Python, as the split "test"; reading its sources takes a second or two."""
    return generate(Path(sysconfig.get_path("stdlib")))


def generate(library: Path) -> RetrievalDataset:
    """Return the pairs of the standard library in a folder.

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
        raise _no_docstrings(library, NAME)
    seen: set[str] = set()
    kept: dict[str, tuple[str, str]] = {}
    for identifier, (query, document) in sorted(pairs.items()):
        keys = {f"query {query}", f"document {_fold(document)}"}
        if seen.isdisjoint(keys):
            kept[identifier] = (query, document)
            seen |= keys
    return _dataset(kept, NAME)


def _dataset(pairs: Mapping[str, tuple[str, str]], name: str, *notes: str) -> RetrievalDataset:
    return RetrievalDataset(
        name=name,
        query_ids=tuple(f"q:{identifier}" for identifier in pairs),
        queries=tuple(query for query, _ in pairs.values()),
        document_ids=tuple(pairs),
        documents=tuple(document for _, document in pairs.values()),
        qrels={f"q:{identifier}": {identifier: 1} for identifier in pairs},
        split="test",
        notes=notes,
    )


def load_small() -> RetrievalDataset:
    """Return every fourth pair of `load`: enough to see a difference in a minute, too few for a figure."""
    return _dataset(dict([*_pairs()][::4]), SMALL)


def load_rest() -> RetrievalDataset:
    """Return the pairs of `load` that `load_small` leaves out, for training."""
    return _dataset(dict(pair for row, pair in enumerate(_pairs()) if row % 4), f"{NAME} without {SMALL}")


def load_short() -> RetrievalDataset:
    """Return the 200 pairs of `load` with the shortest documents, which are encoded in seconds: a first look.

    Of documents as long as each other, those that come first in the order of ids are taken.
    """
    pairs = [*_pairs()]
    shortest = dict(sorted(sorted(pairs, key=lambda pair: len(pair[1][1]))[:200]))
    note = f"a first look: of {len(pairs):,} docstrings the {len(shortest)} with the shortest documents"
    return _dataset(shortest, SHORT, note)


def _pairs() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the pairs of `load`: a document's id, its query and the document."""
    whole = load()
    return zip(whole.document_ids, zip(whole.queries, whole.documents, strict=True), strict=True)


def load_modules() -> ClassificationDataset:
    """Classify docstrings of the running Python by their package; see `classify`."""
    return classify(Path(sysconfig.get_path("stdlib")))


def classify(library: Path) -> ClassificationDataset:
    """Classify docstrings of a folder's standard library by their package, such as "email".

    The classes are the 16 public packages and modules with the most docstrings of 8 words or more. A docstring that
    occurs twice, whitespace apart, counts once, where it is first in the order of ids; so that no input is in both
    parts. In the order of ids, one docstring of a class goes to the train part, the next is tested.
    """
    docstrings: dict[str, str] = {}
    for file in _source_files(library):
        for identifier, docstring in _docstrings(file, library):
            if not identifier.startswith("_") and len(docstring.split()) >= _MIN_INPUT_WORDS:
                docstrings.setdefault(identifier, docstring)
    # the first of equal ones stays
    once = {_fold(text): name for name, text in sorted(docstrings.items(), reverse=True)}
    sizes = Counter(_package(name) for name in once.values())
    classes = sorted(sizes, key=lambda name: (-sizes[name], name))[:_CLASSES]
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for package in classes:
        names = sorted(name for name in once.values() if _package(name) == package)
        parts["train"] += names[::2]
        parts["test"] += names[1::2]
    if len(classes) < 2 or not parts["test"]:  # noqa: PLR2004 -- nothing to tell apart otherwise
        raise _no_docstrings(library, MODULES)
    train, test = (
        Labelled(
            ids=tuple(names),
            inputs=tuple(docstrings[name] for name in names),
            labels=tuple(_package(name) for name in names),
        )
        for names in map(sorted, parts.values())
    )
    return ClassificationDataset(name=MODULES, kind="text", split="test", test=test, train=train)


def _package(identifier: str) -> str:
    return identifier.partition(".")[0]


def _no_docstrings(library: Path, name: str) -> DataError:
    return DataError(
        f"{library} has no docstrings to make {name} from: Python's standard library was "
        "expected with its .py sources, and only compiled or zipped modules are there; use a "
        "Python that was installed with its sources, or another task"
    )


def _source_files(library: Path) -> Iterator[Path]:
    """Yield the sources of Python itself, not those of installed packages."""
    # The same list on all platforms; it holds neither site-packages nor _sysconfigdata.
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
        for file in (library / f"{name}.py", *sorted((library / name).rglob("*.py"))):
            if file.is_file() and _LEFT_OUT_FOLDERS.isdisjoint(file.relative_to(library).parts):
                yield file


def _docstrings(file: Path, library: Path) -> Iterator[tuple[str, str]]:
    """Yield identifier and docstring of the module, its classes, functions and methods."""
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
    """Yield the nodes that can have a docstring, in source order, with their identifiers."""
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
    """Return query and document; None if either is too short."""
    head, *rest = _PARAGRAPH_END.split(docstring, maxsplit=1)
    query, document = _fold(head), "".join(rest).strip()
    long_enough = len(query.split()) >= _MIN_QUERY_WORDS and len(document.split()) >= _MIN_DOCUMENT_WORDS
    return (query, document) if long_enough else None


def _fold(text: str) -> str:
    return " ".join(text.split())
