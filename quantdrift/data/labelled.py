"""Labelled inputs of one kind: a part that is evaluated, and one to learn from.

Probes are fitted, and quantizers calibrated, on the part called train; figures are over the other.
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

TRAIN = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One part of the data.

    Attributes:
        ids: names, all different.
        inputs: texts, or images uint8 [height, width, 3].
        labels: one an input; None where there are none.
    """

    ids: tuple[str, ...] = field(repr=False)
    inputs: Sequence[Any] = field(repr=False)
    labels: tuple[str, ...] | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationDataset:
    """Labelled inputs of one kind, checked when it is made.

    Args:
        name: what reports call it.
        kind: what an input is.
        split: name of the part that is evaluated.
        test: that part.
        train: what a probe is fitted on and quantizers are calibrated on, where there is any.
        path: the folder or file it was read from, where it was.
        read_otherwise: names of a model's prompts that the harness which the data are of would take in another way.
        limit: where these are the first inputs of more: how many, of how many, and the digest of all.

    Raises:
        DataError: a part is empty, its ids and inputs differ in number, or an id occurs twice.
    """

    name: str
    kind: Kind
    split: str
    test: Labelled
    train: Labelled | None = None
    path: Path | None = field(default=None, compare=False)
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
        """Sentences on what is tolerated but worth telling."""
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
        return tuple(filter(None, sentences))


# --- texts ----------------------------------------------------------------------------------------


def _read_texts(file: Path, part: str) -> Labelled:
    """The texts and labels of a JSON lines file, plain or gzipped, in the order of the file."""
    texts: dict[str, str] = {}
    labels: list[str] = []
    for where, name, record in retrieval.read_records(file, '{"text": "...", "label": "..."}', part=part):
        texts[name] = record["text"]
        if record.get("label") is not None:
            labels.append(retrieval.named(record["label"], f'{where}: "label"'))
        if len(labels) not in {0, len(texts)}:
            raise DataError(f"{where}: expected a label on every line or on none")
    return Labelled(ids=tuple(texts), inputs=tuple(texts.values()), labels=tuple(labels) or None)


# --- images ---------------------------------------------------------------------------------------


