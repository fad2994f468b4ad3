"""The number formats that are deployed: fp8, mxfp8, mxfp4, nvfp4, int8, and bitsandbytes' nf4, fp4 and llm_int8.

Each is a quantizer of one width. Its grid is that of the library that its work names, bit for bit.
"""

from dataclasses import replace

from quantdrift.kinds.quantizer import Quantizer, group_bits

_FLOATS = "quantdrift.builtin.formats.floats"
_BNB = "quantdrift.builtin.formats.bnb"


def _bytes(n_rows: int, n_columns: int, group_size: int | None) -> int:
    """Return the bits of one byte for every block of a row."""
    return group_bits(n_rows, n_columns, group_size, bits=8)


def _blocks(n_rows: int, n_columns: int, group_size: int | None) -> int:
    """Return the number of bitsandbytes' blocks, which span rows."""
    return -(-n_rows * n_columns // (group_size or n_columns))


def _double(n_rows: int, n_columns: int, group_size: int | None) -> int:
    """Return the bits of double quantization: a byte a block, a float32 for 256 of these, and one for their mean."""
    n_blocks = _blocks(n_rows, n_columns, group_size)
    return 8 * n_blocks + 32 * -(-n_blocks // 256) + 32


_FP8 = Quantizer(
    title="FP8",
    make=f"{_FLOATS}:from_scheme",
    inputs=f"{_FLOATS}:fp8_inputs",
    widths=(8,),
    groups=(None,),
    input_widths=(8,),
    in_repair=False,
    place=60,
    operations=lambda rows, columns: 3e3 * rows * columns,
    aliases="float8|f8|e4m3|fp8_.+",
)
_INT8 = replace(_FP8, title="INT8", inputs=f"{_FLOATS}:int8_inputs", place=62, aliases="8-?bits?")
_MXFP8 = replace(
    _FP8,
    title="MXFP8",
    inputs=f"{_FLOATS}:mx_inputs",
    groups=(32,),
    ranges=("block",),
    overhead_bits=_bytes,
    place=64,
    aliases="mx|mxfp8a16",
)
_MXFP4 = replace(_MXFP8, title="MXFP4", widths=(4,), input_widths=(8, 4), place=65, aliases="mx|fp4|mxfp4a16")
_NVFP4 = replace(
    _MXFP4,
    title="NVFP4",
    inputs=f"{_FLOATS}:nvfp4_inputs",
    groups=(16,),
    input_widths=(4,),
    ranges=("tensor",),
    overhead_bits=lambda *shape: _bytes(*shape) + 32,  # and the scale of the tensor
    place=66,
    aliases="fp4|nvfp4a16",
)
_NF4 = Quantizer(
    title="NF4",
    make=f"{_BNB}:from_scheme",
    widths=(4,),
    groups=(64, 32, 128, 256, 512, 1024, 2048, 4096),
    overhead_bits=lambda *shape: 32 * _blocks(*shape),
    in_repair=False,
    place=68,
    operations=lambda rows, columns: 2e3 * rows * columns,
    aliases="4-?bits?|bnb.*|qlora",
)
_FP4 = replace(_NF4, title="FP4 (bitsandbytes)", place=70, aliases="")

QUANTIZER = {
    "fp8": _FP8,
    "fp8_tensor": replace(_FP8, title="FP8 (per tensor)", overhead_bits=lambda *_: 16, place=61, aliases=""),
    "int8": _INT8,
    "llm_int8": replace(
        _INT8,
        title="LLM.int8",
        make=f"{_BNB}:llm_int8",
        inputs=f"{_BNB}:llm_int8_inputs",
        depends_on_batch=True,
        ranges=("token",),
        overhead_bits=lambda *shape: group_bits(*shape, bits=32),
        place=63,
        aliases="8-?bits?|llm[.]int8",
    ),
    "mxfp8": _MXFP8,
    "mxfp4": _MXFP4,
    "nvfp4": _NVFP4,
    "nf4": _NF4,
    "nf4_dq": replace(_NF4, title="NF4 (double quantization)", overhead_bits=_double, place=69, aliases=""),
    "fp4": _FP4,
    "fp4_dq": replace(_FP4, title="FP4 (double quantization)", overhead_bits=_double, place=71),
}
"""Formats by name."""
