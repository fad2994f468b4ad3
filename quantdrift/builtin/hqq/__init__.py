"""HQQ, by hqq."""

from quantdrift.kinds.quantizer import Package, Quantizer, group_bits

QUANTIZER = Quantizer(
    title="HQQ",
    make="quantdrift.builtin.hqq.work:from_scheme",
    packages=(Package(name="hqq", module="hqq", extra="hqq", note="hqq"),),
    place=40,
    operations=lambda rows, columns: 19e3 * rows * columns,  # twenty iterations
    overhead_bits=lambda *shape: 2 * group_bits(*shape),  # a scale and a zero point
)
