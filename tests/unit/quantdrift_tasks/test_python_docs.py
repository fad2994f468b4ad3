"""Pairs from docstrings: the rules on a library made by hand, then the library of this Python, and as mteb sees it."""

from pathlib import Path

import pytest

from quantdrift.base.errors import DataError
from quantdrift.study.suites import load_suite
from quantdrift_tasks import python_docs

LONG = " ".join(f"word{i}" for i in range(20))


def doc(topic: str) -> str:
    return f'"""The summary line\n    of {topic}.\n\n    {topic}: {LONG}\n    """'


def library(folder: Path, sources: dict[str, str]) -> Path:
    """A folder of modules, given by their paths without the ending."""
    for name, source in sources.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return folder


def test_first_paragraph_is_the_query_and_the_rest_the_document(tmp_path: Path) -> None:
    source = f'"""Encode and\n  decode  JSON data.\n\n{LONG}\n\n    indented\n"""\n'
    data = python_docs.generate(library(tmp_path, {"json": source}))
    assert (data.query_ids, data.queries) == (("q:json",), ("Encode and decode JSON data.",))
    assert (data.document_ids, data.documents) == (("json",), (f"{LONG}\n\n    indented",))
    assert data.qrels == {"q:json": {"json": 1}}


def test_modules_classes_methods_and_functions_are_named(tmp_path: Path) -> None:
    source = f"""\
{doc("module")}
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
        pass
"""
    data = python_docs.generate(library(tmp_path, {"json/decoder": source, "json/__init__": doc("package")}))
    inside = ("", ".Outer", ".Outer.Inner.method", ".elsewhere", ".on_windows")
    assert data.document_ids == ("json", *(f"json.decoder{name}" for name in inside))


@pytest.mark.parametrize(
    "docstring",
    [
        f'"""Three words only.\n\n{LONG}"""',
        '"""A summary of four words.\n\nToo few words in here."""',
        f'"""A summary of four words, and no empty line.\n{LONG}"""',
        "x = 1",
    ],
)
def test_what_is_too_short_is_no_pair(tmp_path: Path, docstring: str) -> None:
    assert python_docs.generate(library(tmp_path, {"json": docstring, "csv": doc("csv")})).document_ids == ("csv",)


def test_the_first_of_equal_ids_queries_or_documents_is_kept(tmp_path: Path) -> None:
    sources = {
        "abc": f"def f():\n    {doc('first')}\ndef f():\n    {doc('second')}\n",
        "csv": f'"""The summary line of first.\n\nother {LONG}"""',
        "json": f'"""Another summary line here.\n\nfirst: {LONG.replace(" ", chr(10))}"""',
    }
    data = python_docs.generate(library(tmp_path, sources))
    assert (data.document_ids, data.queries) == (("abc.f",), ("The summary line of first.",))


