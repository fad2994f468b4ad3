"""The rate at which this machine computes a block of a model, measured in about a second and kept for a day."""

import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from quantdrift.base.display import first_line
from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.base.records import Amount, Record
from quantdrift.models.files.shape import Shape
from quantdrift.models.store import key_of

_LENGTH, _TOKENS, _OPERATIONS = 64, 1 << 15, 1e10
"""Tokens of an input of the probe, most tokens of a pass, and most operations of one on a CPU."""
_SECONDS, _DAY = 0.3, 86400
"""Least time of the probe, and time after which it is measured again."""


class Rate(Record):
    """Operations in a second on a device, for blocks of one shape, `measured` in seconds since 1970."""

    FORMAT: ClassVar[str] = "quantdrift-rate"
    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "a rate of this machine"
    MAKE: ClassVar[str] = "quantdrift run SPEC --data FOLDER --plan"

    device: str
    dtype: str
    operations: Amount
    measured: Amount


def rate_of(shape: Shape, *, device: str | None, dtype: str, root: Path | None) -> Rate:
    """Return the rate of a device for a model, from the cache folder if it was measured within a day."""
    key = key_of(version=1, block=shape.matrices, device=device, dtype=dtype, torch=version_of("torch"))
    path = None if root is None else root / "rates" / key[:2] / f"{key}.json"
    with suppress(RunError):  # it is missing or damaged, and measured again
        if path is not None and 0 <= time.time() - (kept := Rate.read(path)).measured < _DAY:
            return kept
    try:
        rate = measured_rate(shape, device=device, dtype=dtype)
    except (RuntimeError, MemoryError) as error:  # a block does not fit, or the device lacks the number type
        raise UnsupportedError(f"a block of the model cannot be computed here: {first_line(error)}") from error
    with suppress(RunError):  # a full disk is told by what needs it
        if path is not None:
            path.unlink(missing_ok=True)
            rate.write(path)
    return rate


def measured_rate(shape: Shape, *, device: str | None, dtype: str) -> Rate:
    """Compute the products, the attention and the norms of a block on random numbers until that takes 0.3 seconds."""
    import torch  # noqa: PLC0415 -- takes seconds to import
    from torch.nn import functional  # noqa: PLC0415 -- as above

    from quantdrift.builtin.sentence.work import pick_device  # noqa: PLC0415 -- as above

    place = pick_device(device)
    n = max(1, int(_TOKENS if place.type != "cpu" else min(_TOKENS, _OPERATIONS / (2 * shape.block))) // _LENGTH)
    weights = [torch.randn(size).to(place, getattr(torch, dtype)) for size in shape.matrices]
    inputs = {size: torch.randn(n * _LENGTH, size).to(weights[0]) for _, size in shape.matrices}
    states, inner = inputs[shape.hidden], inputs[shape.matrices[-1][1]]
    heads = states.view(n, _LENGTH, shape.heads, -1).transpose(1, 2)

    def block() -> None:
        for weight in weights:
            made = functional.linear(inputs[weight.shape[1]], weight)
        functional.scaled_dot_product_attention(heads, heads, heads)
        functional.gelu(inner)
        functional.layer_norm(functional.layer_norm(states, [shape.hidden]) + made, [shape.hidden])
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    with torch.inference_mode():
        block()  # the first call takes longer
        start, passes = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < _SECONDS:
            block()
            passes += 1
    operations = passes * n * _LENGTH * (2 * shape.block + 4 * shape.hidden * _LENGTH) / spent
    return Rate(device=str(place), dtype=dtype, operations=operations, measured=time.time())
