"""AWQ, by gptqmodel."""

from quantdrift.quantizers import Quantizer, gptq

QUANTIZER = Quantizer(
    title="AWQ",
    make="quantdrift.engine.quantizers.awq:from_scheme",
    calibrated=True,
    packages=gptq.QUANTIZER.packages,
    place=30,
)
