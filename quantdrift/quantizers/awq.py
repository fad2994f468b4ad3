"""AWQ, by autoawq."""

from quantdrift.quantizers import Package, Quantizer

QUANTIZER = Quantizer(
    title="AWQ",
    make="quantdrift.engine.quantizers.awq:from_scheme",
    calibrated=True,
    packages=(Package(name="autoawq", module="awq", extra="awq", note="awq"),),
    place=30,
)
