"""Laws of tables: the same pairs are the same data in whatever format they come, and written as a folder."""

import csv
import io
import json
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.data.labelled import read_folder
from quantdrift.data.tables import frame_table, leaks_of, pairs_of
from support.command_line import cli

# Anything UTF-8 can write: quotation marks, separators and line ends included.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('",;\t\r\n '), max_size=8)
FULL = TEXTS.filter(lambda text: bool(text.strip()))
ROWS = st.tuples(FULL, FULL, st.integers(-1, 2))


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[str, str, int]]:
    rows = draw(st.lists(ROWS, max_size=6, unique_by=lambda row: (row[0].strip(), row[1].strip())))
    first = draw(st.tuples(FULL, FULL))
    return [(*first, 1), *(row for row in rows if (row[0].strip(), row[1].strip()) != tuple(map(str.strip, first)))]


def delimited(rows: list[tuple[str, str, int]], delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    # in Python before 3.13 a lone carriage return is not quoted unless all is
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("query", "document", "score"), *rows])
    return text.getvalue().encode()


@given(tables(), st.booleans())
def test_pairs_are_the_same_data_in_every_format(rows: list[tuple[str, str, int]], ascii_only: bool) -> None:
    records = [{"query": query, "document": document, "score": score} for query, document, score in rows]
    files = {
        "d.csv": delimited(rows, ","),
        "d.tsv": delimited(rows, "\t"),
        "d.jsonl": "\n".join(json.dumps(record, ensure_ascii=ascii_only) for record in records).encode(),
    }
    expected = pairs_of(frame_table(pa.Table.from_pylist(records)), "test")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for name, content in files.items():
            (place / name).write_bytes(content)
            data = read_folder(place / name)
            assert data.fingerprint == expected.fingerprint, name
            assert data.qrels == expected.qrels
        assert cli("data", place / "d.csv", "-o", place / "d")[0] == 0
        assert read_folder(place / "d") == read_folder(place / "d.csv")


@given(tables())
def test_no_label_is_lost_and_no_text_is_there_twice(rows: list[tuple[str, str, int]]) -> None:
    columns = dict(zip(("query", "document", "score"), zip(*rows, strict=True), strict=True))
    data = pairs_of(frame_table(pa.table({name: list(cells) for name, cells in columns.items()})), "test")
    texts = dict(zip(data.document_ids, data.documents, strict=True))
    queries = dict(zip(data.query_ids, data.queries, strict=True))
    assert len({*texts.values()}) == len(texts)
    found = {(queries[query], texts[doc], grade) for query, of in data.qrels.items() for doc, grade in of.items()}
    asked = {query.strip() for query, _, score in rows if score > 0}
    assert found == {(q.strip(), d.strip(), score) for q, d, score in rows if q.strip() in asked}
    assert {*queries.values()} == asked
    assert len(leaks_of(data)) <= 3
