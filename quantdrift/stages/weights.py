"""The weights of the linear layers: their bits, and what chooses between widths."""

from quantdrift.stages import Option, Stage

FULL_BITS = 16
"""Stands for a weight that is left alone, whatever its dtype."""
MIN_BITS, MAX_BITS = 2, 8
"""Of quantized weights."""
POSSIBLE_BITS = frozenset({*range(MIN_BITS, MAX_BITS + 1), FULL_BITS})
DEFAULT_GROUP_SIZE = 128
DEFAULT_QUANTIZER = "rtn"
_COUNT = Option(pattern="[1-9][0-9]{0,8}", values="a whole number, 1 or more")
CHOICE = {
    "allocation": Option(values="a file of quantdrift allocate"),
    "queries": _COUNT,
    "solver": Option(pattern="knapsack|greedy", values="knapsack or greedy"),
    "units": Option(pattern="layer|fused", values="layer or fused"),
    "widths": Option(pattern="[2-8](,[2-8])+", values="whole numbers from 2 to 8, such as 2,3,4,8"),
}
"""Options that say how a criterion chooses widths."""
STAGE = Stage(
    what="weights of the linear layers: W4, W3.5+gap",
    kind="layers",
    place=0,
    present=lambda scheme: scheme.weight_bits != FULL_BITS,
    without={
        "weight_bits": float(FULL_BITS),
        "group_size": DEFAULT_GROUP_SIZE,
        "quantizer": DEFAULT_QUANTIZER,
        "criterion": None,
    },
    options={
        **CHOICE,
        "backend": Option(
            pattern="gptqmodel|autoawq",
            values="gptqmodel (auto-gptq is archived, and optimum rounds by gptqmodel; +grid=library makes the same "
            "codes), or autoawq of awq",
        ),
        "grid": Option(pattern="paper|library", values="paper or library"),
    },
    formats=("safetensors", "onnx"),
)
