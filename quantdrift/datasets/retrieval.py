"""Retrieval data: the texts that are embedded and, where there are any, their relevance labels.

Whatever would make a figure wrong is an error; whatever only deserves a word is in `warnings`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import operator
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from itertools import chain, islice
from pathlib import Path
from typing import Any

from quantdrift.errors import DataError, UnknownNameError
from quantdrift.records import parse_json

LAYOUT = (
    'corpus.jsonl ({"_id": "d1", "title": "...", "text": "..."} a line; the title is optional), '
    'queries.jsonl ({"_id": "q1", "text": "..."} a line) and, for relevance metrics, '
    "qrels/<split>.tsv (query id, document id and score, tab-separated, or TREC's four columns); "
    "each may end in .gz"
)

_N_COLUMNS = 3
_OF_TREC = 4
_HEADER_SCORES = frozenset({"score", "relevance", "rel", "label", "grade"})
# At most nine digits, because mteb keeps scores as int32; "1.0" is what a data frame writes.
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]{1,9})(\.0*)?")
_SHOWN = 5
_EXCERPT = 60


def find_file(folder: Path, name: str) -> Path:
    """The file of that name, plain or gzipped; raises DataError telling what is there instead."""
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    there = some(sorted(entry.name for entry in folder.iterdir())) or "nothing"
    raise DataError(f"{folder} has no {name}; it holds {there}. Expected {LAYOUT}")


def find_qrels(folder: Path, split: str) -> Path | None:
    """The qrels file of a split, or None when the folder has labels of no split at all."""
    # Gzipped ones first, so that a plain file of the same split replaces them.
    files = {
        file.name.removesuffix(ending): file for ending in (".tsv.gz", ".tsv") for file in folder.glob(f"*{ending}")
    }
    if files and split not in files:
        raise DataError(f"{folder} has no split {split!r}; it has {some(sorted(files))}")
    return files.get(split)


def read_texts(file: Path, *, titled: bool) -> dict[str, str]:
    """The text of every id of a JSON lines file, in the order of the file."""
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in read_lines(file):
        where = f"{file}, line {number}"
        identifier, text = _parse_record(line, where, titled=titled)
        if identifier in texts:
            first = f"{identifier!r} is already on line {lines[identifier]}"
            raise DataError(f"{where}: every _id must be unique; {first}; rename or remove one")
        texts[identifier], lines[identifier] = text, number
    if not texts:
        raise DataError(f"{file} is empty; at least one line was expected. Expected {LAYOUT}")
    return texts


def read_qrels(file: Path) -> tuple[dict[str, dict[str, int]], list[str]]:
    """The judgements of a qrels file of either form, which its first line tells.

    BEIR has three columns with tabs between, with or without a header line; TREC four, query, 0, document and grade,
    with any whitespace between.
    """
    qrels: dict[str, dict[str, int]] = {}
    conflicting: list[str] = []
    separator: str | None = "\t"
    n_columns = _N_COLUMNS
    for position, (number, line) in enumerate(read_lines(file)):
        where = f"{file}, line {number}"
        if position == 0 and line.count("\t") != _N_COLUMNS - 1 and len(line.split()) == _OF_TREC:
            separator, n_columns = None, _OF_TREC
        columns = line.split(separator)
        if len(columns) != n_columns:
            expected = "expected 3 tab-separated columns (query id, document id, score)"
            if separator is None:
                expected = "expected 4 columns, as line 1 has (query, 0, document, grade)"
            elif position == 0:
                expected += ", or TREC's 4 (query, 0, document, grade)"
            raise DataError(f"{where}: {expected}; got {len(columns)} in {excerpt(line)}")
        query, document, score = columns[0], columns[-2], columns[-1]
        if position == 0 and score.strip().lower() in _HEADER_SCORES:
            continue
        whole = _WHOLE_NUMBER.fullmatch(score.strip())
        if whole is None:
            expected = f"the score, column {n_columns}, must be a whole number"
            raise DataError(f"{where}: {expected}; got {excerpt(score)}; round or regrade it")
        documents = qrels.setdefault(query, {})
        if documents.get(document, int(whole[1])) != int(whole[1]):
            conflicting.append(query)
        documents[document] = int(whole[1])
    if not qrels:
        raise DataError(f"{file} holds no judgement; remove it to measure drift without labels")
    return qrels, conflicting


def check_string(value: object, what: str) -> None:
    """Raise DataError unless `value` is a string that UTF-8, and so a tokenizer, can represent."""
    if not isinstance(value, str):
        raise DataError(f"{what} must be a string; got {type(value).__name__} {excerpt(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x} at character {error.start + 1}"
        raise DataError(f"{what} holds half of a surrogate pair, {half}; remove it") from error


def some(names: Iterable[str]) -> str:
    """The first few names, comma-separated, with "..." where there are more."""
    shown = list(islice(names, _SHOWN + 1))
    return ", ".join(shown[:_SHOWN] + ["..."] * (len(shown) > _SHOWN))


def excerpt(value: object) -> str:
    """The beginning of what was found, for a message."""
    shown = value[:_EXCERPT] if isinstance(value, str) else value
    return repr(shown)[: _EXCERPT + 2] + "..." * (isinstance(value, str) and shown != value)


def _parse_record(line: str, where: str, *, titled: bool) -> tuple[str, str]:
    """The id and the text of one line."""
    try:
        record = parse_json(line)
    except json.JSONDecodeError as error:
        at = f"{where}, column {error.colno}"
        found = excerpt(line[error.pos :]) if line[error.pos :] else "the end of the line"
        raise DataError(f"{at}: expected a JSON object; {error.msg} at {found}") from error
    except ValueError as error:  # a huge integer, or very deep nesting
        raise DataError(f"{where}: expected a JSON object; {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object; got {excerpt(line)}")
    for key in ("_id", "text"):
        if key not in record:
            keys = some(record) or "none"
            raise DataError(f'{where}: "{key}" is missing; the keys are {keys}. Expected {LAYOUT}')
    identifier, text, title = record["_id"], record["text"], record.get("title")
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    title = title if titled and title is not None else ""
    for key, value in (("_id", identifier), ("title", title), ("text", text)):
        check_string(value, f'{where}: "{key}"')
    if not identifier:
        raise DataError(f'{where}: "_id" is empty; every line needs an id')
    if titled:
        text = (f"{title} {text}" if title else text).strip()
    return identifier, text


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, numbered from 1; only a newline byte ends a line."""
    number = 0
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}, byte {error.start + 1} of the line, is not"
        message = f"{file}, line {number}: expected UTF-8; {byte}; save the file as UTF-8"
        raise DataError(message) from error
    except (OSError, EOFError, zlib.error) as error:
        message = f"{file} cannot be read beyond line {number}: {error}; copy it here again"
        raise DataError(message) from error


