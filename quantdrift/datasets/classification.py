"""Reading classification data: files of labelled texts, folders of images, or an array file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from quantdrift.datasets.beir_files import some
from quantdrift.datasets.images import (
    LabelledImages,
    arrays_in,
    find_images,
    read_arrays,
    read_image_folder,
)
from quantdrift.datasets.labelled import TRAIN, ClassificationDataset, Kind, Labelled
from quantdrift.datasets.labelled_files import read_labelled
from quantdrift.errors import DataError

__all__ = [
    "LAYOUT",
    "ClassificationDataset",
    "Labelled",
    "is_classification_folder",
    "read_classification_folder",
]

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
    """Read SPLIT.jsonl and train.jsonl, SPLIT/CLASS and train/CLASS of images, or a .npz file.

    Args:
        path: the folder, or the .npz file.
        split: the part that is evaluated.

    Returns:
        The dataset, named after the folder or file; `train` is None where there is no such part,
        or where it is the part that is evaluated.

    Raises:
        DataError: there is nothing of the kind, or a file of it is broken; names file and line.
    """
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
        arrays, read = place, partial(_array_part, place)
    elif _texts(place):
        kind, found, read = "text", _texts(place), partial(_text_part, place)
    elif _image_parts(place):
        found, read = _image_parts(place), partial(_folder_part, place)
    elif len(files := _arrays(place)) == 1:
        arrays, read = files[0], partial(_array_part, files[0])
    else:
        there = some(sorted(entry.name for entry in place.iterdir())) or "nothing"
        more = f"; give the path of one of the {len(files)} .npz files" if files else ""
        raise DataError(f"{place} holds {there}{more}. Expected {LAYOUT}")
    test = read(split)
    if test is None and arrays is not None:
        raise DataError(_no_array(arrays, split))
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


def _no_array(file: Path, split: str) -> str:
    names = arrays_in(file)
    parts = [name.removeprefix("x_") for name in names if name.startswith("x_")]
    other = f" Choose another part with --split: {some(parts)}." if parts else ""
    return (
        f"{file} has no array x_{split}; it holds {some(names) or 'nothing'}."
        f"{other} Expected {LAYOUT}"
    )


def _text_part(folder: Path, part: str) -> Labelled | None:
    for file in (folder / f"{part}.jsonl", folder / f"{part}.jsonl.gz"):
        if file.is_file():
            lines = read_labelled(file, part)
            return Labelled(ids=lines.ids, inputs=lines.texts, labels=lines.labels)
    return None


def _folder_part(folder: Path, part: str) -> Labelled | None:
    return _of_images(read_image_folder(folder / part)) if (folder / part).is_dir() else None


def _array_part(file: Path, part: str) -> Labelled | None:
    found = read_arrays(file, part)
    return None if found is None else _of_images(found)


def _of_images(found: LabelledImages) -> Labelled:
    return Labelled(ids=found.ids, inputs=found.images, labels=found.labels)


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
