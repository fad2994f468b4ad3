"""AdaRound, built in; it takes longer than all the others together."""

from quantdrift.quantizers import Quantizer

QUANTIZER = Quantizer(
    title="AdaRound", make="quantdrift.engine.quantizers.adaround:from_scheme", calibrated=True, tried=False, place=50
)
