"""Labelled inputs of one kind: a part that is evaluated, and one to learn from.

Probes are fitted, and quantizers calibrated, on the part called train; figures are over the other.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from quantdrift.datasets.retrieval import LAYOUT as BEIR_LAYOUT
from quantdrift.datasets.retrieval import RetrievalDataset, check_string, excerpt, read_beir_folder, read_lines, some
from quantdrift.errors import DataError, MissingExtraError
from quantdrift.records import parse_json

Kind = Literal["text", "image"]
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

    def contents(self) -> Iterator[str]:
        """What tells inputs apart, one string an input: the text, or a digest of the image."""
        stored = getattr(self.inputs, "contents", None)
        yield from (_content(value) for value in self.inputs) if stored is None else stored


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationDataset:
    """Labelled inputs of one kind, checked when it is made.

    Args:
        name: what reports call it.
        kind: what an input is.
        split: name of the part that is evaluated.
        test: that part.
        train: what a probe is fitted on and quantizers are calibrated on, where there is any.
        notes: what was tolerated in reading; `warnings` begins with it.
        path: the folder or file it was read from, where it was.

    Raises:
        DataError: a part is empty, its ids and inputs differ in number, or an id occurs twice.
    """

    name: str
    kind: Kind
    split: str
    test: Labelled
    train: Labelled | None = None
    notes: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for part, name in ((self.test, self.split), (self.train, TRAIN)):
            if part is None:
                continue
            where = f"dataset {self.name!r}, {name}"
            counts = {len(part.ids), len(part.inputs), len(part.labels or part.ids)}
            if len(counts) > 1:
                raise DataError(f"{where}: expected ids, inputs and labels of one number: {counts}")
            if not part.ids:
                raise DataError(f"{where}: there is no input; at least one is needed")
            if twice := _repeated(part.ids):
                raise DataError(f"{where}: every id must be unique; twice there is {some(twice)}")

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that occur in either part, sorted."""
        parts = (self.test, self.train)
        return tuple(sorted({label for part in parts if part for label in part.labels or ()}))

    @property
    def fingerprint(self) -> str:
        """A stable hex digest of ids, contents and labels of both parts.

        Name, split and notes are not part of it: they change no logit.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.test, self.train):
            sides = () if part is None else (part.ids, part.contents(), part.labels or ())
            digest.update(bytes([len(sides)]))
            for side in sides:
                texts = [text.encode() for text in side]
                digest.update(len(texts).to_bytes(8, "little"))
                for raw in texts:
                    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
                    digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is tolerated but worth telling, one sentence each."""
        told = [*self.notes]
        contents = list(self.test.contents())
        if self.kind == "text":
            empty = [name for name, text in zip(self.test.ids, contents, strict=True) if not text.strip()]
            if empty:
                told.append(f"{_counted(empty, 'input is', 'inputs are')} empty: {some(empty)}")
        if n := len(contents) - len(set(contents)):
            told.append(f"{n:,} of the {self.split} inputs {_repeat(n)} an earlier one")
        if self.train is not None:
            known = set(self.train.contents())
            seen = [n for n, one in zip(self.test.ids, contents, strict=True) if one in known]
            if seen:
                inputs = _counted(seen, f"{self.split} input is", f"{self.split} inputs are")
                told.append(f"{inputs} also in {TRAIN}: {some(seen)}")
        if self.test.labels is None:
            told.append("no labels: changed classes are measured, accuracy is not")
        return tuple(told)


def _content(value: object) -> str:
    if isinstance(value, str):
        return value
    image = np.asarray(value)
    return hashlib.blake2b(f"{image.shape}".encode() + image.tobytes(), digest_size=16).hexdigest()


def _repeated(ids: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(ids).items() if times > 1]


def _counted(names: Sequence[str], one: str, many: str) -> str:
    return f"{len(names):,} {one if len(names) == 1 else many}"


def _repeat(n: int) -> str:
    return "repeats" if n == 1 else "repeat"


_EXPECTED = '{"text": "...", "label": "..."}'


