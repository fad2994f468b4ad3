"""GPTQ, by gptqmodel."""

from quantdrift.kinds.quantizer import Package, Quantizer

QUANTIZER = Quantizer(
    title="GPTQ",
    make="quantdrift.builtin.gptq.work:from_scheme",
    calibrated=True,
    options=("backend", "grid"),
    packages=(Package(name="gptqmodel", module="gptqmodel", extra="gptq", note="gptq, gptq_ao and awq"),),
    place=10,
)
