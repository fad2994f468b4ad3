"""AdaRound, built in: a quantizer that takes longer than all the others together."""

from quantdrift.quantizers import Quantizer

QUANTIZER = Quantizer(
    title="AdaRound", make="quantdrift.features.adaround.rounding:from_scheme", calibrated=True, tried=False, place=50
)