def test_only_sources_of_the_standard_library_count(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no docstrings .*\.py"):
        python_docs.generate(tmp_path)
    others = ("requests", "site-packages/requests", "idlelib/run", "_sysconfigdata__linux", "unittest/test/test_case")
    library(tmp_path, {name: doc(name) for name in ("json", *others, "sqlite3/dbapi2", "__phello__/spam")})
    assert python_docs.generate(tmp_path).document_ids == ("json",)


def test_classes_are_packages_and_every_second_docstring_is_tested(tmp_path: Path) -> None:
    functions = "".join(f"def f{n}():\n    {doc(f'json {n}')}\n" for n in range(5))
    others = f'class One:\n    {doc("csv 1")}\n    def two(self): {doc("json 3")}\n    def three(self): "Too short."\n'
    sources = {"json/decoder": functions, "csv": others, "_strptime": doc("private"), "json/tool": doc("json 0")}
    data = python_docs.classify(library(tmp_path, sources))
    assert data.train is not None
    # csv.One.two comes before json.decoder.f3, which says the same, and json.decoder.f0 before json.tool
    assert data.train.ids == ("csv.One", "json.decoder.f0", "json.decoder.f2")
    assert data.test.ids == ("csv.One.two", "json.decoder.f1", "json.decoder.f4")
    assert data.train.labels == data.test.labels == ("csv", "json", "json")
    assert data.test.inputs[1] == f"The summary line\nof json 1.\n\njson 1: {LONG}"
    with pytest.raises(DataError, match="PythonDocsModules"):
        python_docs.classify(tmp_path / "nothing")


def test_no_docstring_of_this_python_is_in_both_parts() -> None:
    data = python_docs.load_modules()
    assert data.train is not None
    parts = [{" ".join(text.split()) for text in part.inputs} for part in (data.train, data.test)]
    assert [len(part) for part in parts] == [len(data.train.ids), len(data.test.ids)]
    assert not parts[0] & parts[1]
    assert set(data.train.labels or ()) == set(data.test.labels or ())
    assert len(set(data.test.labels or ())) == 16


@pytest.mark.slow
def test_the_pairs_of_this_python_keep_the_rules_and_have_the_form_that_mteb_evaluates() -> None:
    pytest.importorskip("mteb")
    from quantdrift_tasks.mteb_tasks import PythonDocsRetrieval  # noqa: PLC0415 -- it imports mteb

    data, task = python_docs.load(), PythonDocsRetrieval()
    assert 1_200 < len(data.queries) < 2_500
    assert all(len(query.split()) >= 4 for query in data.queries)
    assert all(len(document.split()) >= 20 for document in data.documents)
    for column in (data.query_ids, data.queries, data.document_ids, data.documents):
        assert len(set(column)) == len(column)
    assert data.query_ids == tuple(f"q:{document}" for document in sorted(data.document_ids))
    task.metadata._validate_metadata()
    assert task.metadata.is_filled()
    assert task.metadata.dataset["revision"] == python_docs.REVISION  # results of another Python are not reused
    assert not task.data_loaded
    task.load_data(num_proc=1)
    split = task.dataset["default"]["test"]
    assert split["corpus"].to_dict() == {"id": list(data.document_ids), "text": list(data.documents)}
    assert split["queries"].to_dict() == {"id": list(data.query_ids), "text": list(data.queries)}
    assert (split["relevant_docs"], split["top_ranked"]) == (data.qrels, None)


@pytest.mark.slow
def test_mteb_has_the_classes_and_every_image_task_of_the_paper() -> None:
    mteb = pytest.importorskip("mteb")
    from quantdrift_tasks.mteb_tasks import PythonDocsModules  # noqa: PLC0415 -- it imports mteb

    data, task = python_docs.load_modules(), PythonDocsModules()
    task.metadata._validate_metadata()
    assert task.metadata.is_filled()
    task.load_data(num_proc=1)
    assert task.dataset["test"].to_dict() == {"text": list(data.test.inputs), "label": list(data.test.labels or ())}
    entries = load_suite("images").content["data"]
    assert len(entries) == 21 + 5  # five of the tasks as searches for neighbours, too
    for entry in entries:
        metadata = mteb.get_task(entry["mteb"]).metadata
        metadata._validate_metadata()
        assert (metadata.modalities, metadata.type) == (["image"], "ImageClassification")
        assert entry.get("split", "test") in metadata.eval_splits


def test_the_small_task_is_a_quarter_of_the_whole_and_the_short_one_its_shortest_documents() -> None:
    whole, small, short = python_docs.load(), python_docs.load_small(), python_docs.load_short()
    assert sorted(map(len, short.documents)) == sorted(map(len, whole.documents))[:200]
    shortest = [row for row, name in enumerate(whole.document_ids) if name in short.document_ids]
    for part, rows in ((small, range(0, len(whole.queries), 4)), (short, shortest)):
        assert part.query_ids == tuple(whole.query_ids[row] for row in rows)
        assert part.documents == tuple(whole.documents[row] for row in rows)
        assert part.qrels == {query: whole.qrels[query] for query in part.query_ids}
    assert f"of {len(whole.queries):,} docstrings the 200 with the shortest" in short.warnings[0]
    rest = python_docs.load_rest()
    assert {*rest.query_ids, *small.query_ids} == {*whole.query_ids}
    assert not {*rest.document_ids} & {*small.document_ids}