def _images_in(folder: Path) -> Iterator[Path]:
    """The image files in folders in a folder, by name."""
    for entry in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        yield from (file for file in sorted(entry.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file())


def _read_images(folder: Path) -> Labelled:
    """The images of a folder with one subfolder a class."""
    files = list(_images_in(folder))
    return Labelled(
        ids=tuple(file.relative_to(folder).as_posix() for file in files),
        inputs=image_files(files),
        labels=tuple(file.parent.name for file in files),
    )


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The arrays of a file, by name; each is read when it is asked for."""
    try:
        with zipfile.ZipFile(file) as packed:
            refuse_bomb(sum(member.file_size for member in packed.infolist()), file.stat().st_size)
        with np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except Exception as error:  # numpy and zipfile raise a dozen kinds
        raise DataError(f"{file} cannot be read as an array file (.npz): {error}") from error


def _read_arrays(file: Path, part: str) -> Labelled:
    """The images and labels of one part in an array file."""
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
    "line; each may end in .gz); or images in SPLIT/CLASS/ and train/CLASS/; or one .npz file with "
    "x_SPLIT, y_SPLIT, x_train, y_train"
)


def _parts(place: Path) -> tuple[Kind, dict[str, Callable[[], Labelled]]]:
    """The parts that a folder or an array file holds, and what reads each; none of retrieval data."""
    if place.is_file() and place.suffix == ".npz":
        with _opened(place) as arrays:
            names = [name.removeprefix("x_") for name in arrays if name.startswith("x_")]
        return "image", {name: partial(_read_arrays, place, name) for name in names}
    entries = sorted(place.iterdir(), reverse=True) if place.is_dir() else []  # a plain file after the gzipped one
    files = {file.name.removesuffix(".gz"): file for file in entries}
    texts = {name.removesuffix(".jsonl"): file for name, file in files.items() if name.endswith(".jsonl")}
    if "corpus" in texts:
        return "text", {}
    if texts.keys() - {"queries"}:
        return "text", {name: partial(_read_texts, file, name) for name, file in texts.items()}
    folders = [entry for entry in entries if entry.is_dir() and next(_images_in(entry), None)]
    return "image", {folder.name: partial(_read_images, folder) for folder in folders}


def read_classification_folder(path: str | Path, split: str = "test") -> ClassificationDataset:
    """Read SPLIT.jsonl and train.jsonl, SPLIT/CLASS and train/CLASS of images, or a .npz file."""
    place = Path(path)
    kind, parts = _parts(place)
    if split not in parts:
        there = some(sorted(parts)) or "none"
        raise DataError(
            f"{place} has no part {split!r}; it has {there}. Choose another with --split. Expected {LAYOUT}"
        )
    return ClassificationDataset(
        name=place.stem if place.is_file() else place.resolve().name,
        kind=kind,
        split=split,
        test=parts[split](),
        train=parts[TRAIN]() if TRAIN in parts and split != TRAIN else None,
        path=place.resolve(),
    )


Dataset = retrieval.RetrievalDataset | ClassificationDataset
"""What a pair is measured on."""


def read_folder(folder: Path, split: str = "test") -> Dataset:
    """Read the data in a folder: labelled inputs, or queries and documents in BEIR layout, which a corpus tells."""
    if folder.suffix == ".npz" or _parts(folder)[1]:
        return read_classification_folder(folder, split)
    return retrieval.read_beir_folder(folder, split)


def is_place(name: str, beside: Path = Path()) -> bool:
    """Whether a name of data means a folder or file: it is written as one, or a folder of that name is there."""
    written = "/" in name or name.startswith((".", "~")) or name.endswith(".npz")
    return written or (beside / name).is_dir()


GROUP = "quantdrift.tasks"
"""Entry points of packages that have data with a name."""
_HARNESSES = "quantdrift.harnesses"


def task_names() -> list[str]:
    """Names of the tasks that `load_task` takes."""
    return sorted(entry_points(group=GROUP).names)


def load_task(name: str, split: str = "test") -> Dataset:
    """The data of a task: of a package that has some with that name, or one of mteb's, "NAME" or "NAME:SUBSET"."""
    if points := entry_points(group=GROUP, name=name):
        dataset: Dataset = points[name].load()()
        return dataset
    like_ours = get_close_matches(name, task_names(), cutoff=0.8) or {*name} & {*"/\\"}
    if like_ours or not entry_points(group=_HARNESSES, name="mteb"):
        raise UnknownNameError("folder or task", name, task_names(), hint="(quantdrift list tasks shows all)")
    called, _, subset = name.partition(":")
    return task_of("mteb", called, split, subset or None)


def task_of(harness: str, name: str, split: str, subset: str | None) -> Dataset:
    """The data of a harness' own task, by the plugin that knows it."""
    for point in entry_points(group=_HARNESSES, name=harness):
        read: Callable[[str, str, str | None], Dataset] = import_module(point.module).read_task
        return read(name, split, subset)
    raise MissingExtraError(harness, harness, needed_for=f"data of {harness}")


def sampled(dataset: Dataset, n: int, seed: int) -> Dataset:
    """The data with n of the queries or inputs, drawn at random; a larger n has those of a smaller one too."""
    return _of_rows(dataset, np.sort(np.random.default_rng(seed).permutation(size_of(dataset))[:n]).tolist())


def limited(dataset: Dataset, n: int) -> Dataset:
    """The data with the first n of the queries or inputs, which `limit` tells of; all of them if there are no more."""
    total = size_of(dataset)
    limit = {"n": n, "of": total, "fingerprint": dataset.fingerprint}
    return dataset if n >= total else replace(_of_rows(dataset, range(n)), limit=limit)


def size_of(dataset: Dataset) -> int:
    """How many queries or inputs there are."""
    return len(dataset.test.ids if isinstance(dataset, ClassificationDataset) else dataset.query_ids)


def _of_rows(dataset: Dataset, rows: Sequence[int]) -> Dataset:
    """The data with some of the queries or inputs."""
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
    """Data that are queries and documents."""
    if not isinstance(dataset, retrieval.RetrievalDataset):
        raise DataError(
            f"{dataset.path or dataset.name} has classes, and this takes queries and documents; quantdrift run takes "
            f"it. To search, a folder needs {retrieval.LAYOUT}"
        )
    return dataset


def told_apart(classes: Sequence[str]) -> tuple[str, ...]:
    """Names of classes that differ: those that occur twice get their position.

    >>> told_apart(["crane", "heron", "crane"])
    ('crane (0)', 'heron', 'crane (2)')
    """
    times = Counter(classes)
    return tuple(f"{name} ({place})" if times[name] > 1 else name for place, name in enumerate(classes))


def match_labels(
    labels: Sequence[str], classes: Sequence[str], *, positions: bool = True
) -> tuple[tuple[str, ...] | None, str | None]:
    """The class of every label: by name, whatever its case; else by position.

    Labels that are names of classes win over positions, so that a model whose classes are called "0" and "1" is read
    by these names.

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
    # whole numbers that agree in part may be counted from another start
    if not means or (unknown and numbered and all(map(_is_number, classes))):
        return None, (
            "accuracy is not measured: expected labels that name the model's classes or count them; the labels are "
            f"{some(distinct)}, the classes {some(classes)}"
        )
    note = None
    if unknown:
        n = sum(label not in means for label in labels)
        note = f"labels that are none of the model's classes, which counts as wrong: of {n:,} inputs ({some(unknown)})"
    return tuple(means.get(label, label) for label in labels), note


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()