def read_labelled(file: Path, part: str) -> Labelled:
    """The texts and labels of a JSON lines file, plain or gzipped, in the order of the file."""
    ids: dict[str, int] = {}
    texts: list[str] = []
    labels: list[str] = []
    for number, line in read_lines(file):
        where = f"{file}, line {number}"
        record = _parsed(line, where)
        if "text" not in record:
            keys = some(record) or "none"
            raise DataError(f'{where}: "text" is missing; the keys are {keys}. Expected {_EXPECTED}')
        check_string(record["text"], f'{where}: "text"')
        name = _name(record, f"{part}-{number}", where)
        if name in ids:
            first = f"{name!r} is already on line {ids[name]}"
            raise DataError(f"{where}: every id must be unique; {first}; rename or remove one")
        label = record.get("label")
        if texts and (label is None) != (not labels):
            this, others = ("none", "one") if label is None else ("one", "none")
            raise DataError(
                f"{where}: expected a label on every line or on none; this line has {this}, and "
                f"those before have {others}"
            )
        ids[name] = number
        texts.append(record["text"])
        if label is not None:
            labels.append(label_of(label, f'{where}: "label"'))
    if not texts:
        raise DataError(f"{file} is empty; at least one line was expected: {_EXPECTED}")
    return Labelled(ids=tuple(ids), inputs=tuple(texts), labels=tuple(labels) or None)


def label_of(value: object, what: str) -> str:
    """A label as a string; a whole number becomes one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        expected = "must be a string or a whole number"
        raise DataError(f"{what} {expected}; got {type(value).__name__} {excerpt(value)}")
    check_string(value, what)
    if not value:
        raise DataError(f"{what} is empty; leave it out on every line, or name a class")
    return value


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except json.JSONDecodeError as error:
        # its own message ends in a place, which counts from the start of this line
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise DataError(f"{where}, column {error.colno}: expected a JSON object, {_EXPECTED}; {what}") from error
    except ValueError as error:  # a huge integer, or very deep nesting
        raise DataError(f"{where}: expected a JSON object, {_EXPECTED}; {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, {_EXPECTED}; got {excerpt(line)}")
    return record


def _name(record: dict[str, Any], default: str, where: str) -> str:
    name = record.get("id", record.get("_id", default))
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    check_string(name, f'{where}: "id"')
    if not name:
        raise DataError(f'{where}: "id" is empty; leave it out, or name the input')
    return str(name)


SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
_CHANNELS = 3

Image = NDArray[np.uint8]


class Images(Sequence[Image]):
    """Images in their order, each uint8 [height, width, 3]; none is decoded before it is needed.

    Args:
        read: the image of a position.
        contents: digest of each image as it is stored.
    """

    def __init__(self, read: Callable[[int], Image], contents: Sequence[str]) -> None:
        self._read = read
        self.contents = tuple(contents)

    def __len__(self) -> int:
        return len(self.contents)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Image]: ...
    def __getitem__(self, index: int | slice) -> Image | Sequence[Image]:
        places = range(len(self))
        if isinstance(index, slice):
            chosen = places[index]
            contents = [self.contents[place] for place in chosen]
            return Images(lambda row: self._read(chosen[row]), contents)
        return self._read(places[index])


def find_images(folder: Path) -> Iterator[Path]:
    """The image files right in a folder, by name."""
    return (file for file in sorted(folder.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file())


def read_image_folder(folder: Path) -> Labelled:
    """The images of a folder with one subfolder a class, or with images alone: no labels then."""
    _pillow()
    alone = list(find_images(folder))
    classes = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
    labelled = [(entry.name, file) for entry in classes for file in find_images(entry)]
    if alone and labelled:
        raise DataError(
            f"{folder} holds images ({some(file.name for file in alone)}) beside class folders "
            f"({some(sorted({name for name, _ in labelled}))}); move each into the folder of its "
            "class"
        )
    if not alone and not labelled:
        raise DataError(
            f"{folder} holds no image; expected one folder per class in it, each with files that "
            f"end in {', '.join(sorted(SUFFIXES))}"
        )
    files = [file for _, file in labelled] or alone
    contents = [hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files]
    return Labelled(
        ids=tuple(file.relative_to(folder).as_posix() for file in files),
        inputs=Images(lambda row: _decoded(files[row]), contents),
        labels=tuple(name for name, _ in labelled) or None,
    )


def read_arrays(file: Path, part: str) -> Labelled | None:
    """The images and labels of one part in an array file; None where it has no such part."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if f"x_{part}" not in arrays:
                return None
            images, labels = arrays[f"x_{part}"], arrays.get(f"y_{part}")
    except Exception as error:  # numpy and zipfile raise a dozen kinds
        raise DataError(f"{file} cannot be read as an array file (.npz): {error}") from error
    where = f"{file}, x_{part}"
    grey = images.ndim == _CHANNELS
    if images.dtype != np.uint8 or not (grey or images.shape[3:] == (_CHANNELS,)):
        raise DataError(
            f"{where}: expected uint8 [n, height, width, 3] or, of grey images, [n, height, "
            f"width]; got {images.dtype} {list(images.shape)}"
        )
    if not len(images):
        raise DataError(f"{where} holds no image; at least one was expected")
    if grey:
        images = np.broadcast_to(images[..., None], (*images.shape, _CHANNELS))
    return Labelled(
        ids=tuple(f"{part}-{row}" for row in range(len(images))),
        inputs=Images(lambda row: np.ascontiguousarray(images[row]), [_content(image) for image in images]),
        labels=None if labels is None else _labels(labels, len(images), f"{file}, y_{part}"),
    )


