"""Images as preprocessing takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quantdrift.errors import DataError

__all__ = ["as_pictures"]

_CHANNELS = 3


def as_pictures(images: Sequence[Any]) -> list[Any]:
    """PIL images in RGB.

    Args:
        images: each a uint8 array [height, width, 3], or a PIL image of any mode.

    Raises:
        DataError: one is neither.
    """
    from PIL import Image  # noqa: PLC0415 -- an optional package

    pictures = []
    for number, image in enumerate(images):
        if isinstance(image, Image.Image):
            pictures.append(image.convert("RGB"))
            continue
        if not (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.ndim == _CHANNELS
            and image.shape[2] == _CHANNELS
        ):
            got = type(image).__name__
            if isinstance(image, np.ndarray):
                got = f"{image.dtype} {list(image.shape)}"
            raise DataError(
                f"image {number} of a batch: expected a uint8 array [height, width, 3] or a PIL "
                f"image, got {got}"
            )
        pictures.append(Image.fromarray(image))
    return pictures
