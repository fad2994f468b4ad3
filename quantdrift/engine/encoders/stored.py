"""The contents of a checkpoint: which linear layers are packed, and in how many bits.

Packed formats keep several tensors for a linear layer (codes, scales, zero points), all of them below the layer's
name. So counting bits needs to know no format.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import open_file, read_json
from quantdrift.engine.bits import BitsReport

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that hold weights as they are; a code has any other."""
WEIGHTS = "model.safetensors"
_MAX_HEAD = 100_000_000
"""Bytes of a head, as in safetensors' own reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file: its type, e.g. F16 or I32, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """The bytes that it takes."""
        width = re.search(r"\d+", self.dtype)  # as in I32 and F8_E4M3
        return -(-prod(self.shape) * (8 if width is None else int(width[0])) // 8)  # BOOL has none

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayers:
    """The names of a model's linear layers, by how a checkpoint stores them.

    Attributes:
        packed: quantized.
        plain: in floating point.
        missing: not at all.
        bits: what the checkpoint costs in bits per weight; None where that is not known.
    """

    packed: tuple[str, ...]
    plain: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    bits: BitsReport | None


# --- safetensors, and files of torch --------------------------------------------------------------


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder by name, read from the heads of its files."""
    files = weight_files(folder, WEIGHTS)
    if not files:
        raise UnsupportedError(
            f"{folder} holds no weights that are read: expected {WEIGHTS} or shards of it, as save_pretrained of "
            "transformers writes them (not pickled ones, pytorch_model.bin)"
        )
    return {name: tensor for file in files for name, tensor in read_head(file).items()}


@contextmanager
def opened_tensors(folder: Path) -> Iterator[Callable[[str], Tensor]]:
    """A reader of the tensors in a model folder by name; open inside."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, framework="pt")) for file in weight_files(folder, WEIGHTS)]
        places = {name: file for file in files for name in file.keys()}  # noqa: SIM118 -- no mapping
        yield lambda name: places[name].get_tensor(name)


def weight_files(folder: Path, name: str) -> list[Path]:
    """The file of that name in a folder, or the shards that its index lists; empty if neither."""
    if (folder / name).is_file():  # transformers, too, looks for it first
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    try:
        shards = set(read_json(index, limit=_MAX_HEAD)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"{index} is damaged, expected a weight_map from names to files: {error}") from error
    for file in shards:
        if not isinstance(file, str) or Path(file).name != file:
            raise UnsupportedError(f"{index} names the file {shown(str(file))}; expected files beside it")
    return [folder / file for file in sorted(shards)]


def read_head(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name, as its head tells them; UnsupportedError if it is damaged."""
    try:
        with open_file(file), safe_open(file, framework="pt") as opened:  # neither a pipe nor a device is opened
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
    """Refuse a tensor that is missing, or of another type, shape or number of elements than libraries write."""
    if tensor is None or tensor.dtype not in dtypes or size not in {None, tensor.shape, prod(tensor.shape)}:
        wanted = f"{' or '.join(sorted(dtypes))}{'' if size is None else f' of {size}'}"
        raise UnsupportedError(
            f"{shown(name)} is stored as {tensor or 'nothing'}; expected {wanted}. Copy the checkpoint here again, or "
            "write it again"
        )


# --- bits per weight ------------------------------------------------------------------------------


