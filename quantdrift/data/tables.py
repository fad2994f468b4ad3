"""Tables of other programs, .csv, .tsv, .jsonl, .parquet and .xlsx files and data frames, as data.

A row has a query and its document, or an input and its class. The columns are found by their usual names, or named.
"""

import csv
import hashlib
import math
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import DataError
from quantdrift.base.extras import extras_named
from quantdrift.base.records import open_file, refuse_bomb
from quantdrift.base.text import some
from quantdrift.data import retrieval
from quantdrift.data.retrieval import RetrievalDataset, counted

_PAIRS: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "question", "q", "anchor", "search"),
    "document": (
        *("document", "doc", "answer", "passage", "text", "positive", "context", "content", "body", "article"),
        *("paragraph", "chunk", "snippet"),
    ),
    "query_id": ("query_id", "qid", "question_id", "id"),
    "document_id": ("document_id", "doc_id", "docid", "corpus_id", "passage_id", "answer_id"),
    "score": ("score", "relevance", "rel", "label", "grade"),
}
_CLASSES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "sentence", "input", "message", "utterance", "review", "comment", "content", "body"),
    "label": ("label", "class", "category", "intent"),
    "id": ("id",),
}
"""What a column may be, and the usual names of each."""
_BY_LAST = {"query", "document", "text", "label"}
"""What a column is found to be by the last word of its name, too: any number may be an id or a score."""
_MOST_ROWS, _MOST_COLUMNS = 1 << 20, 256
"""Rows that a sheet of Excel can have, and columns in which names are looked for."""
_PER_ROW = 64
"""Bytes that a row takes at least."""
_WORDS = 4
"""Words from which on it is no chance that a query stands in a document."""

Row = tuple[int, Mapping[str, Any]]
"""A row's number in its file, and its cells by column."""
Columns = str | Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows, and what their columns are.

    Attributes:
        where: the file, for messages.
        path: the file; None for a data frame.
        roles: what a column is ("query", "document", ...) to its name.
        columns: the columns that were named, as on the command line; None if none were.
        rows: their numbers and cells.
        note: what was read from which column.
    """

    where: str
    path: Path | None
    roles: Mapping[str, str]
    columns: str | None
    rows: Sequence[Row]
    note: str

    @property
    def about(self) -> dict[str, Any]:
        """What a dataset says of its file."""
        name = "data" if self.path is None else Path(self.path.name.removesuffix(".gz")).stem
        return {"name": name, "path": self.path and self.path.resolve(), "columns": self.columns}

    def text(self, row: Row, role: str) -> str:
        """The text in a cell, stripped; empty if there is none."""
        value = row[1].get(self.roles.get(role, ""))
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
            value = int(value)
        text = str(value) if isinstance(value, int | float) else value
        retrieval.check_string(text, f"{self.where}, line {row[0]}, column {shown(self.roles[role])}")
        return str(text).strip()


def part_of(name: str) -> str:
    """The part of the data in a table of this name: "test" of test.csv.gz; empty of anything else."""
    return Path(name.removesuffix(".gz")).stem if is_table(name) else ""


def is_table(place: str | Path) -> bool:
    """Whether a name is that of a table; a folder is none."""
    return _suffix(place) in _READERS and not Path(place).is_dir()


def read_table(path: Path, columns: Columns | None = None) -> Table:
    """Read a file; `columns` are names of its columns, {"query": "question"} or "query=question".

    Raises:
        DataError: the file cannot be read, or a column is not there, or could be one of two.
        MissingExtraError: what reads spreadsheets is not installed.
    """
    if not path.is_file():
        raise DataError(f"expected a table in {path}; there is no such file")
    return _table(str(path), path, *_READERS[_suffix(path)](path), columns)


def frame_table(frame: Any, columns: Columns | None = None) -> Table:
    """Read a data frame of pandas, polars, pyarrow or whatever else has Arrow's stream; raises as `read_table`."""
    import pyarrow as pa  # noqa: PLC0415 -- slow to load

    try:
        table = pa.table(frame)
        return _table("the data frame", None, table.column_names, [*enumerate(table.to_pylist(), 1)], columns)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"the data frame cannot be read: {error}; expected columns of texts") from error


