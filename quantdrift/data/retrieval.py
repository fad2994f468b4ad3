"""Retrieval data: the texts or images that are embedded and, if there are any, their relevance labels.

A fault that would make a figure wrong is an error; a tolerable one is in `warnings`.
"""

import gzip
import hashlib
import json
import operator
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError
from quantdrift.base.records import LONGEST, parse_json, refuse_bomb
from quantdrift.base.text import some
from quantdrift.data.images import SUFFIXES, Kind, contents_of, image_files, kind_of, some_of

LAYOUT = (
    'corpus.jsonl ({"_id": "d1", "title": "...", "text": "..."} a line; the title is optional), '
    'queries.jsonl ({"_id": "q1", "text": "..."} a line) and, for relevance metrics, '
    "qrels/<split>.tsv (query id, document id and score, tab-separated, or TREC's four columns); "
    'each may end in .gz. Images have "image": "FILE" in place of the text'
)

_HEADER_SCORES = frozenset({"score", "relevance", "rel", "label", "grade"})
# At most nine digits, because mteb keeps scores as int32; "1.0" is what a data frame writes.
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]{1,9})(\.0*)?")
_EXCERPT = 60


# --- files ----------------------------------------------------------------------------------------


def plain_or_zipped(folder: Path, name: str) -> Path | None:
    """The file of this name, plain or gzipped; None if there is none."""
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def _find(folder: Path, name: str) -> Path:
    if file := plain_or_zipped(folder, name):
        return file
    if name == "corpus.jsonl" and (folder / "corpus").is_dir():
        raise DataError(
            f"{folder} holds a corpus in shards, which quantdrift run and quantdrift study run take; this takes one in "
            "memory, corpus.jsonl, such as a part of it"
        )
    there = some(sorted(entry.name for entry in folder.iterdir())) or "nothing"
    raise DataError(f"{folder} has no {name}; it holds {there}. Expected {LAYOUT}")


def _find_qrels(folder: Path, split: str) -> Path | None:
    """The qrels file of a split, or None if the folder has labels of no split at all."""
    file = plain_or_zipped(folder, f"{split}.tsv")
    splits = {entry.name.removesuffix(".gz").removesuffix(".tsv") for entry in folder.glob("*.tsv*")}
    if splits and file is None:
        raise DataError(f"{folder} has no split {split!r}; it has {some(sorted(splits))}")
    return file


def read_records(
    file: Path | str,
    expected: str,
    numbered: Iterable[tuple[int, str]] | None = None,
    *,
    part: str | None = None,
    images: bool = False,
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield place, id and content of every line of a JSON lines file; each has a text, and ids are unique.

    With a `part`, lines without an id get one; with `images`, a line has an image or a text. `numbered` are lines that
    were read already, with their numbers.
    """
    lines: dict[str, int] = {}
    for number, record in read_objects(file, expected, numbered):
        where = f"{file}, line {number}"
        if part is not None:
            record.setdefault("_id", record.get("id", f"{part}-{number}"))
        content = "image" if images and "image" in record else "text"
        if missing := [key for key in ("_id", content) if key not in record]:
            keys = some(record) or "none"
            raise DataError(f'{where}: "{missing[0]}" is missing; the keys are {keys}. Expected {expected}')
        name = named(record["_id"], f'{where}: "_id"')
        check_string(record[content], f'{where}: "{content}"')
        if name in lines:
            first = f"{name!r} is already on line {lines[name]}"
            raise DataError(f"{where}: every id must be unique; {first}; rename or remove one")
        lines[name] = number
        yield where, name, record
    if not lines:
        raise DataError(f"{file} is empty; at least one line was expected. Expected {expected}")


def read_objects(
    file: Path | str, expected: str, numbered: Iterable[tuple[int, str]] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the JSON object of every line of a JSON lines file."""
    for number, line in read_lines(Path(file)) if numbered is None else numbered:
        where = f"{file}, line {number}"
        try:
            record = parse_json(line)
        except ValueError as error:  # also for a huge integer or very deep nesting
            at, why = (f", column {error.colno}", error.msg) if isinstance(error, json.JSONDecodeError) else ("", error)
            raise DataError(f"{where}{at}: expected a JSON object, {expected}; {why}") from error
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object, {expected}; got {excerpt(line)}")
        yield number, record


def _read_side(file: Path, *, titled: bool) -> tuple[tuple[str, ...], Sequence[Any], Sequence[str]]:
    """Read ids, texts or images, and texts without their titles, from a JSON lines file in its order."""
    ids, texts, images, bare = [], [], [], []
    for where, name, record in read_records(file, '{"_id": "...", "text": "..."}', images=True):
        ids.append(name)
        if "image" in record:
            images.append(_image_file(file.parent, record["image"], where))
        else:
            texts.append(text_of(record, where) if titled else record["text"])
            bare.append(record["text"])
        if (texts and images) or ("image" in record and str(record.get("text") or "").strip()):
            raise DataError(
                f"{where}: expected only texts or only images; a document that is both cannot be embedded as one"
            )
    return tuple(ids), image_files(images) if images else tuple(texts), bare


def text_of(record: Mapping[str, Any], where: str) -> str:
    """The text of a document: its title, if any, a space and its text, stripped."""
    title = record.get("title") or ""
    check_string(title, f'{where}: "title"')
    return f"{title} {record['text']}".strip()


def _image_file(folder: Path, name: str, where: str) -> Path:
    """Return the file of an image, which has to lie below the folder of the file that names it."""
    with suppress(OSError, ValueError):  # the name is not valid for a file
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()) and path.suffix.lower() in SUFFIXES and path.is_file():
            return path
    suffixes = ", ".join(sorted(SUFFIXES))
    raise DataError(f"{where}: expected the path of an image ({suffixes}) below {folder}; got {excerpt(name)}")


