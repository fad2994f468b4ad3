"""What a checkpoint of bitsandbytes says of its codes, held against the codes before the library reads it.

The library believes what the file says: a wrong shape or block size is an assertion, a division by zero, or memory that
is read out of bounds.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import safe_open

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import Real
from quantdrift.engine.encoders.stored import StoredTensor, read_head

_STATE = ".quant_state.bitsandbytes__"
_FLOATS = Literal["float32", "float16", "bfloat16"]
_MOST = 10_000
"""Bytes of a state; one takes two hundred."""


class _State(BaseModel):
    """A state of a matrix in 4 bits, as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    quant_type: Literal["nf4", "fp4"]
    blocksize: Literal[32, 64, 128, 256, 512, 1024, 2048, 4096]
    dtype: _FLOATS
    shape: tuple[Annotated[int, Field(gt=0, lt=1 << 31)], Annotated[int, Field(gt=0, lt=1 << 31)]]
    nested_blocksize: Literal[64, 128, 256, 512, 1024, 2048, 4096] | None = None
    nested_dtype: _FLOATS | None = None
    nested_offset: Real | None = None


def check_quant_states(files: list[Path], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse states and scales that do not fit the codes beside them; `shapes` are the layers' by name.

    Raises:
        UnsupportedError: one does not.
    """
    heads = {file: read_head(file) for file in files}
    tensors = {name: tensor for head in heads.values() for name, tensor in head.items()}
    for file, head in heads.items():
        for name, tensor in head.items():
            if _STATE in name:
                weight, _, kind = name.partition(_STATE)
                _check_state(_read(file, name, tensor), kind, weight, tensors, shapes)
            elif name.endswith(".SCB"):
                weight = name.removesuffix(".SCB") + ".weight"
                rows = tensors[weight].shape[:1] if weight in tensors else ()
                if tensor.dtype != "F32" or tensor.shape != rows or tensors[weight].dtype != "I8":
                    raise _damaged(name, f"scales F32 {list(rows)} of a matrix I8")


def _read(file: Path, name: str, tensor: StoredTensor) -> _State:
    if tensor.dtype == "U8" and len(tensor.shape) == 1 and tensor.n_bytes <= _MOST:
        with safe_open(file, framework="pt") as opened:
            text = bytes(opened.get_tensor(name).tolist())
        try:
            return _State.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise _damaged(name, f"{'.'.join(map(str, first['loc'])) or 'an object'}: {first['msg']}") from error
    raise _damaged(name, f"at most {_MOST:,} bytes of JSON")


def _check_state(
    state: _State, kind: str, weight: str, tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    n_weights = prod(state.shape)
    n_blocks = -(-n_weights // state.blocksize)
    nested = state.nested_blocksize is not None
    wanted = {".absmax": ("U8" if nested else "F32", n_blocks), ".quant_map": ("F32", 16)}
    if state.nested_blocksize is not None:
        wanted[".nested_absmax"] = ("F32", -(-n_blocks // state.nested_blocksize))
        wanted[".nested_quant_map"] = ("F32", 256)
    for end, (dtype, count) in wanted.items():
        tensor = tensors.get(f"{weight}{end}")
        if tensor is None or (tensor.dtype, prod(tensor.shape)) != (dtype, count):
            raise _damaged(f"{weight}{end}", f"{count:,} numbers {dtype}, as its quant_state says")
    if weight not in tensors or tensors[weight].n_bytes != -(-n_weights // 2):  # FSDP keeps codes in any type
        raise _damaged(weight, f"4 bits for each of {n_weights:,} weights, as its quant_state says")
    if kind != state.quant_type or nested is not (None not in (state.nested_dtype, state.nested_offset)):
        raise _damaged(f"{weight}{_STATE}{kind}", "a state of that type, and all or none of what is nested")
    layer = weight.removesuffix(".weight")
    shape = next((shape for name, shape in shapes.items() if f".{layer}".endswith(f".{name}")), state.shape)
    if shape != state.shape:
        raise _damaged(weight, f"the shape {list(shape)} of its layer, not {list(state.shape)}")


def _damaged(name: str, expected: str) -> UnsupportedError:
    return UnsupportedError(
        f"{shown(name)} of a checkpoint of bitsandbytes is damaged; expected {expected}. Copy it here again"
    )