def _suffix(place: str | Path) -> str:
    return Path(str(place).lower().removesuffix(".gz")).suffix


# --- columns --------------------------------------------------------------------------------------


def _table(where: str, path: Path | None, names: Sequence[str], rows: Sequence[Row], columns: Columns | None) -> Table:
    names = [name for name in names if name]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"{where}: two columns are named {shown(twice[0])}; rename one")
    asked = _asked(columns or {})
    roles = _roles(names, asked, where)
    unread = [shown(name) for name in names if name not in roles.values()]
    read = ", ".join(f"{role} from {shown(name)}" for role, name in roles.items())
    note = f"rows: {len(rows):,}; {read}" + (f"; not read: {some(unread, 8)}" if unread else "")
    return Table(where=where, path=path, roles=roles, columns=named_columns(asked), rows=rows, note=note)


def named_columns(columns: Columns | None) -> str | None:
    """The columns that were named, as on the command line; None if none were."""
    return ",".join(f"{role}={name}" for role, name in _asked(columns or {}).items()) or None


def _asked(columns: Columns) -> dict[str, str]:
    """The columns that were named: role to name, which is empty for a role that no column has."""
    if isinstance(columns, str):
        if not all("=" in part for part in columns.split(",")):
            example = "ROLE=COLUMN with commas between, such as query=question,document=answer"
            raise DataError(f"expected columns as {example}; got {shown(columns)}")
        columns = dict(part.split("=", 1) for part in columns.split(","))
    return {_plain(role): name.strip() for role, name in columns.items()}


def _roles(names: Sequence[str], asked: Mapping[str, str], where: str) -> dict[str, str]:
    """What each column is: in a pair or, if there is a text with a label and no query, of classes."""
    free = [name for name in names if name not in asked.values()]
    usual = {
        role: [name for name in free if _plain(name) in known]
        or [name for name in free if role in _BY_LAST and _last(name) in known]
        for role, known in {**_PAIRS, **_CLASSES}.items()
    }
    labelled = usual["text"] and usual["label"] and not usual["query"] and not {"query", "document"} & asked.keys()
    of_classes = labelled or {"text", "label"} & asked.keys()
    known, needed = (_CLASSES, ["text"]) if of_classes else (_PAIRS, ["query", "document"])
    there = f"the columns are {some(map(shown, names), 20) or 'none'}"
    roles = {role: name for role, name in asked.items() if name}
    for role, name in asked.items():
        if role not in known:
            raise DataError(f"{where}: expected columns to be {', '.join(known)}; got {shown(role)}")
        if name and name not in names:
            raise DataError(f"{where} has no column {shown(name)}; {there}")
    for role in [role for role in known if role not in asked]:
        found = usual[role]
        if role == "query_id":  # a column named id may count rows
            found = [name for name in found if _plain(name) != "id"] or found
        named = f'--columns "{role}={shown(found[0]) if found else "COLUMN"}" (in Python columns=)'
        if len(found) > 1:
            raise DataError(f"{where}: {some(map(shown, found))} could each be the {role}; name it: {named}")
        if not found and role in needed:
            looked = f"looked for {', '.join(known[role])}"
            classes = f', or of classes "text=COLUMN,label={shown(usual["label"][0])}"' if usual["label"] else ""
            raise DataError(f"{where}: no column is the {role}; {there}; {looked}. Name it: {named}{classes}")
        roles.update(dict.fromkeys([role], found[0]) if found else {})
    return roles


def _last(name: str) -> str:
    """What a column holds by the end of its name: a question in customer_question and in question_text."""
    *before, last = _plain(name).split("_")
    return before[-1] if before and last in {"text", "body", "content"} else last


def _plain(text: str) -> str:
    """A text without case and punctuation, with an underscore between words."""
    return re.sub(r"[\W_]+", "_", unicodedata.normalize("NFKC", text).casefold()).strip("_")


