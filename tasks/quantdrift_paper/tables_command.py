"""The command `tables`: the paper's tables as LaTeX and its charts as PDF, as far as a study has them."""

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
    study: Path = argument("STUDY: The folder of a study."),
    out: Path = option("-o --out FOLDER: Where the tables and figures go.", default=Path("paper")),
) -> Output:
    """Write the paper's tables as LaTeX and its charts as PDF, as far as a study has them."""
    folder = open_study(study)
    check_writable(out / "table", what="the tables")
    written, left_out = write_paper(folder, out)
    made = {kind: [file.stem for file in written if file.parent.name == kind] for kind in ("tables", "figures")}
    given = {name for names in made.values() for name in names}
    lines = [f"{kind}: {', '.join(names)}" for kind, names in made.items() if names]
    if folder.shows:
        missed = {
            name: left_out.get(name) or left_out.get(f"figure {name}") or "the paper has no table of this name"
            for name in folder.shows
            if name not in given
        }
        lines += ["not given: " + "; ".join(f"{name} ({why})" for name, why in missed.items())] if missed else []
    else:
        lines.append(
            f"{len(left_out)} other tables and figures of the paper need other runs; quantdrift list suites says which "
            "suite is for which"
        )
    return Output(lines=lines, next=[f"\nwritten: {len(written)} files in {out}; {written[-1]} shows all"])
