"""The weights of the linear layers: their bits, and the choice of widths."""

from collections.abc import Iterator

from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import Advice, Option, Stage
from quantdrift.scheme import DEFAULT_GROUP_SIZE, DEFAULT_QUANTIZER, FULL_BITS, MAX_BITS, Scheme

_COUNT = Option(pattern="[1-9][0-9]{0,8}", values="a whole number, 1 or more")
CHOICE = {
    "allocation": Option(values="a file of quantdrift allocate"),
    "queries": _COUNT,
    "solver": Option(pattern="knapsack|greedy", values="knapsack or greedy"),
    "units": Option(pattern="layer|fused", values="layer or fused"),
    "widths": Option(pattern="[2-8](,[2-8])+", values="whole numbers from 2 to 8, such as 2,3,4,8"),
}
"""Options that say how a criterion chooses widths."""


def _passes(scheme: Scheme, n_inputs: int, n_layers: int) -> float:
    """Forward passes to measure layers on gaps, each of an input, its first item and contenders."""
    n = max(1, min(int(scheme.option("queries", "128")), n_inputs))
    contenders, items = min(4, -(-128 // n)), not scheme.query_only  # as in quantdrift.measuring.problem
    rows = n * (1 + items * (1 + contenders))
    each = {
        "gap": 1 + 2 * contenders,  # a backward pass for every gap
        "gap_exact": n_layers * (len(scheme.widths) - 1),
    }
    return 0.0 if scheme.option("allocation") else float(rows * each.get(scheme.criterion or "", 0))


def _memory(scheme: Scheme, n_weights: int) -> float:
    """Bytes of the changes of weights by rounding that `gap` keeps beside the gradients."""
    return min(2**30, 4 * n_weights * (1 + len(scheme.widths))) if scheme.criterion == "gap" else 0.0


def not_plain(scheme: Scheme) -> Iterator[str]:
    """Yield the reasons why a scheme cannot be the start of `quantdrift repair`."""
    if scheme.weight_bits > MAX_BITS:
        yield "it quantizes no weights"
    if QUANTIZERS[scheme.quantizer].widths:
        yield f"{scheme.quantizer} has one width and blocks of one size, so that there is nothing to try beside it"
    if scheme.criterion is not None or scheme.option("allocation"):
        yield "its bits are chosen by layer already"
    if scheme.query_only:
        yield "+query is one of the configurations that repair tries"


def _mend(scheme: Scheme) -> Advice:
    if any(not_plain(scheme)):
        return Advice(what="Take more bits, or another quantizer.")
    return Advice(what="Find a deployment that changes fewer answers.", command="repair")


STAGE = Stage(
    what="weights of the linear layers: W4, W3.5+gap",
    kind="layers",
    place=0,
    is_present=lambda scheme: scheme.weight_bits != FULL_BITS,
    absent_fields={
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
    advice=_mend,
    passes=_passes,
    memory=_memory,
)
