"""The command `tables`: the paper's tables as LaTeX and its charts as PDF, as far as studies have them."""

from __future__ import annotations

from pathlib import Path

from quantdrift.base.records import check_writable
from quantdrift.cli.options import argument, option, prints
from quantdrift.show.output import Output
from quantdrift.study.folder import open_study
from quantdrift_paper.tables import write_paper


@prints()
def command(
    *,
    studies: list[Path] = argument("STUDY...: Folders of studies, whose runs are joined."),
    out: Path = option("-o --out FOLDER: Where the tables and figures go.", default=Path("paper")),
) -> Output:
    """Write the paper's tables as LaTeX and its charts as PDF, as far as studies have them."""
    folders = [open_study(study) for study in studies]
    check_writable(out / "table", what="the tables")
    written, left_out, verdict = write_paper(folders, out)
    made = {kind: [file.stem for file in written if file.parent.name == kind] for kind in ("tables", "figures")}
    given = {name for names in made.values() for name in names}
    lines = [] if verdict is None else [verdict]
    lines += [f"{kind}: {', '.join(names)}" for kind, names in made.items() if names]
    shows = dict.fromkeys(name for folder in folders for name in folder.shows)
    missed = {name: left_out.get(name) or "the paper has no table of this name" for name in shows if name not in given}
    if missed:
        lines.append("not given: " + "; ".join(f"{name} ({why})" for name, why in missed.items()))
    elif not shows:
        lines.append(
            f"{len(left_out)} other tables and figures of the paper need other runs; quantdrift list suites says which "
            "suite is for which"
        )
    return Output(lines=lines, next=[f"\nwritten: {len(written)} files in {out}; {written[-1]} shows all"])
