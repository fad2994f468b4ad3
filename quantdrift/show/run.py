"""The screen of a run: its verdict, the worst changes with their texts, and five figures; the rest on request."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from quantdrift.base.text import as_typed, counted
from quantdrift.finished.texts import read_texts
from quantdrift.metrics import BUILT_IN, default_metrics, parse_metric
from quantdrift.metrics.numbers import cell, has_value
from quantdrift.runs import words
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import answers, signature
from quantdrift.runs.verdict import verdict
from quantdrift.show.changes import changes_grid
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid, metric_grid

WORST, _FIGURES = 3, 5
"""Changed inputs and figures of the screen."""
_FIGURE_OF = {
    "reference.ndcg@10": ("nDCG@10, reference", "inputs"),
    "ndcg@10": ("nDCG@10, candidate", "inputs"),
    "reference.accuracy": ("accuracy, reference", "inputs"),
    "accuracy": ("accuracy, candidate", "inputs"),
    "gold_lost@10": ("a right answer left the first 10", "inputs with one there"),
    "rbo@10": ("overlap of the first 10 (RBO)", "inputs"),
}
"""Metrics that stand beside a verdict, what each is called, and of what it is a share or mean; the first ones there."""
_LITTLE_OF = {True: {"ndcg@10", "gold_lost@10", "rbo@10"}, False: {"accuracy"}}
"""What tells little of classes (True), and of a search."""


def run_output(run: Run, *, task: str | None = None, everything: bool = False) -> Output:
    """Show the verdict, the worst changes and the figures of a run; `everything` adds how it was made and all metrics.

    Texts are of `task`, or of where they were when the run was made.
    """
    record, outcome, place = run.record, verdict(run.record), as_typed(run.path)
    evidence = run.evidence(drawn=True)
    grids, changed = [figure_grid(record)], changed_inputs(evidence)
    show = f"quantdrift show {place}"
    if changed:
        texts = read_texts(run, task=task)
        show = texts.command or show
        texts = texts if run.keeper is None else replace(texts, told="")  # a hint would name a folder that goes
        grids.insert(0, changes_grid(record, evidence, changed, changed[:WORST], texts))
    made = [words.weights_line(record), *words.candidate_lines(record), f"signature: {signature(record)}"]
    commands = {outcome.command: outcome.next}
    if run.keeper is None:  # its folder stays
        commands |= {
            show: f"the {counted(len(changed), 'changed input')}, with texts" if changed else "",
            f"quantdrift report {place}": "the same as a page for a browser",
            f"quantdrift certify {place}": "which answers can be trusted as they are",
            f"quantdrift metrics {place}": "every metric, and what it says",
        }
    return Output(
        data={**record, "path": str(run.path), "verdict": {**asdict(outcome), "sentence": outcome.sentence}},
        title=f"{record['spec']} on {record['data']['name']}: {words.data_line(record)}",
        about=verdict_lines(run),
        grids=[*grids, *([metric_grid(words.estimates_of(record))] if everything else [])],
        lines=list(filter(None, made)) if everything else [],
        next=[f"{command}   # {why}" for command, why in commands.items() if command and why],
    )


def verdict_lines(run: Run) -> list[str]:
    """The verdict, findings and notes, a sentence a line, with an empty line below."""
    record, outcome = run.record, verdict(run.record)
    of_diff = (record.get("diff") or {}).get("notes", ())
    of_data = record["data"].get("warnings") or ()
    notes = [f"note: {note}" for note in (*of_data, *of_diff, *words.left_alone(record))]
    told = [*outcome.sentences, *words.findings(record), *notes]
    return [f"Verdict: {outcome.word}. {outcome.next}".rstrip(), *told, ""]


def as_text(shown: Output) -> str:
    """The screen as one text, for what is no terminal."""
    grids = [line for grid in shown.grids for line in (grid.title, *grid.plain, *grid.lines, "")]
    return "\n".join([shown.title, *shown.about, *grids, *shown.next])


def figure_grid(record: words.Record) -> Grid:
    """The figures beside a verdict, each with what it is of; and the metrics of other packages."""
    little = _LITTLE_OF[answers(record) != "top-1"]
    named = {name: of for name, of in _FIGURE_OF.items() if name.removeprefix("reference.") not in little}
    foreign = [str(metric) for metric in default_metrics() if metric.family.name not in BUILT_IN]
    others = {name: (name, "inputs") for name in foreign}
    sizes = list(_sizes(record))
    rows = [*list(_rows(record, named))[: _FIGURES - len(sizes)], *sizes, *_rows(record, others)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    plain = [f"{label:<{widths[0]}}   {value:<{widths[1]}}   of {what}" for label, value, what in rows]
    title = "Figures, with 95 % intervals"
    return Grid(title=title, head=["figure", "value", "of"], rows=rows, words={"of"}, plain=plain)


def _rows(record: words.Record, named: Mapping[str, tuple[str, str]]) -> Iterator[list[str]]:
    estimates = words.estimates_of(record)
    for name, (label, what) in named.items():
        if name in estimates and has_value(estimate := estimates[name]):
            yield [label, cell(parse_metric(name), estimate), f"{estimate.n:,} {what}"]


def _sizes(record: words.Record) -> Iterator[list[str]]:
    bits = record.get("bits_per_weight") or {}
    if bits.get("n_quantized"):
        whole = f"the linear layers, scales included ({bits['all_parameters']:.2f} with what stays at full precision)"
        yield ["bits per weight", f"{bits['linear_with_scales']:.4g}", whole]
    if (size := words.stored_bytes(record)) is not None:
        dim, indexed = map((record.get("deployment") or {}).get, ("dim", "index"))
        plain = f"{4 * dim:,} in float32" if dim else "what is stored"
        whole = f"the index and what it stores (vectors in float32 take {4 * dim:,})" if dim and indexed else plain
        yield ["bytes a document", f"{size:,.0f}", whole]
