"""Tables as data: pairs and classes by hand, then the ways in which a file is broken or hostile."""

import csv
import gzip
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quantdrift.api import drift
from quantdrift.base.errors import DataError, MissingExtraError
from quantdrift.data.labelled import ClassificationDataset, is_place, read_folder
from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.data.tables import frame_table, leaks_of, pairs_of, read_table
from support.beir_folder import write_beir_folder
from support.command_line import cli
from support.hostile_text import HOSTILE, check_clean

PAIRS = [
    ("how do I start?", "Press the button."),
    ("how do I stop?", "Pull the plug."),
    ("and then?", "Pull the plug."),
]
Read = Callable[..., Any]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes a file, and reads it."""

    def read_text(content: str | bytes, name: str = "faq.csv", columns: Any = None) -> Any:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_folder(tmp_path / name, columns=columns)

    return read_text


def csv_text(*rows: tuple[object, ...], head: tuple[str, ...] = ("question", "answer")) -> str:
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in (head, *rows))


# --- pairs -----------------------------------------------------------------------------------


def test_each_text_counts_once_and_each_row_is_a_label(read: Read) -> None:
    data = read(csv_text(*PAIRS, PAIRS[0]))
    assert (data.name, data.split, data.path.name) == ("faq", "test", "faq.csv")
    assert data.queries == ("how do I start?", "how do I stop?", "and then?")
    assert data.documents == ("Press the button.", "Pull the plug.")
    first, second = data.document_ids
    assert [*data.qrels.values()] == [{first: 1}, {second: 1}, {second: 1}]
    assert all(re.fullmatch("q-[0-9a-f]{12}", name) for name in data.query_ids)


def test_made_ids_stay_where_rows_are_moved_or_added(read: Read) -> None:
    data, moved = read(csv_text(*PAIRS)), read(csv_text(("new?", "New."), *reversed(PAIRS)))
    assert {*data.query_ids} < {*moved.query_ids}
    assert moved.qrels.items() > data.qrels.items()


def test_ids_and_scores_are_read_where_there_are_columns(read: Read) -> None:
    head = ("Query ID", "Query", "Doc-ID", "Passage", "Relevance")
    rows = [(7, "a?", "d1", "A.", 2), (7, "a?", "d2", "B.", 0), (8, "b?", "d2", "B.", "1.0"), (9, "c?", "d1", "A.", -1)]
    data = read(csv_text(*rows, head=head))
    assert data.qrels == {"7": {"d1": 2, "d2": 0}, "8": {"d2": 1}}
    assert (data.query_ids, data.document_ids) == (("7", "8"), ("d1", "d2"))
    assert any("queries left out" in note and "(9)" in note for note in data.warnings)


def test_a_label_can_name_a_document_of_another_row_or_one_that_is_not_there(read: Read) -> None:
    head = ("query", "document_id", "document")
    data = read(csv_text(("a?", "d1", ""), ("", "d1", "A."), ("b?", "d1", "A."), ("b?", "d9", ""), head=head))
    assert [*data.qrels.values()] == [{"d1": 1}, {"d1": 1, "d9": 1}]
    assert "judgements of documents not in the corpus: 1 (d9)" in data.warnings


def test_a_second_id_of_a_text_means_the_first(read: Read) -> None:
    head = ("query", "document_id", "document")
    data = read(csv_text(("a?", "d1", "A."), ("b?", "d2", "A."), ("c?", "d2", ""), head=head))
    assert [*data.qrels.values()] == [{"d1": 1}] * 3


def test_what_is_left_out_is_counted(read: Read) -> None:
    data = read(csv_text(*PAIRS, ("", ""), ("alone?", " "), ("", "Searched too.")))
    assert [note for note in data.warnings if note.startswith("rows ")] == [
        "rows left out, as they are empty: 1 (5)",
        "rows left out, as they have no document: 1 (6)",
        "rows without a query, whose documents are searched: 1 (7)",
    ]
    assert "alone?" not in data.queries
    assert "Searched too." in data.documents


def test_what_gives_answers_away_is_told(read: Read) -> None:
    data = read(
        csv_text(
            ("what is it like, then?", "You ask what is it like then? Fine."),
            ("PULL the plug!", "Somewhere else."),
            ("which one?", "pull the  plug"),
            ("of what kind?", "Pull the plug."),
        )
    )
    whole, inside, twins = leaks_of(data)
    ids = dict(zip(data.queries, data.query_ids, strict=True))
    assert ids["PULL the plug!"] in whole
    assert ids["what is it like, then?"] in inside
    assert twins.endswith(f"1 ({data.document_ids[3]})")
    assert {whole, inside, twins} <= {*data.warnings}
    assert leaks_of(read(csv_text(*PAIRS))) == []


def test_a_query_that_is_left_out_of_its_own_ranking_gives_nothing_away() -> None:
    data = RetrievalDataset.of({"1": "same", "2": "b"}, {"1": "same", "3": "c"}, {"1": {"3": 1}, "2": {"3": 1}})
    assert leaks_of(data) == []


# --- formats ---------------------------------------------------------------------------------


def test_every_format_gives_the_same_data(tmp_path: Path, read: Read) -> None:
    expected = read(csv_text(*PAIRS)).fingerprint
    records = [{"question": question, "answer": answer} for question, answer in PAIRS]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    tabs = "".join("\t".join(row) + "\n" for row in (("question", "answer"), *PAIRS))
    assert read(lines, "faq.jsonl").fingerprint == expected
    assert read(tabs, "faq.tsv").fingerprint == expected
    assert read(tabs.replace("\t", ";").replace("\n", "\r\n"), "faq.CSV").fingerprint == expected
    assert read(b"\xef\xbb\xbf" + csv_text(*PAIRS).encode()).fingerprint == expected
    assert read(gzip.compress(csv_text(*PAIRS).encode()), "faq.csv.gz").fingerprint == expected
    table = pa.Table.from_pylist(records)
    pq.write_table(table, tmp_path / "faq.parquet")
    assert read_folder(tmp_path / "faq.parquet").fingerprint == expected
    assert pairs_of(frame_table(table), "test").fingerprint == expected


def test_a_data_frame_is_read_without_pandas_being_needed() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([*PAIRS, (None, float("nan"))], columns=["ask", "say"], index=[3, 1, 2, 9])
    data = pairs_of(frame_table(frame, {"query": "ask", "document": "say"}), "test")
    assert (len(data.queries), data.name, data.path) == (3, "data", None)
    numbers = pandas.DataFrame({"id": [7, None], "query": ["a?", None], "answer": ["A.", "B."]})  # 7 becomes 7.0
    assert pairs_of(frame_table(numbers), "test").query_ids == ("7",)
    with pytest.raises(DataError, match=r"no column is the query.*ask, say"):
        drift("minilm", "W4-rtn", frame)
    with pytest.raises(DataError, match="cannot be read"):
        frame_table(pandas.DataFrame({"query": ["a", object()]}))


def test_a_spreadsheet_is_read_and_a_formula_is_what_it_was_last(tmp_path: Path, read: Read) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="the extra 'xlsx' is not installed")
    book = openpyxl.Workbook()
    for row in (
        ("question", "answer"),
        *PAIRS,
        (None, None),
        ('=HYPERLINK("http://x","y")', "Never asked."),
        (404, "Gone."),
    ):
        book.active.append(row)
    book.save(tmp_path / "faq.xlsx")
    data = read_folder(tmp_path / "faq.xlsx")
    assert data.queries == (*read(csv_text(*PAIRS)).queries, "404")
    assert "rows without a query, whose documents are searched: 1 (6)" in data.warnings


def test_without_its_reader_a_spreadsheet_names_the_extra(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match=r'pip install "quantdrift\[xlsx\]"'):
        read(b"", "faq.xlsx")


# --- classes ---------------------------------------------------------------------------------


def test_texts_with_labels_and_no_query_are_classes(read: Read, tmp_path: Path) -> None:
    data = read(csv_text(("hi", "greeting"), ("", "none"), ("bye", "parting"), head=("text", "label")), "test.csv")
    assert isinstance(data, ClassificationDataset)
    assert (data.test.inputs, data.test.labels) == (("hi", "bye"), ("greeting", "parting"))
    assert any("no text: 1" in warning for warning in data.warnings)
    lines = '{"text": "hi", "label": "greeting"}\n{"text": "bye", "label": "parting"}\n'
    as_file = read(lines, "test.jsonl")
    assert as_file.fingerprint == read_folder(tmp_path).fingerprint  # whose test.jsonl it is
    other = read(csv_text(("hi", "a"), head=("ticket", "team")), "t.csv", "text=ticket,label=team")
    assert other.test.labels == ("a",)
    with pytest.raises(DataError, match="line 3: expected a label"):
        read(csv_text(("hi", "a"), ("ho", ""), head=("text", "label")))


TICKETS = [("my card is gone", "lost"), ("where is my money?", "transfer"), ("it was stolen", "lost")]


@pytest.mark.parametrize(("ending", "head"), [(".csv", ("message", "category")), (".csv.gz", ("Text", "Frage"))])
def test_a_folder_of_tables_is_the_parts_of_classes(tmp_path: Path, ending: str, head: tuple[str, str]) -> None:
    columns = None if head[1] == "category" else f"text={head[0]},label={head[1]}"
    for part, rows in {"train": TICKETS, "test": TICKETS[:2], "other": [("x", "y")]}.items():
        content = csv_text(*rows, head=head).encode()
        (tmp_path / f"{part}{ending}").write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    data = read_folder(tmp_path, columns=columns)
    assert isinstance(data, ClassificationDataset)
    assert data.train
    assert [*zip(data.train.inputs, data.train.labels or (), strict=True)] == TICKETS
    assert (data.test.inputs, data.columns) == (("my card is gone", "where is my money?"), columns)
    told = f"rows: 3; text from {head[0]}, label from {head[1]}"
    assert data.warnings[:2] == (f"test{ending}: {told.replace('3', '2')}", f"train{ending}: {told}")
    options = ["--columns", columns] if columns else []
    code, out, _ = cli("data", tmp_path, *options, "-o", tmp_path / "written")
    assert (code, out.splitlines()[0]) == (0, f"{tmp_path}: test 2 inputs of 2 classes; train 3 inputs of 2 classes")
    assert read_folder(tmp_path / "written").fingerprint == data.fingerprint
    (tmp_path / "train.tsv").touch()
    with pytest.raises(DataError, match="two tables of 'train'"):
        read_folder(tmp_path, columns=columns)
    (tmp_path / "corpus.jsonl").touch()  # a search, whose columns have names
    with pytest.raises(DataError, match="Leave them out"):
        read_folder(tmp_path, columns="text=Text,label=Frage")


def test_a_table_of_classes_alone_says_what_a_probe_needs_and_how_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "tickets.csv").write_text(csv_text(*TICKETS, head=("message", "category")))
    code, out, _ = cli("data", tmp_path / "tickets.csv")
    out = " ".join(out.split())
    assert (code, "name a folder with test.csv and train.csv" in out, "quantdrift run" in out) == (0, True, False)
    (tmp_path / "other.csv").write_text(csv_text(*TICKETS, head=("said", "category")))
    assert 'or of classes "text=COLUMN,label=category"' in cli("data", tmp_path / "other.csv")[2]
    (tmp_path / "test.csv").write_text(csv_text(*PAIRS))
    with pytest.raises(DataError, match=r"expected an input and its class a row.*--columns text="):
        read_folder(tmp_path)


# --- columns ---------------------------------------------------------------------------------


def test_columns_can_be_named_and_left_out(read: Read) -> None:
    head = ("Frage", "Antwort", "context", "label")
    rows = [("a?", "A.", "x", "billing"), ("b?", "B.", "y", "setup")]
    text = csv_text(*rows, head=head)
    data = read(text, columns="query=Frage,document=Antwort,score=")
    assert (data.queries, data.documents) == (("a?", "b?"), ("A.", "B."))
    assert data.columns == "query=Frage,document=Antwort,score="
    assert read(text, columns=data.columns) == read(
        text, columns={"query": "Frage", "document": "Antwort", "score": ""}
    )
    assert data.warnings[0].endswith("not read: context, label. Queries: 2, documents: 2, each text once")


def test_a_column_that_is_named_is_nothing_else(read: Read) -> None:
    data = read(csv_text(("7", "a?", "A."), head=("id", "query", "answer")), columns="document_id=id")
    assert data.document_ids == ("7",)
    assert data.query_ids != ("7",)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ("customer_question,Best Answer,team", ("customer_question", "Best Answer")),
        ("question text,document_content,page", ("question text", "document_content")),
        ("answer,my_answer,user query", ("user query", "answer")),  # a whole name comes first
        ("old_question,question_id,question,help_article", ("question", "help_article")),
    ],
)
def test_the_last_word_of_a_name_tells_where_no_name_is_usual(
    tmp_path: Path, head: str, found: tuple[str, str]
) -> None:
    (tmp_path / "faq.csv").write_text(f"{head}\n{head}\n")
    roles = read_table(tmp_path / "faq.csv").roles
    assert (roles["query"], roles["document"]) == found


def test_the_last_word_of_a_name_makes_no_id_and_no_score(tmp_path: Path) -> None:
    (tmp_path / "faq.csv").write_text("user_id,question,answer,spam_score\n1,a,b,0.2\n")
    assert read_table(tmp_path / "faq.csv").roles == {"query": "question", "document": "answer"}


@pytest.mark.parametrize(
    ("head", "columns", "said"),
    [
        ("a_question,b_question,answer", None, "a_question, b_question could each be the query"),
        ("a,b", None, "no column is the query; the columns are a, b; looked for query, question"),
        ("query,b", None, 'no column is the document.*--columns "document=COLUMN"'),
        ("query,answer,context", None, 'answer, context could each be the document.*"document=answer"'),
        ("query,answer,answer", None, "two columns are named answer"),
        ("query,answer", "query=nope", "has no column nope; the columns are query, answer"),
        ("query,answer", "quary=query", "expected columns to be query, document, .*; got quary"),
        ("query,answer", "query", "expected columns as ROLE=COLUMN"),
        ("query,document_id,answer_id,answer", None, "could each be the document_id"),
    ],
)
def test_columns_that_do_not_tell_are_refused(read: Read, head: str, columns: str | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(f"{head}\n", columns=columns)


def test_columns_are_of_tables_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Leave them out"):
        read_folder(tmp_path, columns="query=a")
    with pytest.raises(DataError, match="leave them out"):
        drift("minilm", "W4-rtn", "PythonDocsShort", columns={"query": "a"})
    assert is_place("faq.csv")
    assert is_place("faq.jsonl.gz")
    assert not is_place("faq.json")
    (tmp_path / "folder.csv").mkdir()
    write_beir_folder(tmp_path / "folder.csv" / "in", {"q": "a"}, {"d": "b"})
    assert read_folder(tmp_path / "folder.csv" / "in").queries == ("a",)


# --- broken and hostile files ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no column is the query; the columns are none"),
        ("question,answer\n", "expected rows with a query and its document; got rows: 0"),
        ("question,answer\n,\n", "expected rows with a query"),
        ("question,answer\na?,A,B\n", "line 2: expected 2 cells between ',', as in the first line; got 3"),
        ("question,answer\na?\n", "line 2: expected 2 cells"),
        ('question,answer\na?,"A\n', "line 2: unexpected end of data"),
        ('question,answer\na?,"A" b\n', "line 2: "),
        ("question,answer\ra?,A\r", "line 1: "),
        (f"question,answer\na?,{'x' * (csv.field_size_limit() + 1)}\n", "at most 131,072 characters"),
        ("question,answer\na?,A\n".encode("utf-16"), "line 1: expected UTF-8; 0xff"),
        (b"question,answer\na?,caf\xe9\n", "line 2: expected UTF-8; 0xe9"),
        ("query,answer,score\na?,A,0.7\n", r"line 2, column score \(--columns score= leaves it out\).*whole number"),
        ("query,answer,score\na?,A,0\n", "nothing is relevant"),
        ("query,answer,score\na?,A,1\na?,A,2\n", "line 3.*two grades, 1 and 2"),
        ("id,query,answer\n1,a?,A\n1,b?,B\n", "line 3: expected one id for one text"),
        ('id,query,answer\n"1\n2",a?,A\n', "without tabs or line breaks"),
    ],
)
def test_a_broken_table_is_refused_with_its_place(read: Read, content: str | bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(content)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "line 1: expected a JSON object"),
        ("{", "line 1, column 2"),
        ('{"query": ["a"], "answer": "b"}', "line 1, column query must be a string; got list"),
        ('{"query": "\\ud800", "answer": "b"}', "half of a surrogate pair"),
        ("[" * 200_000, "nested"),
    ],
)
def test_json_lines_that_are_no_rows_are_refused(read: Read, line: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(line, "faq.jsonl")


def test_files_that_are_not_what_their_names_say_are_refused(tmp_path: Path, read: Read) -> None:
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read(b"PAR1 and no more", "faq.parquet")
    with pytest.raises(DataError, match="no such file"):
        read_folder(tmp_path / "nowhere.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="no such file"):
        read_folder(tmp_path / "pipe.csv")


def test_a_table_that_unpacks_without_end_is_refused(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantdrift.base.records._ALWAYS", 1 << 20)
    text = "x" * 10_000
    pq.write_table(pa.table({"query": [text] * 2_000, "answer": [text] * 2_000}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    with pytest.raises(DataError, match="unpack"):
        read_folder(tmp_path / "bomb.parquet")
    pq.write_table(pa.table({"query": pa.nulls(2_000_000, pa.string())}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="unpack"):
        read_folder(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="unpack"):
        read(gzip.compress(csv_text(*[(text, "A.")] * 2_000).encode()), "faq.csv.gz")


def test_a_spreadsheet_that_lies_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    pytest.importorskip("openpyxl", reason="the extra 'xlsx' is not installed")
    with pytest.raises(DataError, match="not a readable spreadsheet"):
        read(b"PK\x03\x04 and no more", "faq.xlsx")
    monkeypatch.setattr("quantdrift.base.records._ALWAYS", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/workbook.xml", b" " * (1 << 22))
    with pytest.raises(DataError, match="unpack"):
        read_folder(tmp_path / "bomb.xlsx")


def test_a_spreadsheet_whose_rows_are_far_apart_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.data.tables._MOST_ROWS", 1_000)
    openpyxl = pytest.importorskip("openpyxl", reason="the extra 'xlsx' is not installed")
    book = openpyxl.Workbook()
    for row in (("question", "answer"), *PAIRS):
        book.active.append(row)
    book.save(tmp_path / "whole.xlsx")
    with zipfile.ZipFile(tmp_path / "whole.xlsx") as whole, zipfile.ZipFile(tmp_path / "far.xlsx", "w") as far:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("sheet1.xml"):
                content = content.replace(b'r="4"', b'r="99999999999"').replace(b'"A1:B4"', b'"A1:XFD1048576"')
            far.writestr(name, content)
    assert len(read_folder(tmp_path / "far.xlsx").queries) == 2


# --- quantdrift data -------------------------------------------------------------------------


def test_the_command_writes_a_folder_that_is_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faq.csv").write_text(csv_text(*PAIRS, head=("ask", "say")))
    columns = ["--columns", "query=ask,document=say"]
    code, out, _ = cli("data", "faq.csv", *columns, "-o", "faq")
    assert (code, out.splitlines()[0]) == (0, "faq.csv: 3 queries, 2 documents")
    assert "quantdrift run minilm@W8 --data faq" in out
    assert "how do I start?" in out
    data, folder = read_folder(Path("faq.csv"), columns=columns[1]), read_beir_folder("faq")
    assert (folder.fingerprint, folder) == (data.fingerprint, data)
    shown = json.loads(cli("data", "faq", "--json")[1])
    assert (shown["digest"], shown["n_queries"]) == (data.fingerprint, 3)
    code, _, said = cli("data", "faq.csv", *columns, "-o", "faq")
    assert (code, "is there already" in said) == (2, True)


def test_the_command_tells_of_a_folder_what_gives_answers_away(tmp_path: Path) -> None:
    folder = write_beir_folder(tmp_path / "in", {"q": "same"}, {"d": "Same!", "e": "so"}, {"q": {"e": 1, "gone": 1}})
    notes = json.loads(cli("data", folder, "--json")[1])["notes"]
    assert [note.rpartition(": ")[2] for note in notes] == ["1 (gone)", "1 (q)"]


def test_nothing_in_a_file_is_obeyed(tmp_path: Path) -> None:
    rows = [{"query": HOSTILE, "document": f"answer {HOSTILE}", HOSTILE: "x"}]
    (tmp_path / "faq.jsonl").write_text(json.dumps(rows[0]))
    code, out, _ = cli("data", tmp_path / "faq.jsonl")
    assert code == 0
    check_clean(out, wrapped=True)
    (tmp_path / "bad.jsonl").write_text(json.dumps({HOSTILE: "x", "query": "a"}))
    code, _, said = cli("data", tmp_path / "bad.jsonl")
    assert code == 2
    check_clean(said, wrapped=True)
