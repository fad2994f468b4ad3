"""Quantdrift: which answers did quantization change, and which can still be trusted.

Nothing heavy is imported here: `import quantdrift` loads neither torch nor numpy.
"""

from __future__ import annotations

__version__ = "0.1.0"
