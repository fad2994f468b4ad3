"""The page of a gate: the verdict, what each rule came to, and the inputs to look at."""

from pathlib import Path

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.finished.texts import Texts, read_texts
from quantdrift.gate import output
from quantdrift.gate.result import GateResult, Verdict
from quantdrift.report.changes import changes_of
from quantdrift.report.page import Page, Section, Step
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import Run, read_run
from quantdrift.runs.identity import Identity
from quantdrift.runs.verdict import Tone

_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "error": "bad"}


def page_of(result: GateResult, *, data: Path | None = None, task: str | None = None) -> Page:
    """The page of a judged run; with rankings and texts where the run folder is, as a result holds ids alone.

    Raises:
        RunError: data are named for texts, and the run folder is not there.
        DataError: the data that are named are others.
    """
    run = _judged(result)
    if run is None and (data or task):
        raise RunError(
            f"texts need the run that was judged, {result.path or 'which two finished runs are not'}; not found"
        )
    texts = read_texts(run, data=data, task=task) if run and result.worst else Texts(told="")
    sentences, to_do = output.sentences(result), set(output.TO_DO.values())
    named = [line for line in sentences if ", worse on: " in line]
    rule, *others, outcome = output.RULES
    grid = output.rules_table(result, [rule, outcome, *others], lines=named)
    sections = [Section(name="rules", title="Rules", grids=[grid])]
    if result.worst:
        changed = changes_of(
            result.worst,
            arms=("reference", "candidate"),
            right="right",
            texts=texts,
            evidence=run.evidence() if run else None,
        )
        for entry, worst in zip(changed["changed"], result.worst, strict=False):
            entry.update(part=worst.part, new=worst.new)
        sections.append(
            Section(
                name="changed", title="Changed inputs", about=[f"{output.worst_table(result).title}."], changed=changed
            )
        )
    return Page(
        kind="gate",
        title=output.subject(result),
        word=f"{result.verdict} (accepted)" if result.accepted else result.verdict,
        tone="warn" if result.accepted else _TONES.get(result.verdict, "warn"),
        verdict=f"{output.finding(result)}.",
        words=[line for line in sentences if line not in {*to_do, *named}],
        steps=[Step(text=line) for line in sentences if line in to_do],
        sections=sections,
    )


def _judged(result: GateResult) -> Run | None:
    """The run that was judged, where its folder is and still holds it."""
    try:
        run = None if result.path is None else read_run(result.path)
    except QuantDriftError:
        return None
    same = run is not None and (run.record["spec"], Identity.of(run.record).data_name) == (result.spec, result.data)
    if run is None or not same or any(worst.part for worst in result.worst):
        return None
    answers = {change.input_id: (change.before, change.after) for change in changed_inputs(run.evidence())}
    return run if all(answers.get(one.input_id) == (one.before, one.after) for one in result.worst) else None
