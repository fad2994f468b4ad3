"""AdaRound, built in: a quantizer that takes longer than all the others together."""

from quantdrift.kinds.quantizer import Quantizer

QUANTIZER = Quantizer(
    title="AdaRound", make="quantdrift.builtin.adaround.work:from_scheme", calibrated=True, tried=False, place=50
)