def stored_layers(
    tensors: Mapping[str, StoredTensor], body: nn.Module, *, others: Sequence[nn.Module] = ()
) -> StoredLayers:
    """Sort a model's linear layers by how they are stored, and count the bits.

    A layer is packed if something else than a floating-point weight of its shape lies below its name; the largest of
    its tensors holds the codes. A tensor counts if it lies in a module that has parameters, under whatever name
    (transformers renames some, and joins experts), and a parameter counts if anything of its module is stored: not a
    language model's head, nor a decoder that no embedding needs.
    """
    modules = {
        name: part for name, part in body.named_modules() if next(part.parameters(recurse=False), None) is not None
    }
    base = getattr(body, "base_model_prefix", "")  # a model saved with a head has its body below this name
    holders = {prefix: _holders(tensors, prefix, modules) for prefix in ("", f"{base}.")}
    prefix = max(holders, key=lambda prefix: len(holders[prefix]))
    below: dict[str, dict[str, StoredTensor]] = {name: {} for name in modules}
    for name, holder in holders[prefix].items():
        below[holder][name.removeprefix(f"{prefix}{holder}.")] = tensors[name]
    for name, part in modules.items():
        _refuse_bare_codes(below[name], part, name)
    layers = {name: part for name, part in modules.items() if isinstance(part, nn.Linear)}
    parts = {name: {part: t for part, t in below[name].items() if part != "bias"} for name in layers}
    missing = tuple(name for name in layers if not parts[name])
    whole = {name: {("weight", tuple(layer.weight.shape))} for name, layer in layers.items()}
    floats = {name: {(part, t.shape) for part, t in parts[name].items() if t.dtype in FLOATS} for name in layers}
    plain = tuple(name for name in layers if floats[name] == whole[name] and len(parts[name]) == 1)
    packed = tuple(name for name in layers if name not in (*missing, *plain))
    sizes = {name: [t.n_bytes for t in parts[name].values()] for name in packed or plain}
    held = {id(p): p.numel() for name in modules if below[name] for p in modules[name].parameters(recurse=False)}
    rest = {id(p): p for module in others for p in module.parameters()}.values()
    bits = stored_bits(
        codes=sum(parts[name]["W_q"].n_bytes if "W_q" in parts[name] else max(sizes[name]) for name in sizes),
        with_scales=sum(map(sum, sizes.values())),
        everything=sum(tensors[name].n_bytes for name in holders[prefix]) + sum(p.nbytes for p in rest),
        n_weights=sum(layers[name].weight.numel() for name in sizes),
        n_parameters=sum(held.values()) + sum(p.numel() for p in rest),
        is_packed=bool(packed),
    )
    return StoredLayers(packed=packed, plain=plain, missing=missing, bits=bits)


def _refuse_bare_codes(stored: Mapping[str, StoredTensor], module: nn.Module, name: str) -> None:
    """Refuse a floating parameter that is stored as codes with no scale, or anything else of its own, beside it."""
    own = dict(module.named_parameters(recurse=False))
    beside = stored.keys() - own.keys() - dict(module.named_buffers(recurse=False)).keys()
    for part, tensor in stored.items():
        if part in own and tensor.dtype not in FLOATS and (len(tensor.shape) < 2 or not beside):  # noqa: PLR2004 -- a bias
            raise UnsupportedError(
                f"{shown(f'{name}.{part}')} is stored as {tensor.dtype}, and nothing beside it says which numbers that "
                f"stands for; expected {', '.join(sorted(FLOATS))}, or its scale"
            )


def stored_bits(
    *, codes: int, with_scales: int, everything: int, n_weights: int, n_parameters: int, is_packed: bool
) -> BitsReport:
    """Make a report of bytes: those of the layers' codes, with their scales, and of all that is stored."""
    of_all = 8 * everything / max(n_parameters, 1)
    return BitsReport(
        linear=8 * codes / n_weights if n_weights else of_all,
        linear_with_scales=8 * with_scales / n_weights if n_weights else of_all,
        all_parameters=of_all,
        n_quantized=n_weights if is_packed else 0,
        n_parameters=n_parameters,
    )


def _holders(names: Collection[str], prefix: str, modules: Collection[str]) -> dict[str, str]:
    """Map names that begin with a prefix to the innermost module that they lie in."""
    holders = {}
    for name in names:
        place = name.removeprefix(prefix) if name.startswith(prefix) else ""
        while "." in place:
            place = place.rpartition(".")[0]
            if place in modules:
                holders[name] = place
                break
    return holders
