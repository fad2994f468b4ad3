"""Which quantized answers can be trusted as the reference's: calibrate once, check every answer.

Source: paper, section 3, "From condition to stability check".
"""

from __future__ import annotations

from quantdrift.stability.certify import ALPHAS, Certificate, Certified, Spread, certify
from quantdrift.stability.check import StabilityCheck
from quantdrift.stability.errors import ExchangeabilityWarning, StabilityError
from quantdrift.stability.nonconformity import STATISTICS, Observed, Statistic, observe
from quantdrift.stability.resemblance import Resemblance

__all__ = [
    "ALPHAS",
    "STATISTICS",
    "Certificate",
    "Certified",
    "ExchangeabilityWarning",
    "Observed",
    "Resemblance",
    "Spread",
    "StabilityCheck",
    "StabilityError",
    "Statistic",
    "certify",
    "observe",
]
