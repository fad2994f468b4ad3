"""GPTQ, by gptqmodel."""

from quantdrift.quantizers import Package, Quantizer

QUANTIZER = Quantizer(
    title="GPTQ",
    make="quantdrift.engine.quantizers.gptq:from_scheme",
    calibrated=True,
    options=("backend", "grid"),
    packages=(Package(name="gptqmodel", module="gptqmodel", extra="gptq", note="gptq and gptq_ao"),),
    place=10,
)
