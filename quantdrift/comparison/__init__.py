"""Two candidates of one reference on the same inputs: is one worse, or no worse by a margin?"""

from __future__ import annotations

from quantdrift.comparison.runs import DEFAULT_METRICS, Comparison, compare_runs

__all__ = ["DEFAULT_METRICS", "Comparison", "compare_runs"]