def read_qrels(file: Path) -> dict[str, dict[str, int]]:
    """Read the judgements of a qrels file of BEIR or TREC, told by its first line; a pair has one grade.

    BEIR has three tab-separated columns, with or without a header line; TREC has four, query, 0, document and grade,
    separated by any whitespace.
    """
    qrels: dict[str, dict[str, int]] = {}
    separator: str | None = "\t"
    for position, (number, line) in enumerate(read_lines(file)):
        where = f"{file}, line {number}"
        if position == 0 and line.count("\t") != 2 and len(line.split()) == 4:  # noqa: PLR2004 -- columns of TREC
            separator = None
        columns = line.split(separator)
        if len(columns) != (3 if separator else 4):
            raise DataError(
                f"{where}: expected 3 tab-separated columns (query id, document id, score), or TREC's 4 (query, 0, "
                f"document, grade), on every line; got {len(columns)} in {excerpt(line)}"
            )
        query, document, score = columns[0], columns[-2], columns[-1].strip()
        if position == 0 and score.lower() in _HEADER_SCORES:
            continue
        judge(qrels, query, document, score, where)
    if not qrels:
        raise DataError(f"{file} holds no judgement; remove it to measure drift without labels")
    return qrels


def judge(qrels: dict[str, dict[str, int]], query: str, document: str, score: str, where: str) -> None:
    """Add a judgement; a score that is no whole number, or a second one of a pair, is refused."""
    whole = _WHOLE_NUMBER.fullmatch(score)
    if whole is None:
        raise DataError(f"{where}: the score must be a whole number; got {excerpt(score)}; round or regrade it")
    grade = int(whole[1])
    if qrels.setdefault(query, {}).setdefault(document, grade) != grade:
        raise DataError(
            f"{where}: query {excerpt(query)} and document {excerpt(document)} have two grades, "
            f"{qrels[query][document]} and {grade}; expected one line for each pair"
        )


