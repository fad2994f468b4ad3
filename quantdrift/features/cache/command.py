"""`quantdrift cache`: show or delete the files that are kept from run to run."""

import glob
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from quantdrift.base.paths import CACHE_VARIABLE, cache_dir, cache_is_off
from quantdrift.base.text import counted
from quantdrift.cli.options import flag, prints
from quantdrift.show.output import Output

KINDS = {
    "embeddings": (".npy", "embedding files"),
    "codes": (".safetensors", "quantized layers"),
    "sensitivities": (".npy", "sensitivities of layers"),
    "probes": (".npz", "linear probes"),
    "shards": (".npz", "parts of runs that were interrupted"),
    "references": (".txt", "notes on what is embedded"),
    "rates": (".json", "rates of this machine"),
    "servers": (".npz", "models seen on servers"),
    "models": (".safetensors", "models unpacked from packages"),
}
"""Folder to the suffix of quantdrift's files in it, and their description."""
_OURS = re.compile(r"(?P<shelf>[0-9a-f]{2})/\.?(?P=shelf)[0-9a-f]{38}[./]|[0-9a-f]{32}/\.?[0-9a-f]{32}\.")
"""Beginning of the path of our files in such a folder; a file that is being written has a dot before its name."""
_DEAD = 600
"""Seconds after which an unfinished file is given up."""


@prints()
def command(*, clear: bool = flag("--clear: Delete all of it; it is made again when needed.")) -> Output:
    """Show where embeddings, quantized layers and sensitivities are kept, and how much they take.

    Later runs reuse them, and an interrupted run resumes from them. --clear keeps files that are not quantdrift's, and
    unfinished files of the last ten minutes.

    For example: quantdrift cache --clear

    More: docs/reference/runs.md
    """
    if cache_is_off():
        return Output(next=[f"the cache is off: {CACHE_VARIABLE}"])
    return Output(next=[_of_kind(name, clear=clear) for name in KINDS])


def _of_kind(kind: str, *, clear: bool) -> str:
    """Count the files of one folder, and delete them with `clear`."""
    suffix, called = KINDS[kind]
    folder = cache_dir() / kind
    n = size = left = 0
    for place, _, names in os.walk(folder, topdown=False):  # no link in it is followed
        for path in (Path(place, name) for name in names):
            finished = path.suffix == suffix and path.name.count(".") == 1
            chunks = path.parent.glob(f"{glob.escape(path.stem)}.*{suffix}")
            whole = kind == "models" and ".partial-" not in str(path)  # of a folder that took its place in one step
            idle = finished or whole or (path.suffix == ".lock" and not any(chunks))
            try:
                status = path.lstat()
                written = not idle and time.time() - status.st_mtime < _DEAD
                if written or not _OURS.match(path.relative_to(folder).as_posix()):
                    left += 1
                    continue
                if clear:
                    path.unlink()
                n, size = n + finished, size + status.st_size
            except OSError:  # another run deleted it, or it cannot be deleted
                left += 1
        if clear:
            with suppress(OSError):  # it is not empty, or a link
                os.rmdir(place)
    line = f"{'deleted ' if clear else ''}{n:,} {called}, {size / 1e6:,.1f} MB in {folder}"
    return f"{line}; left {counted(left, 'other file')} alone" if left and clear else line
