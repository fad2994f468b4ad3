"""GPTQ, by gptqmodel."""

from quantdrift.kinds.quantizer import Package, Quantizer


def _operations(rows: int, columns: int) -> float:
    """Measured on matrices of 384 to 1,536: a loop over columns, their updates of a block, and two factors."""
    return (5.4e6 + 12e3 * rows + 2.8 * columns**2) * columns


QUANTIZER = Quantizer(
    title="GPTQ",
    make="quantdrift.builtin.gptq.work:from_scheme",
    calibrated=True,
    options=("backend", "grid"),
    packages=(Package(name="gptqmodel", module="gptqmodel", extra="gptq", note="gptq, gptq_ao and awq"),),
    place=10,
    operations=_operations,
)
