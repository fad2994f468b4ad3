"""`quantdrift show`: list the changed inputs of a finished run with their texts, without torch."""

from pathlib import Path
from typing import Literal

from quantdrift.base.errors import DataError, QuantDriftError
from quantdrift.cli.options import TASK, TEXTS, argument, flag, option, prints
from quantdrift.finished.formats.trec import write_trec
from quantdrift.finished.texts import read_texts
from quantdrift.runs.changes import KINDS, changed_inputs
from quantdrift.runs.folder import read_run
from quantdrift.runs.identity import answers
from quantdrift.show.changes import changed_columns, changes_grid, counts_of
from quantdrift.show.output import Output
from quantdrift.show.run import verdict_lines
from quantdrift.show.tables import records, write_table

_FIRST = 10
"""Inputs that are shown by default."""


@prints("json", "markdown")
def command(
    *,
    run: Path = argument("RUN: A run folder."),
    data: Path | None = option(TEXTS),
    task: str | None = option(TASK),
    kind: str = option("KIND: harmful (a relevant first answer lost), neutral, beneficial, or all.", default="all"),
    n: int | None = option(f"-n N: How many inputs, the worst first; by default {_FIRST}, and all with --out.", min=0),
    everything: bool = flag("--all: Show all inputs."),
    k: int = option("-k --k: List the inputs whose set of first K answers changed.", default=1, min=1),
    out: Path | None = option(
        "-o --out FILE: Write the inputs with whole texts into a .csv or .parquet file; or the ranking of a model into "
        "a .trec file (TREC run)."
    ),
    arm: Literal["candidate", "reference"] | None = option(
        "--arm ARM: With --out FILE.trec, the model: candidate (the default) or reference."
    ),
) -> Output:
    """List the inputs whose top-1 changed, with their texts: harmful changes first.

    For each input you see the first answer of the reference and of the candidate, with their scores and whether they
    are relevant; and the reference's gap between its first two answers, also in units of 2 epsilon (the separation
    ratio). Among changes of one kind the largest gap comes first.

    A run folder contains ids only. Texts are read from where the data were when the run was made, if they have not
    changed.

    For example: quantdrift show RUN -o changed.csv

    To write a ranking for trec_eval, --shortlist or quantdrift diff: quantdrift show RUN -o candidate.trec

    More: docs/tutorials/search.md
    """
    if kind not in {*KINDS, "all"}:
        raise QuantDriftError(f"--kind {kind}: expected {', '.join(KINDS)} or all")
    ranking = out is not None and out.suffix.lower() == ".trec"
    if (arm and not ranking) or (ranking and (everything or n is not None or (kind, k) != ("all", 1))):
        raise QuantDriftError("--arm is for --out FILE.trec, which takes no other option: it holds a whole ranking")
    source = read_run(run)
    evidence, record = source.evidence(drawn=True), source.record
    if out is not None and ranking:
        write_trec(out, evidence, arm or "candidate", tag=f"quantdrift-{arm or 'candidate'}")
        return Output(data={"path": str(source.path), "written": str(out)}, next=[f"written: {out}"])
    if kind != "all" and evidence.judgements is None:
        raise DataError(f"--kind {kind} needs relevance labels, and {source.path} has none; leave it out")
    changed = changed_inputs(evidence, k)
    wanted = [change for change in changed if kind in {change.kind, "all"}]
    listed = wanted if everything or (out is not None and n is None) else wanted[: _FIRST if n is None else n]
    texts = read_texts(source, data=data, task=task)
    columns = changed_columns(texts, exact=evidence.exact, classes=answers(record) != "top-1")
    if out is not None:
        write_table(columns, listed, out)
    grid = changes_grid(record, evidence, changed, listed, texts, k=k)
    about = {"path": str(source.path), "spec": record["spec"], "k": k, "n_inputs": evidence.n_inputs}
    changes = {"n_changed": len(changed), "kinds": counts_of(changed), "changed": records(columns, listed)}
    return Output(
        data={**about, **changes, "texts": texts.told},
        title=f"{record['spec']} on {record['data']['name']}",
        about=[] if out else verdict_lines(source),
        grids=[] if out else [grid],
        next=[f"written: {out}"] if out else ["--all shows all"] if len(listed) < len(wanted) else [],
    )