def arrays_in(file: Path) -> list[str]:
    """Names of the arrays in an array file."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return list(arrays)
    except Exception:  # as above
        return []


def _labels(labels: NDArray[Any], n: int, where: str) -> tuple[str, ...]:
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels  # noqa: PLR2004 -- a column
    if flat.shape != (n,):
        raise DataError(f"{where}: expected one label an image, [{n}]; got {list(labels.shape)}")
    return tuple(label_of(value, f"{where}, row {row}") for row, value in enumerate(flat.tolist()))


def _pillow() -> Any:
    try:
        from PIL import Image as pillow  # noqa: N813, PLC0415 -- only where images are files
    except ImportError as error:
        raise MissingExtraError("pillow", "images", needed_for="reading image files") from error
    return pillow


def _decoded(file: Path) -> Image:
    """The image of a file as red, green and blue."""
    try:
        with _pillow().open(file) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except Exception as error:  # what Pillow raises on broken files, and on those that are bombs
        raise DataError(f"{file} cannot be decoded as an image: {error}; replace it") from error


LAYOUT = (
    'SPLIT.jsonl and, for probes and calibration, train.jsonl ({"text": "...", "label": "..."} a '
    "line; each may end in .gz); or images in SPLIT/CLASS/ and train/CLASS/; or one .npz file with "
    "x_SPLIT, y_SPLIT, x_train, y_train"
)


def is_classification_folder(path: str | Path) -> bool:
    """Whether a folder, or a .npz file, looks like classification data; nothing is read.

    A folder with a corpus.jsonl is retrieval data, whatever else lies in it.
    """
    place = Path(path)
    if not place.is_dir():
        return place.is_file() and place.suffix == ".npz"
    names = {entry.name.removesuffix(".gz") for entry in place.iterdir()}
    if "corpus.jsonl" in names:
        return False
    return bool(_texts(place) or _arrays(place) or _image_parts(place))


def read_classification_folder(path: str | Path, split: str = "test") -> ClassificationDataset:
    """Read SPLIT.jsonl and train.jsonl, SPLIT/CLASS and train/CLASS of images, or a .npz file."""
    place = Path(path)
    if not place.exists():
        raise DataError(f"{place} does not exist; expected a folder, or one .npz file")
    if place.is_file() and place.suffix != ".npz":
        raise DataError(f"{place} is a file; give its folder, {place.parent}")
    kind: Kind = "image"
    read: Callable[[str], Labelled | None]
    found: list[str] = []
    arrays: Path | None = None
    if place.is_file():
        arrays, read = place, partial(read_arrays, place)
    elif _texts(place):
        kind, found, read = "text", _texts(place), partial(_text_part, place)
    elif _image_parts(place):
        found, read = _image_parts(place), partial(_folder_part, place)
    elif len(files := _arrays(place)) == 1:
        arrays, read = files[0], partial(read_arrays, files[0])
    else:
        there = some(sorted(entry.name for entry in place.iterdir())) or "nothing"
        more = f"; give the path of one of the {len(files)} .npz files" if files else ""
        raise DataError(f"{place} holds {there}{more}. Expected {LAYOUT}")
    test = read(split)
    if test is None and arrays is not None:
        names = arrays_in(arrays)
        parts = [name.removeprefix("x_") for name in names if name.startswith("x_")]
        other = f" Choose another part with --split: {some(parts)}." if parts else ""
        raise DataError(
            f"{arrays} has no array x_{split}; it holds {some(names) or 'nothing'}.{other} Expected {LAYOUT}"
        )
    if test is None:
        raise DataError(
            f"{place} has no part {split!r}; it has {some(found) or 'nothing'}. Choose another "
            f"with --split. Expected {LAYOUT}"
        )
    return ClassificationDataset(
        name=place.stem if place.is_file() else place.resolve().name,
        kind=kind,
        split=split,
        test=test,
        train=None if split == TRAIN else read(TRAIN),
        path=place.resolve(),
    )


def _text_part(folder: Path, part: str) -> Labelled | None:
    files = (folder / f"{part}.jsonl", folder / f"{part}.jsonl.gz")
    return next((read_labelled(file, part) for file in files if file.is_file()), None)


def _folder_part(folder: Path, part: str) -> Labelled | None:
    return read_image_folder(folder / part) if (folder / part).is_dir() else None


def _texts(folder: Path) -> list[str]:
    """Names of the parts that are files of texts."""
    endings = (".jsonl", ".jsonl.gz")
    files = (file for ending in endings for file in folder.glob(f"*{ending}"))
    parts = {file.name.removesuffix(".gz").removesuffix(".jsonl") for file in files}
    return sorted(parts - {"queries", "corpus"})


def _arrays(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def _image_parts(folder: Path) -> list[str]:
    """Names of the parts that are folders of images, or of class folders with images."""
    return [
        part.name
        for part in sorted(folder.iterdir())
        if part.is_dir()
        and any(
            next(find_images(place), None) is not None
            for place in (part, *(entry for entry in sorted(part.iterdir()) if entry.is_dir()))
        )
    ]


Dataset = RetrievalDataset | ClassificationDataset
"""What a pair is measured on."""


def read_folder(folder: Path, split: str = "test") -> Dataset:
    """The data in a folder: labelled inputs, or queries and documents in BEIR layout."""
    if is_classification_folder(folder):
        return read_classification_folder(folder, split)
    return read_search_folder(folder, split)


def read_search_folder(folder: Path, split: str = "test") -> RetrievalDataset:
    """The queries and documents in a folder; of one without, it is said what else would do."""
    if not folder.exists():
        raise DataError(f"{folder} does not exist; expected a folder, or one .npz file of images")
    if folder.is_file() and folder.suffix != ".npz":
        raise DataError(f"{folder} is a file; give its folder, {folder.parent}")
    try:
        return read_beir_folder(folder, split)
    except DataError as error:
        if is_classification_folder(folder):
            raise DataError(
                f"{folder} holds classification data, and this takes queries and documents; "
                "quantdrift run and quantdrift contrast take it. To search, it needs " + BEIR_LAYOUT
            ) from error
        names = {entry.name.removesuffix(".gz") for entry in folder.iterdir()} if folder.is_dir() else set()
        if names & {"corpus.jsonl", "queries.jsonl", "qrels"}:
            raise
        raise DataError(f"{error}. For classification: {LAYOUT}") from error


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
    distinct = list(dict.fromkeys(labels))
    exact, folded = set(classes), {name.casefold(): name for name in reversed(classes)}
    means = {
        label: label if label in exact else folded[label.casefold()]
        for label in distinct
        if label in exact or label.casefold() in folded
    }
    numbered = positions and all(map(_is_number, distinct))
    if 0 < len(means) < len(distinct) and numbered and all(map(_is_number, classes)):
        return None, (
            "accuracy is not measured: labels and classes are whole numbers of which only some are "
            "the same, so they may be counted from another start; the labels are "
            f"{some(distinct)}, the classes {some(classes)}"
        )
    if not means and numbered and all(int(label) < len(classes) for label in distinct):
        means = {label: classes[int(label)] for label in distinct}
    if not means:
        return None, (
            f"labels are none of the model's classes: accuracy is not measured; the labels are "
            f"{some(distinct)}, the classes {some(classes)}"
        )
    unknown = [label for label in distinct if label not in means]
    note = None
    if unknown:
        n = sum(label not in means for label in labels)
        inputs = "input has a label" if n == 1 else "inputs have labels"
        note = f"{n:,} {inputs} that the model has no class for, which counts as wrong: "
        note += some(unknown)
    return tuple(means.get(label, label) for label in labels), note


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()
