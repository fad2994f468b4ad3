"""`quantdrift cache`."""

from __future__ import annotations

import os
import shutil

from quantdrift.cli.tables import console
from quantdrift.paths import CACHE_VARIABLE, cache_dir

__all__ = ["cache_command"]

KINDS = {
    "embeddings": ("*.npy", "embedding files"),
    "codes": ("*.safetensors", "quantized layers"),
    "sensitivities": ("*.npy", "sensitivities of layers"),
    "probes": ("*.npz", "linear probes"),
    "servers": ("*.npz", "models seen on servers"),
}
"""Folder to what is kept in it, and what that is called."""


def cache_command(*, clear: bool) -> None:
    """Show, or empty, the folders of what is kept between runs.

    Args:
        clear: delete all of it; other files in the cache folder stay.
    """
    out = console()
    if os.environ.get(CACHE_VARIABLE, "").strip().lower() == "off":
        out.print(f"nothing is kept: {CACHE_VARIABLE} is off", highlight=False)
        return
    root = cache_dir()
    for name, (pattern, called) in KINDS.items():
        folder = root / name
        n = sum(path.is_file() for path in folder.rglob(pattern))
        # what is unfinished takes room, too
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if clear:
            shutil.rmtree(folder, ignore_errors=True)
        text = f"{'deleted ' if clear else ''}{n:,} {called}, {size / 1e6:,.1f} MB in {folder}"
        out.print(text, highlight=False, markup=False, soft_wrap=True)
