"""Routing: unsure inputs go to full precision. When it pays, what it gives back, and serving it.

Nothing here needs torch.
"""

from __future__ import annotations

from quantdrift.routing.router import GapRouter
from quantdrift.routing.serving import Routed, RoutedBatch, RoutedModel

__all__ = ["GapRouter", "Routed", "RoutedBatch", "RoutedModel"]
