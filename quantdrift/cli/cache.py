"""`quantdrift cache`: what is kept from run to run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from quantdrift.cli.options import flag, prints
from quantdrift.cli.output import Shown, counted
from quantdrift.display import shown
from quantdrift.paths import CACHE_VARIABLE, cache_dir
from quantdrift.records import hold

SETTINGS = {"no_args_is_help": False}
_KEY = "(?P<shelf>[0-9a-f]{2})/(?P=shelf)[0-9a-f]{38}"
_PRINT = "[0-9a-f]{32}"
KINDS = {
    "embeddings": (rf"{_KEY}\.npy", "embedding files"),
    "codes": (rf"{_KEY}/[0-9]{{5,}}\.safetensors", "quantized layers"),
    "sensitivities": (rf"{_KEY}/[A-Za-z0-9_.-]+\.npy", "sensitivities of layers"),
    "probes": (rf"{_KEY}\.npz", "linear probes"),
    "servers": (rf"{_PRINT}/{_PRINT}\.npz", "models seen on servers"),
}
"""Folder to the files that quantdrift keeps in it, and what they are called."""
_UNFINISHED = re.compile(rf"{_KEY}\.(partial\.npy|done|lock)")
"""Of embeddings, beside the file that they become."""
_BEING_WRITTEN = re.compile(r"(.*/)\.([^/]+)\.partial-[0-9a-f]{8}")
"""Any other file, by its folder and the name that it is to have."""
_FOLDER = re.compile(rf"[0-9a-f]{{2}}|{_KEY}|{_PRINT}")
_DEAD = 600
"""Seconds after which what is being written is not written any more."""


@prints()
def command(*, clear: bool = flag("--clear: Delete it all; it is made again when needed.")) -> Shown:
    """Show where embeddings, quantized layers and sensitivities are kept, and how much they take.

    Later runs reuse them, and an interrupted run goes on from them. --clear leaves alone what is not quantdrift's,
    and what a run is writing.
    """
    if os.environ.get(CACHE_VARIABLE, "").strip().lower() == "off":
        return Shown(next=[f"nothing is kept: {CACHE_VARIABLE} is off"])
    return Shown(next=[line for name in KINDS for line in _of_kind(name, clear=clear)])


def _of_kind(kind: str, *, clear: bool) -> Iterator[str]:
    """How much there is in one folder, deleted if asked for, and what was left."""
    pattern, called = KINDS[kind]
    folder = cache_dir() / kind
    n, size = 0, 0
    left: dict[str, list[str]] = {}
    for path in _files(folder):
        inside = path.relative_to(folder).as_posix()
        finished = re.fullmatch(pattern, inside) is not None
        why = None
        try:
            status = path.lstat()
            if not finished and not _is_unfinished(inside, pattern):
                why = "of somebody else"
            elif clear and not _deleted(path, finished=finished):
                why = "that a run is writing"
        except FileNotFoundError:  # another run was faster
            continue
        except OSError as error:
            why = f"that cannot be deleted ({error.strerror})"
        if why is None:
            n, size = n + finished, size + status.st_size
        else:
            left.setdefault(why, []).append(inside)
    if clear:
        _remove_folders(folder)
    link = f", a link to {os.path.realpath(folder)}" if folder.is_symlink() else ""
    yield f"{'deleted ' if clear else ''}{n:,} {called}, {size / 1e6:,.1f} MB in {folder}{link}"
    for why, names in left.items() if clear else ():
        few = ", ".join(shown(each) for each in names[:3]) + ", ..." * (len(names) > 3)  # noqa: PLR2004 -- a few
        yield f"  left {counted(len(names), 'file')} {why}: {few}"


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, each lock after what it locks; no link in it is followed."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in sorted([*names, *links], key=lambda name: (name.endswith(".lock"), name)):
            yield Path(place, name)


def _is_unfinished(inside: str, pattern: str) -> bool:
    written = _BEING_WRITTEN.fullmatch(inside)
    return (
        re.fullmatch(pattern, written[1] + written[2]) is not None
        if written
        else pattern == KINDS["embeddings"][0] and _UNFINISHED.fullmatch(inside) is not None
    )


def _deleted(path: Path, *, finished: bool) -> bool:
    """Delete a file, unless a run is writing it."""
    handle = None
    if path.name.startswith(".") and time.time() - path.lstat().st_mtime < _DEAD:
        return False
    if not finished:
        try:
            handle = hold(path.with_name(f"{path.name.partition('.')[0]}.lock"))
        except BlockingIOError:
            return False
        except OSError:  # nobody ever held it, or this disk knows no locks
            pass
    try:
        path.unlink()
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _remove_folders(folder: Path) -> None:
    """Remove folders of ours that are empty."""
    for place, _, _ in os.walk(folder, topdown=False):
        inside = Path(place).relative_to(folder).as_posix()
        if inside == "." or _FOLDER.fullmatch(inside):
            with suppress(OSError):  # something is in it, or it is a link
                os.rmdir(place)
