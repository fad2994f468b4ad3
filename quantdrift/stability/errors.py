"""What a stability check refuses, and what it warns of."""

from __future__ import annotations

from quantdrift.errors import QuantDriftError

__all__ = ["MAKE", "ExchangeabilityWarning", "StabilityError"]

MAKE = "quantdrift certify RUN --alpha A --save FILE"
"""The command that writes a check, for messages."""


class StabilityError(QuantDriftError):
    """A stability check cannot be calibrated, read, or used for this."""


class ExchangeabilityWarning(UserWarning):
    """Served inputs do not look like the calibration inputs, so the guarantee may not hold."""
