"""Images, which are decoded one by one on access; and functions that take texts or images."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError
from quantdrift.base.extras import extras_named
from quantdrift.base.records import bytes_digest

Kind = Literal["text", "image"]
"""The kind of an input."""
Image = NDArray[np.uint8]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
CHANNELS = 3


class Images(Sequence[Image]):
    """A sequence of images, each uint8 [height, width, 3] and decoded on access.

    Args:
        read: decodes the image at a position.
        contents: digest of each stored image.
    """

    def __init__(self, read: Callable[[int], Image], contents: Sequence[str]) -> None:
        self._read = read
        self.contents = tuple(contents)

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        return self._read(places) if isinstance(places, int) else [self._read(place) for place in places]


def image_files(files: Sequence[Path]) -> Images:
    """The images in files."""
    pillow()
    contents = [bytes_digest(file.read_bytes(), size=16) for file in files]
    return Images(lambda row: _decoded(files[row]), contents)


def kind_of(inputs: Sequence[Any]) -> Kind:
    """Whether inputs are texts or images."""
    return "image" if isinstance(inputs, Images) else "text"


def contents_of(inputs: Sequence[Any]) -> Iterator[str]:
    """Yield a string for each input that identifies its content: the text, or a digest of the image."""
    if isinstance(inputs, Images):
        yield from inputs.contents
        return
    yield from (value if isinstance(value, str) else image_digest(value) for value in inputs)


def some_of(inputs: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    """Some rows of texts or images."""
    if isinstance(inputs, Images):
        return Images(lambda row: inputs[rows[row]], [inputs.contents[row] for row in rows])
    return tuple(inputs[row] for row in rows)


def image_digest(image: Any) -> str:
    """A digest of an image's shape and pixels, 32 hex digits."""
    pixels = np.asarray(image)
    return bytes_digest(f"{pixels.shape}".encode() + pixels.tobytes(), size=16)


def pillow() -> Any:
    """The library that decodes images."""
    with extras_named(needed_for="reading image files"):
        from PIL import Image as pillow_image  # noqa: N813, PLC0415 -- only where images are files
    return pillow_image


def _decoded(file: Path) -> Image:
    """Decode the image in a file as RGB."""
    try:
        with pillow().open(file) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except Exception as error:  # Pillow raises many kinds on broken files and bombs
        raise DataError(f"{file} cannot be decoded as an image: {error}; replace it") from error
