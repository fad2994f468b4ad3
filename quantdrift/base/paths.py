"""The folders of quantdrift's cache and of its runs."""

import os
from contextlib import suppress
from pathlib import Path

CACHE_VARIABLE = "QUANTDRIFT_CACHE"
RUNS = Path("quantdrift-runs")
"""The default folder for runs."""


def keep_out_of_git(place: Path) -> None:
    """Make git ignore the default folder for runs, as pytest does with its cache, if a place lies in it."""
    if RUNS in place.parents:
        with suppress(OSError), open(RUNS / ".gitignore", "x", encoding="utf-8") as file:  # follows no link
            file.write("*\n")


def cache_dir() -> Path:
    """The folder for cached files, such as reference embeddings; it need not exist yet.

    `QUANTDRIFT_CACHE` where it is set, else `$XDG_CACHE_HOME/quantdrift`, else `~/.cache/quantdrift`. As the XDG
    specification asks, a relative XDG_CACHE_HOME is ignored.
    """
    if chosen := os.environ.get(CACHE_VARIABLE, "").strip():
        return Path(chosen).expanduser().absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "quantdrift"


def cache_is_off() -> bool:
    """Say whether the user wants nothing to be kept: QUANTDRIFT_CACHE=off."""
    return os.environ.get(CACHE_VARIABLE, "").strip().lower() == "off"
