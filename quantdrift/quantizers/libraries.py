"""The libraries that do a method: whether one is there, which version, and what a scheme asks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.errors import DataError, MissingExtraError, UnsupportedError, nearest
from quantdrift.quantizers.base import Moments
from quantdrift.spec import Scheme

__all__ = ["GRIDS", "Library", "calibrated", "setting"]

GRIDS = ("paper", "library")
"""Values of `+grid=`: the grid that the paper defines, or the library's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A package that quantizes, known without importing it.

    Attributes:
        backend: its name in a scheme, `+backend=`.
        module: what is imported.
        distribution: what is installed.
        extra: the quantdrift extra that brings it.
    """

    backend: str
    module: str
    distribution: str
    extra: str

    def is_installed(self) -> bool:
        """Whether the module can be found; nothing is imported."""
        return importlib.util.find_spec(self.module) is not None

    def require(self, *, needed_for: str) -> None:
        """Raise MissingExtraError, which names the extra, if it is not installed."""
        if not self.is_installed():
            raise MissingExtraError(self.distribution, self.extra, needed_for=needed_for)

    def version(self) -> str:
        """The installed version; "unknown" for a module without metadata."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"


def setting(scheme: Scheme, key: str, known: Sequence[str]) -> str | None:
    """The value of a setting, None if the scheme leaves it out.

    Raises:
        UnsupportedError: it is none of `known`; names them.
    """
    value = scheme.option(key)
    if value is None or value in known:
        return value
    close = nearest(value, known, n=1)
    meant = f"; did you mean +{key}={close[0]}?" if close else ""
    takes = " or ".join(f"+{key}={one}" for one in known)
    raise UnsupportedError(f"{scheme.quantizer} takes {takes}, got +{key}={value}{meant}")


def calibrated(moments: Moments | None, *, method: str) -> Moments:
    """The moments, which a calibrated method cannot do without.

    Libraries divide by the number of tokens, or fall back to plain rounding without a word.

    Raises:
        DataError: no token reached the layer, or the moments are not finite.
    """
    if moments is None or moments.n_tokens == 0:
        raise DataError(
            f"{method} needs the inputs of the layer, and no calibration token reached it; "
            "calibrate on more or other documents, or use rtn or hqq for this layer"
        )
    if not bool(moments.second.isfinite().all() and moments.mean_abs.isfinite().all()):
        raise DataError(
            f"{method} needs finite second moments of the layer's input, got infinities or NaN; "
            "run the reference in float32 or bfloat16, whose activations do not overflow"
        )
    return moments
