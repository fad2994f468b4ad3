"""Labelled inputs of one kind: a part that is evaluated, and a part called train.

Probes are fitted, and quantizers calibrated, on train; figures are over the other part.
"""

import hashlib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.base.errors import DataError, MissingExtraError, UnknownNameError
from quantdrift.base.records import refuse_bomb
from quantdrift.base.text import some
from quantdrift.data import retrieval
from quantdrift.data.images import CHANNELS, SUFFIXES, Images, Kind, contents_of, image_digest, image_files, some_of
from quantdrift.data.tables import Columns, Table, is_table, named_columns, pairs_of, part_of, read_table

TRAIN = "train"
Notes = list[str]
"""What was read from tables, a sentence each."""
Readers = dict[str, Callable[[], "Labelled"]]
"""A reader for each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One part of the data.

    Attributes:
        ids: unique names.
        inputs: texts, or images uint8 [height, width, 3].
        labels: one for each input; None if there are none.
    """

    ids: tuple[str, ...] = field(repr=False)
    inputs: Sequence[Any] = field(repr=False)
    labels: tuple[str, ...] | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationDataset:
    """Labelled inputs of one kind, checked on construction.

    Args:
        name: the name in reports.
        kind: kind of the inputs.
        split: name of the part that is evaluated.
        test: the part that is evaluated.
        train: the part for probes and calibration, if there is one.
        path: the folder or file it was read from, if any.
        notes: remarks from reading, which `warnings` begins with.
        columns: for a table, the columns that were named, as on the command line.
        read_otherwise: names of a model's prompts that the data's own harness would use in another way.
        limit: if these are only the first inputs: their number, the number of all, and the digest of all.

    Raises:
        DataError: a part is empty, its ids and inputs differ in number, or an id occurs twice.
    """

    name: str
    kind: Kind
    split: str
    test: Labelled
    train: Labelled | None = None
    path: Path | None = field(default=None, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    columns: str | None = field(default=None, compare=False)
    read_otherwise: frozenset[str] = field(default=frozenset(), compare=False)
    limit: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for part, name in ((self.test, self.split), (self.train, TRAIN)):
            if part is not None:
                labels = () if part.labels is None else (part.labels,)
                retrieval.check_ids(part.ids, part.inputs, *labels, where=f"dataset {self.name!r}, {name}")

    @property
    def fingerprint(self) -> str:
        """A stable hex digest of ids, contents and labels of both parts.

        Name and split are not part of it: they change no logit.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.test, self.train):
            sides = () if part is None else (part.ids, contents_of(part.inputs), part.labels or ())
            digest.update(bytes([len(sides)]))
            for side in sides:
                retrieval.feed(digest, side)
        return digest.hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Faults of the data that are tolerated, one sentence each."""
        ids, contents = self.test.ids, list(contents_of(self.test.inputs))
        first = {content: name for name, content in zip(reversed(ids), reversed(contents), strict=True)}
        train = set() if self.train is None else set(contents_of(self.train.inputs))
        pairs = list(zip(ids, contents, strict=True))
        sentences = [
            retrieval.counted("empty inputs", retrieval.empty(ids, contents)) if self.kind == "text" else "",
            retrieval.counted(
                f"{self.split} inputs that repeat an earlier one", [n for n, key in pairs if first[key] != n]
            ),
            retrieval.counted(f"{self.split} inputs that are also in {TRAIN}", [n for n, key in pairs if key in train]),
            "no labels: changed classes are measured, accuracy is not" if self.test.labels is None else "",
        ]
        return (*self.notes, *filter(None, sentences))


# --- reading texts and images ---------------------------------------------------------------------


def _read_texts(file: Path, part: str) -> Labelled:
    """Read the texts and labels of a JSON lines file, plain or gzipped, in their order."""
    texts: dict[str, str] = {}
    labels: list[str] = []
    for where, name, record in retrieval.read_records(file, '{"text": "...", "label": "..."}', part=part):
        texts[name] = record["text"]
        if record.get("label") is not None:
            labels.append(retrieval.named(record["label"], f'{where}: "label"'))
        if len(labels) not in {0, len(texts)}:
            raise DataError(f"{where}: expected a label on every line or on none")
    return Labelled(ids=tuple(texts), inputs=tuple(texts.values()), labels=tuple(labels) or None)


def _images_in(folder: Path) -> Iterator[Path]:
    """The image files in the subfolders of a folder, sorted by name."""
    for entry in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        yield from (file for file in sorted(entry.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file())


def _read_images(folder: Path) -> Labelled:
    """Read the images of a folder with one subfolder for each class."""
    files = list(_images_in(folder))
    return Labelled(
        ids=tuple(file.relative_to(folder).as_posix() for file in files),
        inputs=image_files(files),
        labels=tuple(file.parent.name for file in files),
    )


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open the arrays of a file by name; each is read on access."""
    try:
        with zipfile.ZipFile(file) as packed:
            refuse_bomb(sum(member.file_size for member in packed.infolist()), file.stat().st_size)
        with np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except Exception as error:  # numpy and zipfile raise a dozen kinds
        raise DataError(f"{file} cannot be read as an array file (.npz): {error}") from error


def _read_arrays(file: Path, part: str) -> Labelled:
    """Read the images and labels of one part from an array file."""
    with _opened(file) as arrays:
        images, labels = arrays[f"x_{part}"], arrays.get(f"y_{part}")
    grey = images.ndim == CHANNELS
    if images.dtype != np.uint8 or not (grey or images.shape[3:] == (CHANNELS,)):
        raise DataError(
            f"{file}, x_{part}: expected uint8 [n, height, width, 3] or, of grey images, [n, height, width]; got "
            f"{images.dtype} {list(images.shape)}"
        )
    if labels is not None and labels.shape not in {(len(images),), (len(images), 1)}:
        raise DataError(f"{file}, y_{part}: expected one label an image, [{len(images)}]; got {list(labels.shape)}")
    if grey:
        images = np.broadcast_to(images[..., None], (*images.shape, CHANNELS))
    flat = () if labels is None else labels.ravel().tolist()
    return Labelled(
        ids=tuple(f"{part}-{row}" for row in range(len(images))),
        inputs=Images(lambda row: np.ascontiguousarray(images[row]), [image_digest(image) for image in images]),
        labels=tuple(retrieval.named(value, f"{file}, y_{part}, row {row}") for row, value in enumerate(flat)) or None,
    )


LAYOUT = (
    'SPLIT.jsonl and, for probes and calibration, train.jsonl ({"text": "...", "label": "..."} a '
    "line; each may end in .gz), or SPLIT.csv and train.csv, or other tables; or images in SPLIT/CLASS/ and "
    "train/CLASS/; or one .npz file with x_SPLIT, y_SPLIT, x_train, y_train"
)


def _parts(place: Path, split: str, columns: Columns | None) -> tuple[Kind, Readers, Notes]:
    """The kind of the inputs in a folder or array file, and a reader for each part; no parts for retrieval data.

    Readers of tables add what they read to the notes.
    """
    notes: Notes = []
    if place.is_file() and place.suffix == ".npz":
        with _opened(place) as arrays:
            names = [name.removeprefix("x_") for name in arrays if name.startswith("x_")]
        return "image", {name: partial(_read_arrays, place, name) for name in names}, notes
    entries, files = _files(place)
    texts = {name.removesuffix(".jsonl"): file for name, file in files.items() if name.endswith(".jsonl")}
    if "corpus" in texts:
        return "text", {}, notes
    if (columns or split not in texts) and (tables := _tables(place, split)):
        return "text", {part: partial(_read_part, file, part, columns, notes) for part, file in tables.items()}, notes
    if texts.keys() - {"queries"}:
        return "text", {name: partial(_read_texts, file, name) for name, file in texts.items()}, notes
    folders = [entry for entry in entries if entry.is_dir() and next(_images_in(entry), None)]
    return "image", {folder.name: partial(_read_images, folder) for folder in folders}, notes


def _files(place: Path) -> tuple[list[Path], dict[str, Path]]:
    """What is in a folder, and its files by their names without .gz."""
    # in this order, a plain file replaces a gzipped one
    entries = sorted(place.iterdir(), reverse=True) if place.is_dir() else []
    return entries, {file.name.removesuffix(".gz"): file for file in entries}


def _tables(place: Path, split: str) -> dict[str, Path]:
    """The parts of a classifier's data that are tables, JSON lines too; none beside a corpus or a folder of images."""
    files = _files(place)[1]
    tables = {part: file for name, file in files.items() if (part := part_of(name)) in {split, TRAIN}}
    if split not in tables or "corpus.jsonl" in files or (place / split).is_dir():
        return {}
    if twice := [part for part, times in Counter(map(part_of, files)).items() if times > 1 and part in tables]:
        raise DataError(f"{place} has two tables of {twice[0]!r}; expected one: leave the other out")
    return tables


def read_classification_folder(
    path: str | Path, split: str = "test", columns: Columns | None = None
) -> ClassificationDataset:
    """Read SPLIT.jsonl and train.jsonl or other tables, SPLIT/CLASS and train/CLASS of images, or a .npz file."""
    place = Path(path)
    kind, parts, notes = _parts(place, split, columns)
    if split not in parts:
        there = some(sorted(parts)) or "none"
        raise DataError(
            f"{place} has no part {split!r}; it has {there}. Choose another with --split. Expected {LAYOUT}"
        )
    test = parts[split]()
    train = parts[TRAIN]() if TRAIN in parts and split != TRAIN else None
    return ClassificationDataset(
        name=place.stem if place.is_file() else place.resolve().name,
        kind=kind,
        split=split,
        test=test,
        train=train,
        path=place.resolve(),
        notes=tuple(notes),
        columns=named_columns(columns) if notes else None,
    )


Dataset = retrieval.RetrievalDataset | ClassificationDataset
"""The data that a pair is measured on."""


def read_folder(folder: Path, split: str = "test", columns: Columns | None = None) -> Dataset:
    """Read the data at a place: a table; or a folder, in BEIR layout if it has a corpus, else of labelled inputs."""
    if is_table(folder):
        return of_table(read_table(folder, columns), split)
    if columns and not takes_columns(folder, split):
        raise DataError(
            f"columns are of a table, such as faq.csv, or of {split}.csv and train.csv in a folder; {folder} is none. "
            "Leave them out"
        )
    if folder.suffix == ".npz" or _parts(folder, split, columns)[1]:
        return read_classification_folder(folder, split, columns)
    return retrieval.read_beir_folder(folder, split)


def takes_columns(place: Path, split: str) -> bool:
    """Whether columns can be named of what is there: a table, or a folder with a part that is one."""
    return is_table(place) or bool(_tables(place, split))


def of_table(table: Table, split: str) -> Dataset:
    """The data in a table: pairs of a query and its document, or inputs and their classes."""
    if "text" not in table.roles:
        return pairs_of(table, split)
    test, notes = _labelled(table, split)
    return ClassificationDataset(kind="text", split=split, test=test, notes=notes, **table.about)


def _read_part(file: Path, part: str, columns: Columns | None, notes: Notes) -> Labelled:
    """Read a part of a classifier's data from a table."""
    table = read_table(file, columns)
    if "text" not in table.roles:
        raise DataError(f"{file}: expected an input and its class a row; name them: --columns text=COLUMN,label=COLUMN")
    read, told = _labelled(table, part)
    notes += [f"{file.name}: {note}" for note in told]
    return read


def _labelled(table: Table, split: str) -> tuple[Labelled, tuple[str, ...]]:
    """The inputs and classes of a table, and what was read."""
    texts = {n: text for n, row in enumerate(table.rows) if (text := table.text(row, "text"))}
    rows = [(f"{split}-{n + 1}", table.rows[n]) for n in texts]
    labels = [table.text(row, "label") for _, row in rows if "label" in table.roles]
    if not all(labels):
        raise DataError(f"{table.where}, line {rows[labels.index('')][1][0]}: expected a label, as in other rows")
    read = Labelled(
        ids=tuple(table.text(row, "id") or name for name, row in rows),
        inputs=tuple(texts.values()),
        labels=tuple(labels) or None,
    )
    empty = len(table.rows) - len(texts)
    return read, (table.note, f"rows left out, as they have no text: {empty:,}")[: 2 if empty else 1]


def is_place(name: str, beside: Path = Path()) -> bool:
    """Whether a name of data means a folder or file: it looks like a path, or there is a folder of that name."""
    written = "/" in name or name.startswith((".", "~")) or name.endswith(".npz") or is_table(name)
    return written or (beside / name).is_dir()


GROUP = "quantdrift.tasks"
"""The group of entry points for named data of other packages."""
_HARNESSES = "quantdrift.harnesses"


def task_names() -> list[str]:
    """Names of the tasks that `load_task` takes."""
    return sorted(entry_points(group=GROUP).names)


def load_task(name: str, split: str = "test") -> Dataset:
    """Read the data of a task by name: that of an entry point, or mteb's "NAME" or "NAME:SUBSET"."""
    if points := entry_points(group=GROUP, name=name):
        dataset: Dataset = points[name].load()()
        return dataset
    like_ours = get_close_matches(name, task_names(), cutoff=0.8) or {*name} & {*"/\\"}
    if like_ours or not entry_points(group=_HARNESSES, name="mteb"):
        raise UnknownNameError("folder or task", name, task_names(), hint="(quantdrift list tasks shows all)")
    called, _, subset = name.partition(":")
    return task_of("mteb", called, split, subset or None)


def task_of(harness: str, name: str, split: str, subset: str | None) -> Dataset:
    """Read the data of a harness's own task through its plugin."""
    for point in entry_points(group=_HARNESSES, name=harness):
        read: Callable[[str, str, str | None], Dataset] = import_module(point.module).read_task
        return read(name, split, subset)
    raise MissingExtraError(harness, harness, needed_for=f"data of {harness}")


def sampled(dataset: Dataset, n: int, seed: int) -> Dataset:
    """The data with n queries or inputs drawn at random; a larger n includes those of a smaller one."""
    return _of_rows(dataset, np.sort(np.random.default_rng(seed).permutation(size_of(dataset))[:n]).tolist())


def limited(dataset: Dataset, n: int) -> Dataset:
    """The data with the first n queries or inputs, recorded in `limit`; unchanged if there are no more."""
    total = size_of(dataset)
    limit = {"n": n, "of": total, "fingerprint": dataset.fingerprint}
    return dataset if n >= total else replace(_of_rows(dataset, range(n)), limit=limit)


def size_of(dataset: Dataset) -> int:
    """The number of queries or inputs."""
    return len(dataset.test.ids if isinstance(dataset, ClassificationDataset) else dataset.query_ids)


def _of_rows(dataset: Dataset, rows: Sequence[int]) -> Dataset:
    """The data with only these queries or inputs."""
    if isinstance(dataset, ClassificationDataset):
        part, labels = dataset.test, dataset.test.labels
        return replace(
            dataset,
            test=Labelled(
                ids=tuple(part.ids[row] for row in rows),
                inputs=some_of(part.inputs, rows),
                labels=None if labels is None else tuple(labels[row] for row in rows),
            ),
        )
    names = tuple(dataset.query_ids[row] for row in rows)
    return replace(
        dataset,
        query_ids=names,
        queries=some_of(dataset.queries, rows),
        qrels={name: dataset.qrels[name] for name in names if name in dataset.qrels},
    )


def searched(dataset: Dataset) -> retrieval.RetrievalDataset:
    """Return the data if they are queries and documents; refuse others."""
    if not isinstance(dataset, retrieval.RetrievalDataset):
        raise DataError(
            f"{dataset.path or dataset.name} has classes, and this command takes queries and documents; quantdrift run "
            f"takes classes too. To search, a folder needs {retrieval.LAYOUT}"
        )
    return dataset


def told_apart(classes: Sequence[str]) -> tuple[str, ...]:
    """Make the names of classes unique: a name that occurs twice gets its position.

    >>> told_apart(["crane", "heron", "crane"])
    ('crane (0)', 'heron', 'crane (2)')
    """
    times = Counter(classes)
    return tuple(f"{name} ({place})" if times[name] > 1 else name for place, name in enumerate(classes))


def match_labels(
    labels: Sequence[str], classes: Sequence[str], *, positions: bool = True
) -> tuple[tuple[str, ...] | None, str | None]:
    """The class of every label, by name in any case, else by position; and a remark, or None.

    Names of classes win over positions, so that the labels of a model with classes "0" and "1" are read as names.

    >>> match_labels(["positive", "negative"], ["NEGATIVE", "POSITIVE"])
    (('POSITIVE', 'NEGATIVE'), None)
    >>> match_labels(["1", "0"], ["LABEL_0", "LABEL_1"])
    (('LABEL_1', 'LABEL_0'), None)
    """
    distinct, exact = list(dict.fromkeys(labels)), set(classes)
    folded = {name.casefold(): name for name in reversed(classes)}
    means = {
        label: label if label in exact else folded[label.casefold()] for label in distinct if label.casefold() in folded
    }
    unknown = [label for label in distinct if label not in means]
    numbered = positions and all(map(_is_number, distinct))
    if not means and numbered and all(int(label) < len(classes) for label in distinct):
        means, unknown = {label: classes[int(label)] for label in distinct}, []
    # whole numbers that match only in part may be counted from another start
    if not means or (unknown and numbered and all(map(_is_number, classes))):
        return None, (
            "accuracy is not measured: expected labels that name or number the model's classes; the labels are "
            f"{some(distinct)}, the classes {some(classes)}"
        )
    note = None
    if unknown:
        n = sum(label not in means for label in labels)
        note = f"{n:,} inputs have a label that is no class of the model, and count as wrong ({some(unknown)})"
    return tuple(means.get(label, label) for label in labels), note


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()
