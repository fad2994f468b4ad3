"""What is known of each quantizer without running it: one entry a module, or an entry point of another package."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quantdrift.base.registry import Package, Registry, imported
from quantdrift.scheme import Scheme


def group_bits(n_rows: int, n_columns: int, group_size: int | None, *, bits: int = 16) -> int:
    """Bits of one number for every group of a matrix, such as the 16-bit scale that runtimes read.

    >>> group_bits(2, 100, 64), group_bits(2, 100, None)
    (64, 32)
    """
    return n_rows * (1 if group_size is None else -(-n_columns // group_size)) * bits


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
        beside: bits that a matrix takes beside its codes, of (rows, columns, group size).
        widths: of a weight, where it is a number format and not a grid of integers of any width.
        groups: of such a format: how many input weights share a scale, the usual number first.
        input_widths: of a layer's inputs.
        ranges: what ends the grid of inputs, `+act=`, the usual one first; "block" says that each block does.
        inputs: "module:function" that rounds a layer's inputs; see `candidate.calibration.inputs.Rounding`.
        by_batch: whether a whole batch decides how the inputs of a layer are rounded.
        formats: of saved candidates that can carry its codes, or the weights that these stand for.
        words: regular expression of what other tools call it.
    """

    title: str
    make: str
    calibrated: bool = False
    options: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    tried: bool = True
    place: int = 100
    beside: Callable[[int, int, int | None], int] = group_bits
    widths: tuple[int, ...] = ()
    groups: tuple[int | None, ...] = ()
    input_widths: tuple[int, ...] = (4, 5, 6, 7, 8)
    ranges: tuple[str, ...] = ("tensor", "token")
    inputs: str = ""
    by_batch: bool = False
    formats: tuple[str, ...] = ("safetensors", "onnx")
    words: str = ""

    def method(self, scheme: Any) -> Any:
        """The method of a scheme, a `LayerQuantizer`."""
        return imported(self.make)(scheme)


__all__ = ["QUANTIZERS", "Package", "Quantizer", "group_bits", "input_scale"]

QUANTIZERS: Registry[Quantizer] = Registry(
    "quantdrift.quantizers", package="quantdrift.builtin", attribute="QUANTIZER", kind=Quantizer, joint="_"
)
"""All quantizers by name, in the order of lists."""


def input_scale(scheme: Scheme) -> str:
    """What activations share a scale: a "tensor", by calibration, or a "token" or "block", as the model runs."""
    return scheme.option("act", QUANTIZERS[scheme.quantizer].ranges[0])