# --- files ----------------------------------------------------------------------------------------

Content = tuple[Sequence[str], Sequence[Row]]
"""The columns and the rows."""


def _csv(path: Path) -> Content:
    lines = retrieval.read_lines(path, whole=True)
    first = next(lines, (1, ""))
    delimiter = "\t" if _suffix(path) == ".tsv" else max(",;\t", key=first[1].count)
    reader = csv.reader((line for _, line in chain([first], lines)), delimiter=delimiter, strict=True)
    try:
        grid = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; a quotation mark inside a text is written twice, and a cell has "
            f"at most {csv.field_size_limit():,} characters (JSON lines take longer ones)"
        ) from error
    for number, row in grid:
        if len(row) != len(grid[0][1]):
            expected = f"{len(grid[0][1])} cells between {delimiter!r}, as in the first line; got {len(row)}"
            raise DataError(f"{path}, line {number}: expected {expected}. A text that holds one needs quotation marks")
    return _of_grid(grid)


def _of_grid(grid: Sequence[tuple[int, Sequence[Any]]]) -> Content:
    """The first row names the columns."""
    header = ["" if cell is None else str(cell).strip() for cell in (grid[0][1] if grid else ())]
    return header, [(number, dict(zip(header, cells, strict=True))) for number, cells in grid[1:]]


def _json_lines(path: Path) -> Content:
    rows = [*retrieval.read_objects(path, '{"query": "...", "document": "..."}')]
    return [*dict.fromkeys(name for _, record in rows for name in record)], rows


def _parquet(path: Path) -> Content:
    import pyarrow as pa  # noqa: PLC0415 -- slow to load
    import pyarrow.parquet as pq  # noqa: PLC0415 -- slow to load

    rows, made = list[Row](), 0
    try:
        with open_file(path) as stream:
            names = [field.name for field in pq.read_schema(stream) if not pa.types.is_nested(field.type)]
            file = pq.ParquetFile(stream, read_dictionary=names)
            for batch in file.iter_batches(1024, columns=names, use_threads=False):
                for place in range(len(batch)):  # row by row, as Parquet may store a text once for many rows
                    cells = batch.slice(place, 1).to_pylist()[0]
                    rows.append((len(rows) + 1, cells))
                    made += _PER_ROW + sum(len(cell) for cell in cells.values() if isinstance(cell, str | bytes))
                    refuse_bomb(made, path.stat().st_size)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
    return names, rows


def _sheet(path: Path) -> Content:
    """Read the first sheet of a spreadsheet; a formula is the value that was stored with it."""
    with extras_named(needed_for=f"reading {path.name}"):
        import openpyxl  # noqa: PLC0415 -- an extra
    try:
        with open_file(path) as stream:
            with zipfile.ZipFile(stream) as packed:
                refuse_bomb(sum(member.file_size for member in packed.infolist()), path.stat().st_size)
            sheet = openpyxl.load_workbook(stream, read_only=True, data_only=True).worksheets[0]
            sheet.reset_dimensions()  # what the file says of its own size may be wrong
            there = islice(enumerate(sheet.iter_rows(max_col=_MOST_COLUMNS, values_only=True), 1), _MOST_ROWS)
            return _of_grid([(number, cells) for number, cells in there if any(cell is not None for cell in cells)])
    except Exception as error:  # openpyxl raises a dozen kinds
        raise DataError(f"{path} is not a readable spreadsheet: {error}; save it again, or as CSV in UTF-8") from error


