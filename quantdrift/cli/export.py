"""`quantdrift export`."""

from __future__ import annotations

import textwrap
from pathlib import Path

from quantdrift.allocation.exports import export_allocation, exporter, usage_of
from quantdrift.allocation.record import read_allocation
from quantdrift.display import note, say
from quantdrift.errors import RunError


def export_command(file: Path, format_name: str, out: Path | None) -> None:
    """Write an allocation in a format, to a file or to standard output; notes to standard error.

    Args:
        file: allocation.json.
        format_name: one of `quantdrift.allocation.export.registry.EXPORTERS`.
        out: file to write; None for standard output.

    Raises:
        QuantDriftError: the file is no allocation, there is no such format, the format cannot
            express the allocation, or the file cannot be written.
    """
    chosen = exporter(format_name)
    text, notes = export_allocation(read_allocation(file), chosen)
    if out is None:
        say(text.removesuffix("\n"))
    else:
        _write(out, text, source=file)
    usage = usage_of(chosen, str(out) if out is not None else chosen.file)
    say(f"use it:\n\n{textwrap.indent(usage, '    ')}", error=True)
    for each in notes:
        note(each)


def _write(out: Path, text: str, *, source: Path) -> None:
    if out.exists() and source.exists() and out.samefile(source):
        raise RunError(f"{out} is the allocation itself; expected another file to write to")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{out} was not written: {error}; expected a file that can be written") from error
