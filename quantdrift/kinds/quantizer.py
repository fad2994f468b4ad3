"""The descriptions of quantizers, each in a module of quantdrift or an entry point of another package."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quantdrift.base.registry import Package, Registry, imported
from quantdrift.scheme import Scheme


def group_bits(n_rows: int, n_columns: int, group_size: int | None, *, bits: int = 16) -> int:
    """The bits for one number in every group of a matrix, such as the 16-bit scale of a runtime.

    >>> group_bits(2, 100, 64), group_bits(2, 100, None)
    (64, 32)
    """
    return n_rows * (1 if group_size is None else -(-n_columns // group_size)) * bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """A quantizer, described without torch.

    Attributes:
        title: its name in papers.
        make: "module:function" that makes the `LayerQuantizer` of a scheme, loaded when it is needed.
        calibrated: whether it needs the inputs of each layer.
        options: the settings of a scheme that it takes itself, such as "grid".
        packages: the packages that do the work, the preferred one first; none where it is built in.
        in_repair: whether `repair` tries it unasked.
        place: its position in lists; lower comes first.
        overhead_bits: the bits beside the codes of a matrix, from (rows, columns, group size).
        widths: the possible bits of a weight in a number format; empty for integers of any width.
        groups: how many weights of such a format may share a scale, the usual number first.
        input_widths: the bits that the inputs of a layer may have.
        ranges: the possible scopes of an input range, `+act=`: "tensor", "token" or "block"; the usual one first.
        inputs: "module:function" that rounds a layer's inputs; see `candidate.calibration.inputs.Rounding`.
        depends_on_batch: whether a whole batch decides how the inputs of a layer are rounded.
        operations: the operations of a matrix product that take as long as quantizing a matrix, from (rows, columns);
            a forecast divides them by the rate of the machine. Passes over calibration inputs are not among them.
        aliases: regular expression of the names that other tools give it.
    """

    title: str
    make: str
    calibrated: bool = False
    options: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    in_repair: bool = True
    place: int = 100
    overhead_bits: Callable[[int, int, int | None], int] = group_bits
    widths: tuple[int, ...] = ()
    groups: tuple[int | None, ...] = ()
    input_widths: tuple[int, ...] = (4, 5, 6, 7, 8)
    ranges: tuple[str, ...] = ("tensor", "token")
    inputs: str = ""
    depends_on_batch: bool = False
    operations: Callable[[int, int], float] = lambda rows, columns: 320.0 * rows * columns
    aliases: str = ""

    def method(self, scheme: Any) -> Any:
        """Make the `LayerQuantizer` of a scheme."""
        return imported(self.make)(scheme)


__all__ = ["QUANTIZERS", "Package", "Quantizer", "group_bits", "input_scale"]

QUANTIZERS: Registry[Quantizer] = Registry(
    "quantdrift.quantizers", package="quantdrift.builtin", attribute="QUANTIZER", kind=Quantizer, joint="_"
)
"""All quantizers by name, in the order of lists."""


def input_scale(scheme: Scheme) -> str:
    """The scope of a scale of activations: a "tensor", by calibration; or a "token" or "block", as the model runs."""
    return scheme.option("act", QUANTIZERS[scheme.quantizer].ranges[0])