_READERS: Mapping[str, Callable[[Path], Content]] = {
    **{".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines},
    **{".parquet": _parquet, ".xlsx": _sheet},
}


# --- pairs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
    """The queries or the documents, each text once: text to its first id, and every id to its text."""

    what: str
    ids: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, table: Table, row: Row) -> str:
        """Add the text in a row; return its id, which the row gives or which is made of the text."""
        name, text = table.text(row, f"{self.what}_id"), table.text(row, self.what)
        if not text:
            return name  # a document by its id alone, which may have its text elsewhere
        name = name or f"{self.what[0]}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
        self.ids.setdefault(text, name)
        if self.texts.setdefault(name, text) != text or re.search(r"[\x00-\x1f]", name):
            raise DataError(
                f"{table.where}, line {row[0]}: expected one id for one text, without tabs or line breaks; got "
                f'{retrieval.excerpt(name)}. If it is no id of a {self.what}: --columns "{self.what}_id="'
            )
        return name

    def first(self, name: str) -> str:
        """The first id of the text that has an id."""
        return self.ids.get(self.texts.get(name, ""), name)


def pairs_of(table: Table, split: str) -> RetrievalDataset:
    """The queries and documents of a table, whose rows are pairs of them, each text once.

    A row without a query adds its document to the corpus. A row with the id of a document, and no text, judges it.

    Raises:
        DataError: no row has both, an id has two texts, or a pair has two scores.
    """
    queries, documents = _Side("query"), _Side("document")
    pairs, lone = list[tuple[str, str, Row]](), {"nothing": list[str](), "no document": [], "no query": []}
    for row in table.rows:
        document, asked = documents.add(table, row), table.text(row, "query")
        if document and asked:
            pairs.append((queries.add(table, row), document, row))
        else:
            lone["no document" if asked else "no query" if document else "nothing"].append(str(row[0]))
    qrels: dict[str, dict[str, int]] = {}
    for query, document, row in pairs:
        score = table.text(row, "score") if "score" in table.roles else "1"
        column = f"column {shown(table.roles.get('score'))} (--columns score= leaves it out)"
        where = f"{table.where}, line {row[0]}, {column}"
        retrieval.judge(qrels, queries.first(query), documents.first(document), score, where)
    notes = [
        f"{table.note}. Queries: {len(queries.ids):,}, documents: {len(documents.ids):,}, each text once",
        counted("rows left out, as they are empty", lone["nothing"]),
        counted("rows left out, as they have no document", lone["no document"]),
        counted("rows without a query, whose documents are searched", lone["no query"]),
    ]
    if not qrels or not documents.ids:
        raise DataError(
            f"{table.where}: expected rows with a query and its document; got {'; '.join(filter(None, notes))}"
        )
    query_ids, texts, qrels, left_out = retrieval.with_relevant(
        (*queries.ids.values(),), (*queries.ids,), qrels, table.where
    )
    dataset = RetrievalDataset(
        query_ids=query_ids,
        queries=texts,
        document_ids=(*documents.ids.values(),),
        documents=(*documents.ids,),
        qrels=qrels,
        split=split,
        **table.about,
    )
    return replace(dataset, notes=(*filter(None, notes), *left_out, *leaks_of(dataset)))


def leaks_of(dataset: RetrievalDataset) -> list[str]:
    """What makes a search of these data easier than it is, or decides it by chance; a sentence each."""
    if "image" in dataset.kinds:
        return []
    documents = dict(zip(dataset.document_ids, map(_plain, dataset.documents), strict=True))
    first = {text: name for name, text in reversed(documents.items()) if text}
    whole, inside = list[str](), list[str]()
    for name, text in zip(dataset.query_ids, map(_plain, dataset.queries), strict=True):
        relevant = [
            f"_{documents.get(document, '')}_" for document, grade in dataset.qrels.get(name, {}).items() if grade > 0
        ]
        if text in first and name not in (dataset.own or ()):
            whole.append(name)
        elif text.count("_") + 1 >= _WORDS and any(f"_{text}_" in document for document in relevant):
            inside.append(name)
    twins = [name for name, text in documents.items() if first.get(text, name) != name]
    told = [
        counted("queries that are documents word for word, and find these first", whole),
        counted("queries that stand word for word in their relevant document, which is then easy to find", inside),
        counted("documents that differ from an earlier one in case, spaces or punctuation alone: near ties", twins),
    ]
    return [*filter(None, told)]
