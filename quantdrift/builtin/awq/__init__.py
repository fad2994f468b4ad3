"""AWQ, by gptqmodel or autoawq."""

from quantdrift.builtin import gptq
from quantdrift.kinds.quantizer import Package, Quantizer

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
)
