"""What is known of each quantizer without running it: one entry a module, or an entry point of another package."""

from dataclasses import dataclass
from typing import Any

from quantdrift.base.registry import Package, Registry, imported


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """A quantizer, as grammar, refusals, doctor, fingerprints, repair and tables need it.

    Attributes:
        title: as a paper calls it.
        make: "module:function" that makes the method of a scheme: a `LayerQuantizer`; loaded when it is needed.
        calibrated: whether it needs the inputs of each layer.
        options: settings of a scheme that it takes itself, such as "grid".
        packages: what does it, the preferred one first; none for what is built in.
        tried: whether `repair` tries it unasked.
        place: in lists, ascending.
    """

    title: str
    make: str
    calibrated: bool = False
    options: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    tried: bool = True
    place: int = 100

    def method(self, scheme: Any) -> Any:
        """The method of a scheme, a `LayerQuantizer`."""
        return imported(self.make)(scheme)


__all__ = ["QUANTIZERS", "Package", "Quantizer"]

QUANTIZERS: Registry[Quantizer] = Registry(
    "quantdrift.quantizers", package="quantdrift.quantizers", attribute="QUANTIZER", kind=Quantizer, joint="_"
)
"""All quantizers by name, in the order of lists."""
