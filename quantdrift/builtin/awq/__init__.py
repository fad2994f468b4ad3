"""AWQ, by gptqmodel."""

from quantdrift.builtin import gptq
from quantdrift.kinds.quantizer import Quantizer

QUANTIZER = Quantizer(
    title="AWQ",
    make="quantdrift.builtin.awq.work:from_scheme",
    calibrated=True,
    packages=gptq.QUANTIZER.packages,
    place=30,
)
