"""AWQ, by gptqmodel or autoawq."""

from quantdrift.builtin import gptq
from quantdrift.kinds.quantizer import Package, Quantizer


def _operations(rows: int, columns: int) -> float:
    """Measured on matrices of 384 to 3,072, and of a whole model: twenty roundings and products, and a factor."""
    return (5e6 + 25e3 * rows + 2.0 * columns**2) * columns


QUANTIZER = Quantizer(
    title="AWQ",
    make="quantdrift.builtin.awq.work:from_scheme",
    calibrated=True,
    options=("backend",),
    packages=(
        *gptq.QUANTIZER.packages,
        Package(name="autoawq", module="awq", extra="autoawq", note="awq, +backend=autoawq (deprecated)"),
    ),
    place=30,
    operations=_operations,
)
