"""What was measured of a model's layers: shared by every quantizer, resumed after a kill."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.cache import array_in, kept_file, read_kept
from quantdrift.errors import RunError

__all__ = ["HeldArrays", "KeptArrays"]

_LONGEST = 150
"""Characters of a name that a file is called by; file systems take some 255 in all."""


class KeptArrays:
    """Arrays of one model and one set of calibration inputs.

    Args:
        root: cache folder.
        key: of model and inputs, from `key_of`.
    """

    def __init__(self, root: Path, key: str) -> None:
        self._folder = root / "sensitivities" / key[:2] / key

    def get(self, name: str) -> NDArray[np.float64] | None:
        """The array of that name; None where there is none, or a damaged one."""
        return read_kept(self._path(name), lambda content: array_in(content).copy())

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        """Keep an array; whole, or not at all, if the process is killed.

        Raises:
            RunError: the folder cannot be written, or there is no space.
        """
        path = self._path(name)
        try:
            with kept_file(path) as partial, partial.open("wb") as file:
                np.save(file, np.asarray(array, dtype=np.float64), allow_pickle=False)
        except OSError as error:
            raise RunError(
                f"sensitivities cannot be kept in {self._folder}: {error}. Free some space, set "
                "QUANTDRIFT_CACHE to a folder on another disk, or use --no-cache"
            ) from error

    def _path(self, name: str) -> Path:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST]
        # names that differ in what files cannot be called, or in case alone, are two names
        digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
        return self._folder / f"{plain}-{digest}.npy"


class HeldArrays:
    """Arrays in memory, for as long as the process needs them."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.float64]] = {}

    def get(self, name: str) -> NDArray[np.float64] | None:
        """The array of that name; None where there is none."""
        return self._arrays.get(name)

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        """Hold an array."""
        self._arrays[name] = array
