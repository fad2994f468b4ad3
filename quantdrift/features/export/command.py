"""`quantdrift allocate --export`: an allocation as runtimes read it."""

import textwrap
from pathlib import Path

from quantdrift.allocation.record import Allocation
from quantdrift.base.display import note, say
from quantdrift.base.errors import RunError
from quantdrift.base.records import write_text
from quantdrift.cli.options import argument, option
from quantdrift.features.export.formats import export_allocation, exporter, usage_of


def command(
    *,
    file: Path = argument("ALLOCATION: An allocation.json."),
    format_: str = option("--format NAME: gptqmodel, compressed_tensors, torchao or llama_cpp.", default=...),
    out: Path | None = option("-o --out: File to write; standard output if not given."),
) -> None:
    """Write the widths of an allocation as a quantization library or a runtime reads them.

    Where a format cannot express the allocation, nothing is written, and the layers and what to do are told. How to
    use the file is printed on standard error.

    For example: quantdrift allocate --export allocation.json --format gptqmodel

    More: docs/guides/repair.md
    """
    chosen = exporter(format_)
    text, hint = export_allocation(Allocation.read(file), chosen)
    if out is None:
        say(text.removesuffix("\n"))
    elif out.exists() and file.exists() and out.samefile(file):
        raise RunError(f"{out} is the allocation itself; expected another file to write to")
    else:
        write_text(out, text, what="the allocation")
    usage = usage_of(chosen, str(out) if out is not None else chosen.file)
    say(f"use it:\n\n{textwrap.indent(usage, '    ')}", error=True)
    if hint:
        note(hint)
