"""Round to nearest, built in."""

from quantdrift.quantizers import Quantizer

QUANTIZER = Quantizer(title="RTN", make="quantdrift.engine.quantizers.rtn:from_scheme", place=0)
