"""Names, types and shapes of the tensors in safetensors files, read from their headers without torch."""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import open_file, read_json

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types of weights that are not quantized; codes have other types."""
WEIGHTS = "model.safetensors"
_MAX_INDEX = 100_000_000
"""Most bytes of an index of shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file: its type, such as F16 or I32, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Its size in bytes."""
        width = re.search(r"\d+", self.dtype)  # as in I32 and F8_E4M3
        return -(-prod(self.shape) * (8 if width is None else int(width[0])) // 8)  # BOOL has none

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a model folder, by name, from the headers of its files."""
    files = weight_files(folder, WEIGHTS)
    if not files:
        raise UnsupportedError(
            f"{folder} holds no weights that are read: expected {WEIGHTS} or shards of it, as save_pretrained of "
            "transformers writes them (not pickled ones, pytorch_model.bin)"
        )
    return {name: tensor for file in files for name, tensor in read_head(file).items()}


@contextmanager
def opened_tensors(folder: Path) -> Iterator[Callable[[str], Any]]:
    """Inside, yield a function that reads a tensor of a model folder by name, for torch."""
    from safetensors import safe_open  # noqa: PLC0415 -- an optional package

    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, framework="pt")) for file in weight_files(folder, WEIGHTS)]
        places = {name: file for file in files for name in file.keys()}  # noqa: SIM118 -- no mapping
        yield lambda name: places[name].get_tensor(name)


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return the file of that name in a folder, or the shards that its index lists; empty if neither exists."""
    if (folder / name).is_file():  # transformers, too, looks for it first
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    try:
        shards = set(read_json(index, limit=_MAX_INDEX)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"{index} is damaged, expected a weight_map from names to files: {error}") from error
    for file in shards:
        if not isinstance(file, str) or Path(file).name != file:
            raise UnsupportedError(f"{index} names the file {shown(str(file))}; expected files beside it")
    return [folder / file for file in sorted(shards)]


def read_head(file: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a safetensors file, by name, from its header; UnsupportedError if it is damaged."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 -- as above

    try:
        with open_file(file), safe_open(file, framework="np") as opened:  # neither a pipe nor a device is opened
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 -- no mapping
            return {
                name: StoredTensor(dtype=str(part.get_dtype()), shape=tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except (OSError, ValueError, SafetensorError) as error:
        raise UnsupportedError(
            f"{file} is damaged or cut short, expected a safetensors file: {error}. Copy it here again"
        ) from error


def check_stored(
    name: str, tensor: StoredTensor | None, dtypes: Collection[str], size: int | tuple[int, ...] | None = None
) -> None:
    """Refuse a tensor that is missing or has another type, shape or number of elements than expected."""
    if tensor is None or tensor.dtype not in dtypes or size not in {None, tensor.shape, prod(tensor.shape)}:
        wanted = f"{' or '.join(sorted(dtypes))}{'' if size is None else f' of {size}'}"
        raise UnsupportedError(
            f"{shown(name)} is stored as {tensor or 'nothing'}; expected {wanted}. Copy the checkpoint here again, or "
            "write it again"
        )
