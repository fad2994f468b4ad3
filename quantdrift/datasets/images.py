"""Images: of folders, one a class, decoded when they are asked for; or of one array file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from quantdrift.datasets.beir_files import some
from quantdrift.datasets.labelled_files import label_of
from quantdrift.errors import DataError, MissingExtraError

__all__ = [
    "SUFFIXES",
    "Images",
    "LabelledImages",
    "arrays_in",
    "find_images",
    "read_arrays",
    "read_image_folder",
]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages:
    """The images of one part.

    Attributes:
        ids: names, all different.
        images: the images.
        labels: one an image, or None where there are none at all.
    """

    ids: tuple[str, ...] = field(repr=False)
    images: Images = field(repr=False)
    labels: tuple[str, ...] | None = field(repr=False)


def find_images(folder: Path) -> Iterator[Path]:
    """The image files right in a folder, by name."""
    return (
        file
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES and file.is_file()
    )


def read_image_folder(folder: Path) -> LabelledImages:
    """The images of a folder with one subfolder a class, or with images alone: no labels then.

    Args:
        folder: FOLDER/CLASS/*.png, jpg, jpeg, bmp or webp.

    Raises:
        DataError: there is no image, or there are images beside class folders.
        MissingExtraError: Pillow is not installed.
    """
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
    return LabelledImages(
        ids=tuple(file.relative_to(folder).as_posix() for file in files),
        images=Images(lambda row: _decoded(files[row]), contents),
        labels=tuple(name for name, _ in labelled) or None,
    )


def read_arrays(file: Path, part: str) -> LabelledImages | None:
    """The images and labels of one part in an array file; None where it has no such part.

    Args:
        file: a .npz with x_PART (uint8 [n, height, width, 3], or [n, height, width] of grey images)
            and y_PART (labels [n]).
        part: "test", "train" or another.

    Raises:
        DataError: it is no array file, or shapes or types are others.
    """
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
    digests = [
        hashlib.blake2b(f"{image.shape}".encode() + image.tobytes(), digest_size=16).hexdigest()
        for image in images
    ]
    return LabelledImages(
        ids=tuple(f"{part}-{row}" for row in range(len(images))),
        images=Images(lambda row: np.ascontiguousarray(images[row]), digests),
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
