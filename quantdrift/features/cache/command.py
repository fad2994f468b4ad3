"""`quantdrift cache`: what is kept from run to run."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from quantdrift.base.paths import CACHE_VARIABLE, cache_dir
from quantdrift.base.text import counted
from quantdrift.cli.options import flag, prints
from quantdrift.show.output import Output

KINDS = {
    "embeddings": (".npy", "embedding files"),
    "codes": (".safetensors", "quantized layers"),
    "sensitivities": (".npy", "sensitivities of layers"),
    "probes": (".npz", "linear probes"),
    "shards": (".npz", "parts of runs that were interrupted"),
    "servers": (".npz", "models seen on servers"),
}
"""Folder to the suffix of the files that quantdrift keeps in it, and what they are called."""
_OURS = re.compile(r"(?P<shelf>[0-9a-f]{2})/\.?(?P=shelf)[0-9a-f]{38}[./]|[0-9a-f]{32}/\.?[0-9a-f]{32}\.")
"""How the place of a file in such a folder begins; what is being written has a dot before its name."""
_DEAD = 600
"""Seconds after which what is being written is not written any more."""


@prints()
def command(*, clear: bool = flag("--clear: Delete it all; it is made again when needed.")) -> Output:
    """Show where embeddings, quantized layers and sensitivities are kept, and how much they take.

    Later runs reuse them, and an interrupted run goes on from them. --clear leaves alone what is not quantdrift's,
    and what a run wrote in the last ten minutes and has not finished.

    For example: quantdrift cache --clear

    More: docs/reference/runs.md
    """
    if os.environ.get(CACHE_VARIABLE, "").strip().lower() == "off":
        return Output(next=[f"nothing is kept: {CACHE_VARIABLE} is off"])
    return Output(next=[_of_kind(name, clear=clear) for name in KINDS])


def _of_kind(kind: str, *, clear: bool) -> str:
    """How much there is in one folder, deleted if asked for, and how much was left."""
    suffix, called = KINDS[kind]
    folder = cache_dir() / kind
    n = size = left = 0
    for place, _, names in os.walk(folder, topdown=False):  # no link in it is followed
        for path in (Path(place, name) for name in names):
            finished = path.suffix == suffix and path.name.count(".") == 1
            idle = finished or (path.suffix == ".lock" and not any(path.parent.glob(f"{path.stem}.*{suffix}")))
            try:
                status = path.lstat()
                written = not idle and time.time() - status.st_mtime < _DEAD
                if written or not _OURS.match(path.relative_to(folder).as_posix()):
                    left += 1
                    continue
                if clear:
                    path.unlink()
                n, size = n + finished, size + status.st_size
            except OSError:  # another run was faster, or it cannot be deleted
                left += 1
        if clear:
            with suppress(OSError):  # something is in it, or it is a link
                os.rmdir(place)
    line = f"{'deleted ' if clear else ''}{n:,} {called}, {size / 1e6:,.1f} MB in {folder}"
    return f"{line}; left {counted(left, 'other file')}" if left and clear else line
