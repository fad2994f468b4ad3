"""Pairs from docstrings: the rules on a library made by hand, then the library of this Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import DataError
from quantdrift_tasks import python_docs

LONG = " ".join(f"word{i}" for i in range(20))


def doc(topic: str, rest: str = LONG) -> str:
    return f'"""The summary line\n    of {topic}.\n\n    {topic}: {rest}\n    """'


def library(folder: Path, sources: dict[str, str]) -> Path:
    """A folder of modules, given by their paths without the ending."""
    for name, source in sources.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return folder


# --- the rules, on a small library ---------------------------------------------------------------


def test_first_paragraph_is_the_query_and_the_rest_the_document(tmp_path: Path) -> None:
    source = f'"""Encode and\n  decode  JSON data.\n\n{LONG}\n\n    indented\n"""\n'
    data = python_docs.generate(library(tmp_path, {"json": source}))
    assert data.queries == ("Encode and decode JSON data.",)
    assert data.documents == (f"{LONG}\n\n    indented",)
    assert data.document_ids == ("json",)
    assert data.query_ids == ("q:json",)
    assert data.qrels == {"q:json": {"json": 1}}
    assert (data.name, data.split) == ("PythonDocsRetrieval", "test")


def test_modules_classes_methods_and_functions_are_named(tmp_path: Path) -> None:
    source = f"""\
{doc("module")}
import sys
class Outer:
    {doc("outer")}
    class Inner:
        async def method(self):
            {doc("method")}
            def local():
                {doc("local")}
if sys.platform == "win32":
    def on_windows():
        {doc("windows")}
else:
    try:
        def elsewhere():
            {doc("elsewhere")}
    except ImportError:
        def without():
            {doc("without")}
"""
    sources = {"json/decoder": source, "json/__init__": doc("package")}
    data = python_docs.generate(library(tmp_path, sources))
    assert data.document_ids == (
        "json",
        "json.decoder",
        "json.decoder.Outer",
        "json.decoder.Outer.Inner.method",
        "json.decoder.elsewhere",
        "json.decoder.on_windows",
        "json.decoder.without",
    )


@pytest.mark.parametrize(
    "docstring",
    [
        f'"""Three words only.\n\n{LONG}"""',
        '"""A summary of four words.\n\nToo few words in here."""',
        f'"""A summary of four words, and no empty line.\n{LONG}"""',
        '""',
        "x = 1",
    ],
)
def test_what_is_too_short_is_no_pair(tmp_path: Path, docstring: str) -> None:
    data = python_docs.generate(library(tmp_path, {"json": docstring, "csv": doc("csv")}))
    assert data.document_ids == ("csv",)


def test_the_first_of_equal_ids_queries_or_documents_is_kept(tmp_path: Path) -> None:
    twice = f"def f():\n    {doc('first')}\ndef f():\n    {doc('second')}\n"
    sources = {
        "abc": twice,
        "csv": f'"""The summary line of first.\n\nother {LONG}"""',
        "json": f'"""Another summary line here.\n\nfirst: {LONG.replace(" ", chr(10))}"""',
    }
    data = python_docs.generate(library(tmp_path, sources))
    assert data.document_ids == ("abc.f",)
    assert data.queries == ("The summary line of first.",)


def test_only_the_standard_library_counts(tmp_path: Path) -> None:
    names = [
        "json",
        "requests",
        "site-packages/requests",
        "idlelib/run",
        "tkinter/ttk",
        "_sysconfigdata__linux_x86_64-linux-gnu",
        "config-3.11-x86_64-linux-gnu/json",
        "unittest/test/test_case",
        "sqlite3/dbapi2",
        "__phello__/spam",
    ]
    library(tmp_path, {name: doc(name) for name in names})
    assert python_docs.generate(tmp_path).document_ids == ("json",)


def test_a_library_without_sources_says_so(tmp_path: Path) -> None:
    (tmp_path / "json.pyc").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"has no docstrings .* expected with its \.py sources"):
        python_docs.generate(tmp_path)
    with pytest.raises(DataError, match=r"python311\.zip has no docstrings"):
        python_docs.generate(tmp_path / "python311.zip")


# --- the library of this Python -----------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> RetrievalDataset:
    return python_docs.load()


def test_every_pair_keeps_the_rules(data: RetrievalDataset) -> None:
    assert 1_200 < len(data.queries) < 2_500
    assert all(len(query.split()) >= 4 for query in data.queries)
    assert all(len(document.split()) >= 20 for document in data.documents)
    for column in (data.query_ids, data.queries, data.document_ids, data.documents):
        assert len(set(column)) == len(column)
    assert list(data.document_ids) == sorted(data.document_ids)
    assert data.query_ids == tuple(f"q:{document}" for document in data.document_ids)
    assert set(data.query_ids).isdisjoint(data.document_ids)


@pytest.mark.slow
def test_another_call_in_another_process_gives_the_same_and_imports_nothing_of_it(data: RetrievalDataset) -> None:
    code = (
        "import sys; from quantdrift_tasks import python_docs; before = set(sys.modules);"
        "data = python_docs.load(); again = python_docs.load(); new = set(sys.modules) - before;"
        "assert again == data;"
        "assert not new & {'antigravity', 'this', 'webbrowser', 'smtplib', 'xml.dom'}, new;"
        "print(data.fingerprint)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Nothing else is printed: `import this` would print a poem.
    assert done.stdout.split() == [data.fingerprint]
