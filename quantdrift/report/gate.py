"""The page of a gate: the verdict, what each rule came to, and the inputs to look at."""

from __future__ import annotations

from collections.abc import Iterator

from quantdrift.gate import output
from quantdrift.gate.result import GateResult, Verdict
from quantdrift.report.changes import changes_of
from quantdrift.report.page import Number, Page, Section, Step
from quantdrift.runs.words import Tone

_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "error": "bad"}


def page_of(result: GateResult) -> Page:
    """The page of a judged run."""
    sentences, to_do = output.sentences(result), set(output.TO_DO.values())
    named = [line for line in sentences if ", worse on: " in line]
    rule, *others, outcome = output.RULES
    grid = output.rules_table(result, [rule, outcome, *others], lines=named)
    sections = [Section(name="rules", title="Rules", grids=[grid])]
    if result.worst:
        changed = changes_of(result.worst, arms=("reference", "candidate"), right="right")
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
        numbers=list(_numbers(result)),
        steps=[Step(text=line) for line in sentences if line in to_do],
        sections=sections,
    )


def _numbers(result: GateResult) -> Iterator[Number]:
    passed = sum(judgement.outcome == "pass" for judgement in result.rules)
    yield Number(label="rules that pass", value=f"{passed:,} of {len(result.rules):,}")
    yield Number(label="top-1 changes", value=f"{result.n_changed:,}", note=f"of {result.n_inputs:,} inputs")
    if result.n_new is not None:
        yield Number(label="new changes", value=f"{result.n_new:,}", note="not changed in the baseline")
    if result.n_answers_changed is not None:
        yield Number(
            label="other answers than in the baseline", value=f"{result.n_answers_changed:,}", note="of the candidate"
        )
    yield Number(
        label="level of the tests", value=f"{result.alpha:g}", note="chance of a false alarm, all rules together"
    )
