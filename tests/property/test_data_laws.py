"""Laws of retrieval data: what is written is read back, and the fingerprint sees texts only."""

import dataclasses
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder

# Anything UTF-8 can write, line separators that are not line ends included.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# An id must survive a tab-separated line.
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)


@st.composite
def datasets(draw: st.DrawFn, *, labelled: bool = True) -> RetrievalDataset:
    documents = draw(st.dictionaries(IDS, TEXTS.map(str.strip), min_size=1, max_size=6))
    queries = draw(st.dictionaries(IDS, TEXTS, min_size=1, max_size=4))
    grades = st.dictionaries(st.sampled_from(sorted(documents)), st.integers(-1, 3), max_size=4)
    relevant = st.tuples(st.sampled_from(sorted(documents)), st.integers(1, 3))
    qrels = {q: draw(grades) | dict([draw(relevant)]) for q in queries} if labelled else {}
    return RetrievalDataset.of(queries, documents, qrels, name="laws")


def write(data: RetrievalDataset, folder: Path, *, ascii_only: bool, shuffle: int) -> None:
    """The folder that `data` would be read from."""
    for name, ids, texts in (("corpus", data.document_ids, data.documents), ("queries", data.query_ids, data.queries)):
        lines = (json.dumps({"_id": i, "text": t}, ensure_ascii=ascii_only) for i, t in zip(ids, texts, strict=True))
        (folder / f"{name}.jsonl").write_bytes("\n".join(lines).encode())
    rows = [f"{q}\t{d}\t{grade}\n" for q, of in data.qrels.items() for d, grade in of.items()]
    random.Random(shuffle).shuffle(rows)
    if rows:
        (folder / "qrels").mkdir()
        (folder / "qrels" / "test.tsv").write_bytes("".join(rows).encode())


@given(st.booleans().flatmap(lambda b: datasets(labelled=b)), st.booleans(), st.integers(0, 99))
def test_a_written_dataset_is_read_back(data: RetrievalDataset, ascii_only: bool, shuffle: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "laws"
        folder.mkdir()
        write(data, folder, ascii_only=ascii_only, shuffle=shuffle)
        again = read_beir_folder(folder)
    assert (again, again.warnings, again.fingerprint) == (data, data.warnings, data.fingerprint)


@given(datasets(), st.data())
def test_any_changed_text_id_or_grade_changes_the_fingerprint(data: RetrievalDataset, draw: st.DataObject) -> None:
    part = draw.draw(st.sampled_from(["queries", "documents", "query_ids", "document_ids"]))
    values = list(getattr(data, part))
    where = draw.draw(st.integers(0, len(values) - 1))
    values[where] = draw.draw(IDS.filter(lambda text: text not in values))
    # Without labels, because with a new id they might no longer apply to anything.
    plain = dataclasses.replace(data, qrels={})
    change: dict[str, Any] = {part: tuple(values)}
    assert dataclasses.replace(plain, **change).fingerprint != plain.fingerprint

    query = draw.draw(st.sampled_from(sorted(data.qrels)))
    document = draw.draw(st.sampled_from(sorted(data.qrels[query])))
    qrels = {q: dict(grades) for q, grades in data.qrels.items()}
    qrels[query][document] += 1
    assert dataclasses.replace(data, qrels=qrels).fingerprint != data.fingerprint
