"""HQQ, by hqq."""

from quantdrift.quantizers import Package, Quantizer

QUANTIZER = Quantizer(
    title="HQQ",
    make="quantdrift.engine.quantizers.hqq:from_scheme",
    packages=(Package(name="hqq", module="hqq", extra="hqq", note="hqq"),),
    place=40,
)
