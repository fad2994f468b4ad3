"""The methods that make a scheme; a method's module is loaded when it is asked for."""

from pathlib import Path

from quantdrift.allocation.record import Allocation
from quantdrift.candidate.quantized import LayerQuantizer
from quantdrift.candidate.refusals import refuse_settings
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import at_width


def methods_of(scheme: Scheme) -> dict[int, LayerQuantizer | None]:
    """Width to what quantizes a layer to it, for every width that the scheme's layers may have; None for 16 bits."""
    refuse_settings(scheme)
    methods = {bits: method_at(scheme, bits) for bits in scheme.widths}
    stored_allocation(scheme)  # what is wrong with it would otherwise be said when the reference has answered
    return methods


def method_at(scheme: Scheme, bits: int) -> LayerQuantizer | None:
    """Return the method that quantizes a layer to one width, in everything else as a scheme says; None for 16 bits."""
    if bits == FULL_BITS:
        return None
    method: LayerQuantizer = QUANTIZERS[scheme.quantizer].method(at_width(scheme, bits))
    return method


def stored_allocation(scheme: Scheme) -> Allocation | None:
    """The allocation of the file that `+allocation=` names; None where it names none."""
    given = scheme.option("allocation")
    return None if given is None else Allocation.read(Path(given).expanduser())