Texts = Mapping[str, str | Mapping[str, str]] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalDataset:
    """The queries, documents and relevance labels of one split, checked when it is made.

    Args:
        name: what reports call it.
        query_ids: one unique id a query.
        queries: their texts, in the same order.
        document_ids: one unique id a document.
        documents: their texts, in the same order; ties in a ranking break by this order.
        qrels: query id to document id to grade, relevant if above 0; empty if there are no labels. Copied, so that
            changing the argument later does not change the dataset.
        split: the split that the labels belong to, such as "test".
        notes: what was tolerated or left out in reading; `warnings` begins with it.
        path: the folder it was read from, where it was.

    Raises:
        DataError: as `validate` says.
    """

    name: str
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    document_ids: tuple[str, ...]
    documents: tuple[str, ...]
    qrels: Mapping[str, Mapping[str, int]] = field(hash=False)
    split: str
    notes: tuple[str, ...] = field(default=(), compare=False)
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        try:
            qrels = {
                query: {document: operator.index(grade) for document, grade in grades.items()}
                for query, grades in self.qrels.items()
            }
        except TypeError as error:
            message = f"dataset {self.name!r}: every grade in qrels must be an integer; {error}"
            raise DataError(message) from error
        object.__setattr__(self, "qrels", qrels)
        self.validate()

    @classmethod
    def of(
        cls,
        queries: Texts,
        documents: Texts,
        qrels: Mapping[str, Mapping[str, int]] | None = None,
        *,
        name: str = "data",
    ) -> RetrievalDataset:
        """A dataset of texts in memory.

        >>> RetrievalDataset.of(["which?"], {"d1": "this", "d2": "that"}).document_ids
        ('d1', 'd2')

        Args:
            queries: id to text, or texts, which are called "0", "1", ...
            documents: likewise; a text may be {"title", "text"}, which are joined as in beir.
            qrels: query id to document id to grade, relevant if above 0.
            name: what reports call it.

        Raises:
            DataError: as the class.
        """
        (query_ids, query_texts), (document_ids, document_texts) = (_named(texts) for texts in (queries, documents))
        return cls(
            name=name,
            query_ids=query_ids,
            queries=query_texts,
            document_ids=document_ids,
            documents=document_texts,
            qrels=qrels or {},
            split="test",
        )

    def validate(self) -> None:
        """Check that the parts fit together; runs by itself when a dataset is made.

        Raises:
            DataError: there are no queries or no documents, ids and texts differ in number, an id
                occurs twice, a text is not a string or not writable as UTF-8, or there are
                judgements but none names a query and a document that are both there.
        """
        where = f"dataset {self.name!r}"
        _check_texts(self.query_ids, self.queries, where, "query", "queries")
        _check_texts(self.document_ids, self.documents, where, "document", "documents")
        _check_match(self.qrels, self.query_ids, self.document_ids, where)

    @property
    def fingerprint(self) -> str:
        """A stable hex digest of ids, texts and judgements, whatever order the qrels came in.

        Name, split and notes are not part of it: they change no score.
        """
        digest = hashlib.blake2b(digest_size=16)
        judgements = sorted((query, doc, str(grade)) for query, doc, grade in _flat(self.qrels))
        texts = (self.query_ids, self.queries, self.document_ids, self.documents)
        for part in (*texts, tuple(chain.from_iterable(judgements))):
            digest.update(len(part).to_bytes(8, "little"))
            for text in part:
                raw = text.encode()
                # The length in front keeps ("ab", "c") and ("a", "bc") apart.
                digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is tolerated but worth telling, one sentence each."""
        queries = dict(zip(self.query_ids, self.queries, strict=True))
        documents = dict(zip(self.document_ids, self.documents, strict=True))
        found = [
            ("query is", "queries are", "empty", _blank(queries)),
            ("document is", "documents are", "empty", _blank(documents)),
        ]
        judgements = _flat(self.qrels)
        if judgements:
            strays = [query for query, _, _ in judgements if query not in queries]
            lost = [document for _, document, _ in judgements if document not in documents]
            bare = [query for query in queries if not self.qrels.get(query)]
            found += [
                ("judgement names", "judgements name", "queries that are not there", strays),
                ("judgement names", "judgements name", "documents not in the corpus", lost),
                ("query has", "queries have", "no judgement", bare),
            ]
        told = [_counted(ids, one, many, what) for one, many, what, ids in found if ids]
        if not judgements:
            told.append("no relevance labels: drift is measured, relevance metrics are not")
        return (*self.notes, *told)


def read_beir_folder(path: str | Path, split: str = "test") -> RetrievalDataset:
    """Read a folder in BEIR layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv.

    The text of a document is its title, a space and its text, stripped, as in mteb and beir. With
    labels, only queries that have a judgement above 0 are kept, because relevance is undefined for
    the others; mteb leaves out those without any judgement, and scores 0 for those that have only
    judgements of 0 or below. Without labels of any split, every query is kept.

    Args:
        path: the folder; each of its files may be plain or gzipped.
        split: which labels to read.

    Returns:
        The dataset, named after the folder; `warnings` tells what was left out or tolerated.

    Raises:
        DataError: a file is missing or unreadable, or a line of it is broken; names file and line.
    """
    folder = Path(path)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {problem}; expected a folder that holds {LAYOUT}")
    documents = read_texts(find_file(folder, "corpus.jsonl"), titled=True)
    queries = read_texts(find_file(folder, "queries.jsonl"), titled=False)
    qrels: dict[str, dict[str, int]] = {}
    notes: list[str] = []
    if file := find_qrels(folder / "qrels", split):
        qrels, conflicting = read_qrels(file)
        _check_match(qrels, queries, documents, str(file))
        left_out = [q for q in queries if not any(grade > 0 for grade in qrels.get(q, {}).values())]
        if len(left_out) == len(queries):
            raise DataError(f"{file}: no query has a judgement above 0, which is what relevant is")
        if left_out:
            of, what = f"of {len(queries)} queries", "left out: no judgement above 0"
            notes.append(_counted(left_out, f"{of} is", f"{of} are", f"{what} in {file.name}"))
        if conflicting:
            one, many = "judgement contradicts", "judgements contradict"
            what = "an earlier one of the same document, and the last counts, for query"
            notes.append(_counted(conflicting, one, many, what))
        for query in left_out:
            del queries[query]
            qrels.pop(query, None)
    return RetrievalDataset(
        name=folder.resolve().name,
        query_ids=tuple(queries),
        queries=tuple(queries.values()),
        document_ids=tuple(documents),
        documents=tuple(documents.values()),
        qrels=qrels,
        split=split,
        notes=tuple(notes),
        path=folder.resolve(),
    )


def _named(texts: Texts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids and texts."""
    if isinstance(texts, str):
        raise DataError(f"expected texts, a list or id to text; got one string, {excerpt(texts)}")
    if not isinstance(texts, Mapping):
        texts = {str(number): text for number, text in enumerate(texts)}
    return tuple(texts), tuple(map(_text_of, texts.values()))


