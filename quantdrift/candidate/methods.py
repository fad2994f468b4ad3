"""The quantization methods of a scheme; a method's module is loaded when it is needed."""

from pathlib import Path

from quantdrift.allocation.record import Allocation
from quantdrift.candidate.quantized import LayerQuantizer
from quantdrift.candidate.refusals import refuse_missing_library, refuse_settings
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import at_width


def methods_of(scheme: Scheme) -> dict[int, LayerQuantizer | None]:
    """Map every width that the scheme's layers may have to its method; 16 bits to None."""
    refuse_settings(scheme)
    refuse_missing_library(scheme)
    methods = {bits: method_at(scheme, bits) for bits in scheme.widths}
    stored_allocation(scheme)  # read early, as errors would otherwise come after the reference has run
    return methods


def method_at(scheme: Scheme, bits: int) -> LayerQuantizer | None:
    """Return the method of a scheme at another width; None for 16 bits."""
    if bits == FULL_BITS:
        return None
    method: LayerQuantizer = QUANTIZERS[scheme.quantizer].method(at_width(scheme, bits))
    return method


def stored_allocation(scheme: Scheme) -> Allocation | None:
    """Read the allocation that `+allocation=` names; None without that option."""
    given = scheme.option("allocation")
    return None if given is None else Allocation.read(Path(given).expanduser())
