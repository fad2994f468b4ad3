"""Full-precision weights, put aside while quantized ones are in their place, and fingerprints of weights."""

import ctypes
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.base.extras import version_of
from quantdrift.base.records import refusals
from quantdrift.models.layers import LinearLayer

# --- weights that come back ---------------------------------------------------------------------------


@contextmanager
def saved_weights(layers: Sequence[LinearLayer]) -> Iterator[None]:
    """Inside, layers may be changed; on leaving, they have their weights back.

    Weights on an accelerator are copied to main memory, weights in main memory to a temporary file. The system keeps
    the file in memory while there is room, so a model that fills the memory still fits.
    """
    give_back()
    weights = [layer.weight for layer in layers]
    copies = [put_aside(weight) if weight.device.type == "cpu" else weight.cpu() for weight in weights]
    try:
        yield
    finally:
        for layer in reversed(layers):
            layer.weight.copy_(copies.pop())  # frees each copy before the next one is read


def put_aside(tensor: Tensor) -> Tensor:
    """Copy a tensor into a temporary file, which disappears with the copy, even after a kill; reading loads it."""
    handle, name = tempfile.mkstemp(prefix="quantdrift-weights-")
    path = Path(name)
    problem = f"no room in {path.parent} to put {tensor.numel():,} weights aside"
    with refusals(problem, ". Set TMPDIR to a folder on a disk with as much room as the model takes"):
        try:
            with open(handle, "wb") as file:  # written before it is mapped, as mapped pages stay in memory
                file.write(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
            put = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
        finally:
            with suppress(PermissionError):  # Windows keeps a mapped file until it is closed
                path.unlink()
    vars(put)["in_a_file"] = True
    return put


def dismiss(tensor: Tensor) -> None:
    """Drop a tensor that was put aside from memory until it is read again; leave any other tensor alone."""
    if "in_a_file" in vars(tensor):  # the file is shared, so nothing is lost
        _libc("madvise", ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), mmap.MADV_DONTNEED)


def give_back() -> None:
    """Return the memory of freed tensors to the system; small tensors between them would keep it in the heap."""
    _libc("malloc_trim", 0)


@contextmanager
def large_tensors_apart() -> Iterator[None]:
    """Inside, tensors of 4 MB and more lie outside the heap, so that all their memory is freed with them."""
    _libc("mallopt", -3, 2**22)  # M_MMAP_THRESHOLD of glibc
    try:
        yield
    finally:
        _libc("mallopt", -3, 2**25)  # what glibc raises it to by itself


def _libc(name: str, *arguments: Any) -> None:
    """Call a function of the C library, if it has it."""
    if os.name == "posix" and (function := getattr(ctypes.CDLL(None), name, None)) is not None:
        function(*arguments)


@contextmanager
def restoring(model: nn.Module) -> Iterator[None]:
    """Restore the modules of a model when the block is left, also after an error.

    Restored are submodules, attributes, hooks, training mode, the memory and device of parameters and buffers, and the
    attributes of configurations; not values that were written into the same memory.
    """
    modules = list(model.modules())
    configs = {id(config): config for m in modules if (config := getattr(m, "config", None)) is not None}
    held = [vars(holder) for holder in (*modules, *configs.values())]
    # modules keep hooks, parameters, buffers and submodules in dictionaries
    held += [inner for module in modules for inner in vars(module).values() if isinstance(inner, dict)]
    before = [(now, dict(now)) for now in held]
    tensors = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        for now, then in before:
            now.clear()
            now.update(then)
        for tensor, data in tensors:
            tensor.data = data


# --- fingerprints ----------------------------------------------------------------------


def weights_fingerprint(modules: Sequence[nn.Module]) -> str:
    """The digest of all parameters and buffers, 32 hex digits: names, dtypes, shapes and bytes.

    The same weights give the same digest on any machine of the same byte order.
    """
    digest = hashlib.blake2b(digest_size=16)
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            add_tensor(digest, name, tensor)
    return digest.hexdigest()


def add_tensor(digest: Any, name: str, value: object) -> None:
    """Add an entry of a state dict to a digest of hashlib: a tensor, or the parts of a packed one."""
    if not isinstance(value, Tensor):
        return
    if hasattr(value, "__tensor_flatten__"):
        inner, settings = value.__tensor_flatten__()
        digest.update(f"{name}:{type(value).__name__}:{settings};".encode())
        for part in inner:
            add_tensor(digest, f"{name}.{part}", getattr(value, part))
        return
    digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
    data = value.detach().cpu().contiguous().flatten()
    if data.numel():
        digest.update(data.view(torch.uint8).numpy().data)


def runtime_of(weight: Tensor) -> dict[str, str]:
    """Return the libraries, device and dtype, which decide embeddings beside weights and inputs."""
    installed = {
        name: version_of(name) or "not installed" for name in ("torch", "transformers", "sentence-transformers")
    }
    return {**installed, "device": weight.device.type, "dtype": str(weight.dtype)}
