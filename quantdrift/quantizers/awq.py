"""AWQ, by gptqmodel or autoawq."""

from quantdrift.quantizers import Package, Quantizer, gptq

QUANTIZER = Quantizer(
    title="AWQ",
    make="quantdrift.engine.quantizers.awq:from_scheme",
    calibrated=True,
    options=("backend",),
    packages=(
        *gptq.QUANTIZER.packages,
        Package(name="autoawq", module="awq", extra="autoawq", note="awq, +backend=autoawq (deprecated)"),
    ),
    place=30,
)
