"""`quantdrift cache`."""

from __future__ import annotations

import shutil

from quantdrift.cli.tables import console
from quantdrift.paths import cache_dir

__all__ = ["cache_command"]


def cache_command(*, clear: bool) -> None:
    """Show, or empty, the folder that embeddings are kept in."""
    folder = cache_dir() / "embeddings"
    files = [path for path in folder.rglob("*.npy") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    out = console()
    text = f"{len(files)} embedding files, {size / 1e6:,.1f} MB in {folder}"
    if not clear:
        out.print(text, highlight=False, soft_wrap=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    out.print(f"deleted {text}", highlight=False, soft_wrap=True)
