"""Where quantdrift keeps files of its own."""

from __future__ import annotations

import os
from pathlib import Path

from quantdrift.errors import RunError

CACHE_VARIABLE = "QUANTDRIFT_CACHE"


def cache_dir() -> Path:
    """The folder for cached files, such as reference embeddings; it need not exist yet.

    `QUANTDRIFT_CACHE` where it is set, else `$XDG_CACHE_HOME/quantdrift`, else `~/.cache/quantdrift`. As the XDG
    specification asks, a relative XDG_CACHE_HOME is ignored.
    """
    try:
        if chosen := os.environ.get(CACHE_VARIABLE, "").strip():
            return Path(chosen).expanduser().absolute()
        shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = shared if shared.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:  # pathlib's way to say that the user has no home folder
        raise RunError(
            f"no home folder was found to keep the cache in; set {CACHE_VARIABLE} to a folder that can be written to"
        ) from error
    return base / "quantdrift"