def check_string(value: object, what: str) -> None:
    """Raise DataError unless `value` is a string that UTF-8, and so a tokenizer, can represent."""
    if not isinstance(value, str):
        raise DataError(f"{what} must be a string; got {type(value).__name__} {excerpt(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x} at character {error.start + 1}"
        raise DataError(f"{what} holds half of a surrogate pair, {half}; remove it") from error


def named(value: object, what: str) -> str:
    """Return a name as a string; a whole number becomes one, an empty name is refused."""
    name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    check_string(name, what)
    if not name:
        raise DataError(f"{what} is empty; expected a name, or a whole number")
    return str(name)


def excerpt(value: object) -> str:
    """The beginning of a value, for a message."""
    shown = value[:_EXCERPT] if isinstance(value, str) else value
    return repr(shown)[: _EXCERPT + 2] + "..." * (isinstance(value, str) and shown != value)


def read_lines(file: Path, *, whole: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, numbered from 1; only a newline byte ends a line.

    With `whole`, blank lines and the ends of lines are yielded, too.
    """
    if file.exists() and not file.is_file():
        raise DataError(f"{file} is a pipe or a device; expected a file")
    if file.suffix == ".gz":
        return lines_of(lambda: gzip.open(file), file, stored=file.stat().st_size, whole=whole)
    return lines_of(lambda: file.open("rb"), file, whole=whole)


def raw_lines(stream: Any, where: Path | str, *, first: int = 1) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a binary stream unchanged, numbered from `first`; one that is too long is refused."""
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=first):
        if len(line) > LONGEST:
            raise DataError(f"{where}, line {number}: longer than {LONGEST >> 20} MB; expected a record a line")
        yield number, line


def lines_of(
    opened: Callable[[], Any], file: Path | str, *, first: int = 1, stored: int | None = None, whole: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield lines as `read_lines`, from an opened stream; `first` is the first number, `stored` its packed size."""
    number = first - 1
    try:
        with opened() as stream:
            made = 0
            for number, raw in raw_lines(stream, file, first=first):
                made += len(raw)
                if stored is not None:
                    refuse_bomb(made, stored)
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                line = line if whole else line.rstrip("\r\n")
                if whole or line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}, byte {error.start + 1} of the line, is not"
        message = f"{file}, line {number}: expected UTF-8; {byte}; save the file as UTF-8"
        raise DataError(message) from error
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        message = f"{file} cannot be read beyond line {number}: {error}; copy it here again"
        raise DataError(message) from error


Texts = Mapping[str, str | Mapping[str, str]] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalDataset:
    """The queries, documents and relevance labels of one split, checked on construction.

    Args:
        name: the name in reports.
        query_ids: one unique id for each query.
        queries: their texts or images, in the same order.
        document_ids: one unique id for each document.
        documents: their texts or images, in the same order; ties in a ranking break by this order.
        qrels: query id to document id to grade, relevant if above 0; empty if there are no labels. Copied, so that
            changing the argument later does not change the dataset.
        split: the split that the labels belong to, such as "test".
        notes: remarks from reading, which `warnings` begins with.
        path: the folder or file it was read from, if any.
        columns: for a table, the columns that were named, as on the command line.
        read_otherwise: names of a model's prompts that the data's own harness would use in another way.
        limit: if these are only the first queries: their number, the number of all, and the digest of all.
        own: ids of queries that are also documents, which are left out of their own rankings; if None, those with the
            same id and text.
        keep_own_ids: whether these documents are ranked all the same.

    Raises:
        DataError: there are no queries or no documents, ids and texts differ in number, an id occurs twice, a text is
            not a string or not writable as UTF-8, or no judgement names an existing query and an existing document.
    """

    name: str
    query_ids: tuple[str, ...]
    queries: Sequence[Any]
    document_ids: tuple[str, ...]
    documents: Sequence[Any]
    qrels: Mapping[str, Mapping[str, int]] = field(hash=False)
    split: str
    notes: tuple[str, ...] = field(default=(), compare=False)
    path: Path | None = field(default=None, compare=False)
    columns: str | None = field(default=None, compare=False)
    read_otherwise: frozenset[str] = field(default=frozenset(), compare=False)
    limit: Mapping[str, Any] | None = field(default=None, compare=False)
    own: frozenset[str] | None = None
    keep_own_ids: bool = False

    def __post_init__(self) -> None:
        where = f"dataset {self.name!r}"
        try:
            qrels = {
                query: {document: operator.index(grade) for document, grade in grades.items()}
                for query, grades in self.qrels.items()
            }
        except TypeError as error:
            raise DataError(f"{where}: every grade in qrels must be an integer; {error}") from error
        object.__setattr__(self, "qrels", qrels)
        _check_texts(self.query_ids, self.queries, where, "query")
        _check_texts(self.document_ids, self.documents, where, "document")
        _check_match(qrels, self.query_ids, self.document_ids, where)
        own = self.own
        if own is None:
            own = own_documents(self.query_ids, self.queries, self.document_ids, self.documents)
        object.__setattr__(self, "own", own.intersection(self.query_ids))

    @classmethod
    def of(
        cls,
        queries: Texts,
        documents: Texts,
        qrels: Mapping[str, Mapping[str, int]] | None = None,
        *,
        name: str = "data",
    ) -> Self:
        """A dataset of texts in memory.

        >>> RetrievalDataset.of(["which?"], {"d1": "this", "d2": "that"}).document_ids
        ('d1', 'd2')

        Args:
            queries: id to text, or texts, whose ids become "0", "1", ...
            documents: likewise; a text may be {"title", "text"}, which are joined as in beir.
            qrels: query id to document id to grade, relevant if above 0.
            name: the name in reports.

        Raises:
            DataError: as the class.
        """
        (query_ids, query_texts, _), (document_ids, document_texts, bare) = map(_named, (queries, documents))
        return cls(
            name=name,
            query_ids=query_ids,
            queries=query_texts,
            document_ids=document_ids,
            documents=document_texts,
            qrels=qrels or {},
            split="test",
            own=own_documents(query_ids, query_texts, document_ids, document_texts, bare),
        )

    @property
    def own_ids(self) -> str | None:
        """The treatment of queries' own documents, "left out" or "kept"; None if there are none."""
        return None if not self.own else "kept" if self.keep_own_ids else "left out"

    @property
    def own_rows(self) -> NDArray[np.int64] | None:
        """The position of each query's own document, or -1; None if no document is left out."""
        return own_rows(self.query_ids, self.document_ids, self.own or ()) if self.own_ids == "left out" else None

    @property
    def fingerprint(self) -> str:
        """A stable hex digest of ids, texts and judgements, whatever order the qrels came in.

        Name, split and notes are not part of it: they change no score.
        """
        digest = hashlib.blake2b(digest_size=16)
        judgements = sorted((query, doc, str(grade)) for query, doc, grade in _flat(self.qrels))
        sides = (self.query_ids, contents_of(self.queries), self.document_ids, contents_of(self.documents))
        for part in (*sides, chain.from_iterable(judgements)):
            feed(digest, part)
        return digest.hexdigest()

    @property
    def kinds(self) -> tuple[Kind, Kind]:
        """The kinds of queries and of documents."""
        return kind_of(self.queries), kind_of(self.documents)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Faults of the data that are tolerated, one sentence each."""
        judgements, queries, documents = _flat(self.qrels), set(self.query_ids), set(self.document_ids)
        sentences = [
            counted("empty queries", empty(self.query_ids, self.queries)),
            counted("empty documents", empty(self.document_ids, self.documents)),
            counted("judgements of queries that are not there", [q for q, _, _ in judgements if q not in queries]),
            counted("judgements of documents not in the corpus", [d for _, d, _ in judgements if d not in documents]),
            counted("queries without a judgement", [q for q in self.query_ids if judgements and not self.qrels.get(q)]),
            "" if judgements else "no relevance labels: drift is measured, relevance metrics are not",
            on_own_ids([name for name in self.query_ids if name in (self.own or ())], self.qrels, self.keep_own_ids),
        ]
        return (*self.notes, *filter(None, sentences))


# --- queries that are also documents --------------------------------------------------------------


def own_documents(
    query_ids: Sequence[str], queries: Sequence[Any], document_ids: Sequence[str], *documents: Sequence[Any]
) -> frozenset[str]:
    """Ids of queries that are also documents, with the same id and text; `documents` are texts with and without title.

    Equal ids alone are no proof, as many data number both sides from 1.

    >>> own_documents(["1", "2"], ["why?", "how?"], ["1", "2"], ["A title why?", "so"], ["why? ", "so"])
    frozenset({'1'})
    """
    asked = {name: text.strip() for name, text in zip(query_ids, contents_of(queries), strict=True)}
    return frozenset(
        name
        for texts in documents
        for name, text in zip(document_ids, contents_of(texts), strict=False)  # images have no text without a title
        if asked.get(name) == text.strip()
    )


def own_rows(
    query_ids: Sequence[str], document_ids: Sequence[str], own: Collection[str], start: int = 0
) -> NDArray[np.int64]:
    """The position of each query's own document, or -1 if there is none; the first document has number `start`."""
    place = {name: row for row, name in enumerate(document_ids, start) if name in own}
    return np.array([place.get(name, -1) for name in query_ids], dtype=np.int64)


def keeping_own_ids(dataset: Any, keep: bool) -> Any:
    """The data, with queries that find themselves if `keep` is set."""
    if keep and not hasattr(dataset, "keep_own_ids"):
        raise DataError(f"--keep-own-ids is for queries and documents, and {dataset.name} has classes; leave it out")
    return replace(dataset, keep_own_ids=True) if keep else dataset


def facts_of(dataset: Any) -> list[str]:
    """The facts that identify data: name, split, digest and, if there are any, the treatment of own documents."""
    facts = [dataset.name, dataset.split, dataset.fingerprint, getattr(dataset, "own_ids", None)]
    return [fact for fact in facts if fact is not None]


def on_own_ids(own: Sequence[str], qrels: Mapping[str, Mapping[str, int]], kept: bool = False) -> str:
    """A sentence on the treatment of these queries' own documents; empty if there are none."""
    if not own:
        return ""
    who = counted("queries that are also in the corpus, under the same id", own)
    if kept:
        return f"{who}; each finds itself first in both arms, which hides changes behind it"
    judged = sum(qrels.get(name, {}).get(name, 0) > 0 for name in own)
    unfound = f"; {judged:,} of them are judged relevant to themselves, which counts as not found" if judged else ""
    return f"{who}; each is left out of its own ranking, as in BEIR (--keep-own-ids ranks it){unfound}"


def feed(digest: Any, texts: Iterable[str]) -> None:
    """Add texts to a digest; their lengths keep ("ab", "c") and ("a", "bc") apart."""
    raw = [text.encode() for text in texts]
    digest.update(len(raw).to_bytes(8, "little"))
    for encoded in raw:
        digest.update(len(encoded).to_bytes(8, "little") + encoded)


def empty(ids: Sequence[str], texts: Sequence[Any]) -> list[str]:
    """Names of empty texts; no image is empty."""
    return [name for name, text in zip(ids, contents_of(texts), strict=True) if not text.strip()]


def counted(what: str, names: Sequence[str]) -> str:
    """The number of names and the first of them, after a title; empty if there are none."""
    return f"{what}: {len(names):,} ({some(names)})" if names else ""


def read_beir_folder(path: str | Path, split: str = "test") -> RetrievalDataset:
    """Read a folder in BEIR layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv.

    The text of a document is its title, a space and its text, stripped, as in mteb and beir. With labels, only queries
    with a judgement above 0 are kept, because relevance is undefined for the others; mteb leaves out those without any
    judgement, and scores 0 for those with only judgements of 0 or below. Without labels of any split, every query is
    kept.

    Args:
        path: the folder; each of its files may be plain or gzipped.
        split: the split whose labels to read.

    Returns:
        The dataset, named after the folder; `warnings` lists what was left out or tolerated.

    Raises:
        DataError: a file is missing or unreadable, or a line of it is broken; names file and line.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(
            f"{folder} is no folder; expected one that holds {LAYOUT}. Or a table, a query and its document a row: "
            ".csv, .tsv, .jsonl, .parquet, .xlsx"
        )
    document_ids, documents, bare = _read_side(_find(folder, "corpus.jsonl"), titled=True)
    query_ids, queries, qrels, notes = read_queries(folder, split, document_ids=document_ids)
    return RetrievalDataset(
        name=folder.resolve().name,
        query_ids=query_ids,
        queries=queries,
        document_ids=document_ids,
        documents=documents,
        qrels=qrels,
        split=split,
        notes=notes,
        path=folder.resolve(),
        own=own_documents(query_ids, queries, document_ids, documents, bare),
    )


Queries = tuple[tuple[str, ...], Sequence[Any], dict[str, dict[str, int]], tuple[str, ...]]


def read_queries(folder: Path, split: str, *, document_ids: Collection[str] | None) -> Queries:
    """Read the queries of a folder in BEIR layout: ids, texts, judgements, and remarks.

    `document_ids` is None if they are not known.
    """
    query_ids, queries, _ = _read_side(_find(folder, "queries.jsonl"), titled=False)
    if file := _find_qrels(folder / "qrels", split):
        qrels = read_qrels(file)
        _check_match(qrels, query_ids, document_ids, str(file))
        return with_relevant(query_ids, queries, qrels, str(file))
    return query_ids, queries, {}, ()


def with_relevant(
    query_ids: tuple[str, ...], queries: Sequence[Any], qrels: dict[str, dict[str, int]], file: str
) -> Queries:
    """The queries with a judgement above 0, and a remark on the others."""
    rows = [row for row, q in enumerate(query_ids) if any(grade > 0 for grade in qrels.get(q, {}).values())]
    if not rows:
        raise DataError(f"{file}: no query has a judgement above 0, so nothing is relevant")
    left_out = dict.fromkeys(query_ids)
    kept = tuple(query_ids[row] for row in rows)
    for query in kept:
        left_out.pop(query)
    what = f"queries left out of {len(query_ids):,}, as {Path(file).name} has no judgement above 0 of them"
    note = counted(what, [*left_out])
    qrels = {query: grades for query, grades in qrels.items() if query not in left_out}
    return kept, some_of(queries, rows), qrels, (note,) if note else ()


def _named(texts: Texts) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Ids, texts and texts without titles; a title and a text are joined as by `read_beir_folder`."""
    if isinstance(texts, str):
        raise DataError(f"expected texts, a list or id to text; got one string, {excerpt(texts)}")
    if not isinstance(texts, Mapping):
        texts = {str(number): text for number, text in enumerate(texts)}
    parts = [text if isinstance(text, Mapping) else {"text": text} for text in texts.values()]
    joined = (
        f"{part.get('title') or ''} {part.get('text') or ''}".strip() if isinstance(text, Mapping) else text
        for part, text in zip(parts, texts.values(), strict=True)
    )
    return tuple(texts), tuple(joined), tuple(part.get("text") or "" for part in parts)


def _check_texts(ids: Sequence[str], texts: Sequence[Any], where: str, kind: str) -> None:
    check_ids(ids, texts, where=f"{where}, {kind} ids")
    for identifier, text in zip(ids, contents_of(texts) if kind_of(texts) == "image" else texts, strict=True):
        check_string(identifier, f"{where}: a {kind} id")
        check_string(text, f"{where}: the text of {kind} {identifier!r}")


def check_ids(ids: Sequence[str], *values: Sequence[Any], where: str) -> None:
    """Refuse data without inputs, with ids that occur twice, or with another number of values than of ids."""
    numbers = [len(ids), *map(len, values)]
    if not ids or len(set(numbers)) > 1:
        raise DataError(f"{where}: expected one id for every input, and at least one; got {numbers}")
    if twice := [name for name, times in Counter(ids).items() if times > 1]:
        raise DataError(f"{where}: every id must be unique; {some(twice)} occurs twice")


def _check_match(
    qrels: Mapping[str, Mapping[str, int]], queries: Collection[str], documents: Collection[str] | None, where: str
) -> None:
    """Refuse judgements of which none applies: they belong to other data, or their columns are swapped."""
    judgements = _flat(qrels)
    known_queries, known_documents = set(queries), None if documents is None else set(documents)
    if judgements and not any(
        q in known_queries and (known_documents is None or d in known_documents) for q, d, _ in judgements
    ):
        first = f"the first one names query {judgements[0][0]!r}, document {judgements[0][1]!r}"
        there = f"queries are {some(queries)}, documents {some(documents or ['not known'])}"
        problem = "no judgement names an existing query and an existing document"
        raise DataError(f"{where}: {problem}; {first}; {there}; use the ids of the texts")


def _flat(qrels: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str, int]]:
    return [(query, doc, grade) for query, of in qrels.items() for doc, grade in of.items()]