def _text_of(text: Any) -> Any:
    """A text; of a title and a text, both as `read_beir_folder` joins them."""
    if isinstance(text, Mapping):
        return f"{text.get('title') or ''} {text.get('text') or ''}".strip()
    return text


def _check_texts(ids: Sequence[str], texts: Sequence[str], where: str, one: str, many: str) -> None:
    if len(ids) != len(texts):
        got = f"{len(ids)} ids and {len(texts)} texts"
        raise DataError(f"{where}: expected one text for every {one} id; got {got}")
    if not ids:
        raise DataError(f"{where}: there are no {many}; at least one is needed")
    seen: set[str] = set()
    for identifier, text in zip(ids, texts, strict=True):
        check_string(identifier, f"{where}: a {one} id")
        check_string(text, f"{where}: the text of {one} {identifier!r}")
        if identifier in seen:
            problem = f"{identifier!r} occurs twice; rename or remove one"
            raise DataError(f"{where}: every {one} id must be unique; {problem}")
        seen.add(identifier)


def _check_match(
    qrels: Mapping[str, Mapping[str, int]], queries: Collection[str], documents: Collection[str], where: str
) -> None:
    """Labels of which none applies belong to other data, or their columns are swapped."""
    judgements = _flat(qrels)
    known_queries, known_documents = set(queries), set(documents)
    if judgements and not any(q in known_queries and d in known_documents for q, d, _ in judgements):
        first = f"the first one names query {judgements[0][0]!r}, document {judgements[0][1]!r}"
        there = f"queries are {some(queries)}, documents {some(documents)}"
        problem = "no judgement names a query and a document that are both there"
        raise DataError(f"{where}: {problem}; {first}; {there}; use the ids of the texts")


def _flat(qrels: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str, int]]:
    return [(query, doc, grade) for query, of in qrels.items() for doc, grade in of.items()]


def _blank(texts: Mapping[str, str]) -> list[str]:
    return [identifier for identifier, text in texts.items() if not text.strip()]


def _counted(ids: Sequence[str], one: str, many: str, what: str) -> str:
    return f"{len(ids)} {one if len(ids) == 1 else many} {what}: {some(ids)}"


GROUP = "quantdrift.tasks"


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def task_names() -> list[str]:
    """Names of the tasks that `load_task` takes."""
    return sorted(_entries())


def load_task(name: str) -> RetrievalDataset:
    """The data of a task."""
    entries = _entries()
    if name not in entries:
        raise UnknownNameError("task", name, entries, hint="(quantdrift list tasks shows all)")
    dataset: RetrievalDataset = entries[name].load()()
    return dataset
