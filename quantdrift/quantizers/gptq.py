"""GPTQ, by gptqmodel, auto-gptq or optimum."""

from quantdrift.quantizers import Package, Quantizer

PACKAGES = (
    Package(name="gptqmodel", module="gptqmodel", extra="gptq", note="gptq and gptq_ao"),
    Package(name="auto-gptq", module="auto_gptq", extra="auto-gptq", note="gptq and gptq_ao, +backend=auto-gptq"),
    Package(
        name="optimum", module="optimum", extra="optimum", note="gptq of whole models, +backend=optimum", by_name=True
    ),
)
QUANTIZER = Quantizer(
    title="GPTQ",
    make="quantdrift.engine.quantizers.gptq:from_scheme",
    calibrated=True,
    options=("backend", "grid", "guided"),
    packages=PACKAGES,
    place=10,
)
