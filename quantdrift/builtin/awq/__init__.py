"""AWQ, by gptqmodel or autoawq."""

from quantdrift.builtin import gptq
from quantdrift.kinds.quantizer import Package, Quantizer


def _operations(rows: int, columns: int) -> float:
    """Measured on matrices of 384 to 1,536: twenty products with a factor of the second moment, and the rest."""
    return (3.8e6 + (22e3 + 40.0 * columns) * rows) * columns


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
