"""Round to nearest, built in."""

from quantdrift.kinds.quantizer import Quantizer

QUANTIZER = Quantizer(title="RTN", make="quantdrift.builtin.rtn.work:from_scheme", place=0)
