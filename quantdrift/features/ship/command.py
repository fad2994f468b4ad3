"""`quantdrift ship`: may a deployment be shipped, what breaks, what mends it, and at what cost?"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from quantdrift.base.display import note
from quantdrift.base.errors import DataError, MissingExtraError, QuantDriftError, UnsupportedError
from quantdrift.base.text import as_typed, with_interval
from quantdrift.cli.measuring import measured, output_folder
from quantdrift.cli.options import MeasuringAny, argument, option, prints
from quantdrift.data.labelled import Dataset
from quantdrift.features.repair import choice
from quantdrift.finished.texts import read_texts
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import Run, read_run
from quantdrift.runs.identity import answers
from quantdrift.runs.verdict import Verdict, typed, verdict
from quantdrift.runs.words import data_line, estimates_of, query_ratio, stored_bytes
from quantdrift.show.changes import changed_columns, changes_grid
from quantdrift.show.output import Output
from quantdrift.show.run import WORST
from quantdrift.show.tables import Grid, records
from quantdrift.spec.grammar import Spec, Versus, is_endpoint, parse, parse_pair, stages_of

_ANSWERS = {"good": ("yes", 0), "warn": ("no", 1), "bad": ("no", 1), "plain": ("not known", 4)}
"""The answer to "may I ship it?" for each tone of a verdict, and the exit code, which is the gate's."""
_ENOUGH = 300
"""Inputs of which a third can show that a deployment may be shipped, where the answer was not known before."""

_QUERY = "query time (exact: 1)"
_CHANGES = ("inputs", "other answers", "ship?")
"""Columns of what a deployment changes, behind its prices."""


@dataclass(frozen=True, kw_only=True)
class ShipOptions(MeasuringAny):
    """The options of `quantdrift ship`."""

    spec: str = argument(
        'SPEC: What you want to ship: a deployment, such as minilm@W4+index=HNSW32 or "minilm vs ./my-gptq"; or a '
        "model alone, of which the usual schemes are tried."
    )
    minutes: float = option(
        "N: Minutes for trying what changes fewer answers, where the answer is not yes; 0 tries nothing.", 10.0, min=0
    )
    plan = False  # which a study asks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A deployment as it is typed, with its run, the verdict on it, and what each of its stages changes."""

    name: str
    run: Run
    outcome: Verdict
    parts: Sequence[str] = ()

    @property
    def ships(self) -> str:
        """The answer: yes, no, or not known."""
        return _ANSWERS[self.outcome.tone][0]

    @property
    def cost(self) -> Mapping[str, Any]:
        """What it takes and what it changes, on the inputs that the record counts."""
        record, flips = self.run.record, estimates_of(self.run.record)["flip@1"]
        bits = record.get("bits_per_weight") or {}
        size = bits["all_parameters"] * bits["n_parameters"] / 8e6 if bits.get("n_quantized") else None
        takes = {"model, MB": (size, 1), "bytes a document": (stored_bytes(record), None)}
        takes[_QUERY] = (query_ratio(record), 2)
        prices = {name: value if value is None else round(value, digits) for name, (value, digits) in takes.items()}
        changes = dict(zip(_CHANGES, (flips.n, with_interval(flips), self.ships), strict=True))
        return {"deployment": self.name, **prices, **changes}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search for what changes fewer answers: what it found, what to say of it, and how to go on."""

    found: Sequence[_Measured] = ()
    lines: Sequence[str] = ()
    command: str = ""
    repair: Mapping[str, Any] | None = None


@prints("json")
def command(options: ShipOptions) -> Output:
    """May I ship it? Measures what you name on your data, says what breaks, and tries what mends it.

    Nothing is asked. The deployment is measured against full precision, with the noise of the reference; of several
    stages each gets its share of the changed answers; and where the answer is not yes, quantdrift repair tries what
    changes fewer answers at about the same size, for as long as --minutes allow. Of a model alone the usual schemes are
    measured, the widest first, and the cheapest that may be shipped is named.

    The exit code is 0 (yes), 1 (no), 2 (error) or 4 (not known: too few inputs to tell, or no verdict), and is of what
    you named, not of what was found to mend it. The same command goes on where it was stopped, and measures nothing
    twice.

    For example: quantdrift ship minilm@W4+index=HNSW32 --data faq.csv

    More: docs/guides/ship.md
    """
    pair = parse_pair(options.spec) if any(mark in options.spec for mark in ("@", " vs ")) else None
    dataset = options.dataset  # after the spec, as a wrong one is told at once
    tried = list(_measured(pair, options, dataset))
    good = [one for one in tried if one.ships == "yes"]
    subject = _with_parts(good[-1] if good else tried[0], options, dataset)
    return _page(tried, subject, _search(subject, options, dataset), options.task)


def page_of(run: Run, task: str) -> Output:
    """The page of one run, with texts from a task."""
    one = _Measured(name=str(run.record["spec"]), run=run, outcome=verdict(run.record))
    return _page([one], one, _Search(), task)


def _measured(named: Spec | Versus | None, options: ShipOptions, dataset: Dataset) -> Iterator[_Measured]:
    """Measure the deployment that is named; of a model alone the usual ones, until one may not be shipped.

    The order is fixed beforehand, and each is judged only where the one before may be shipped, so that the chance of a
    wrong yes is that of one verdict.
    """
    if named is None and (is_endpoint(options.spec) or options.out is not None):
        raise QuantDriftError(
            f"a model alone is several runs: expected MODEL@SCHEME for --out or a server, not {options.spec}"
        )
    for pair in _usual(options.spec, dataset) if named is None else [named]:
        run = measured(pair, options)
        one = _Measured(name=str(pair), run=run, outcome=verdict(run.record))
        note(f"{one.name}: {one.ships}, {one.outcome.word}")
        yield one
        if one.ships != "yes":
            return


def _usual(model: str, dataset: Dataset) -> Iterator[Spec]:
    """A model at 8 bits, and at 4 by the first calibrated quantizer that is installed and goes with the data."""
    from quantdrift.candidate.refusals import check_pair, check_spec

    yield parse(f"{model}@W8-rtn")
    for name in (*(name for name, entry in QUANTIZERS.items() if entry.calibrated and entry.in_repair), "rtn"):
        with suppress(MissingExtraError, UnsupportedError):
            spec = parse(f"{model}@W4-{name}")
            check_spec(spec)
            check_pair(spec, dataset)
            yield spec
            return


def _with_parts(one: _Measured, options: ShipOptions, dataset: Dataset) -> _Measured:
    """Tell what each stage changes, where there are several and something changed; advice is then on the largest."""
    pair = parse_pair(one.name)
    if not isinstance(pair, Spec) or len(stages_of(pair.scheme)) == 1 or pair.scheme.query_only:
        return one
    if not changed_inputs(one.run.evidence()) or not typed(one.run.record, "waterfall", one.name):
        return one
    from quantdrift.features.waterfall.command import measured_stages
    from quantdrift.study.folder import open_study
    from quantdrift.study.shares import in_words, judged_whole, waterfalls_of

    note(f"measures what each of {', '.join(stages_of(pair.scheme))} changes")
    place, ended = measured_stages(pair, dataset, options)
    if ended.code:  # a combination failed; the reasons are told
        return replace(one, parts=ended.lines)
    shares = waterfalls_of(open_study(place))
    parts = in_words(shares, named=str(pair.scheme), brief=True)
    return replace(one, outcome=judged_whole(one.run.record, shares[0]), parts=parts)


def _search(one: _Measured, options: ShipOptions, dataset: Dataset) -> _Search:
    """Search for what changes fewer answers, and judge it on inputs that took no part in the choice."""
    pair, command = parse_pair(one.name), typed(one.run.record, "repair", one.name)
    tells = one.outcome.tone in {"warn", "bad"} or (one.outcome.word == "open" and one.cost["inputs"] >= _ENOUGH)
    if not isinstance(pair, Spec) or not command or not options.minutes or not tells:
        return _Search()
    from quantdrift.features.repair.command import recommended, repaired
    from quantdrift.metrics import measure
    from quantdrift.spec.remedies import check_repairable
    from quantdrift.statistics.estimates import as_json

    names = (re.sub("[@+]", "_", name) for name in (pair.model, dataset.name))  # a spec may name a file in it
    out = output_folder("repair", *names, dataset.fingerprint[:8])
    note(f"tries for {options.minutes:g} min what changes fewer answers (--minutes)")
    try:
        check_repairable(pair.scheme)
        with options.stoppable("the search is not finished"):
            repair = repaired(pair, dataset, replace(options, out=out), quantizers=choice.TRIED)
    except (DataError, UnsupportedError) as error:
        return _Search(lines=[f"Nothing was tried that could change fewer answers: {error}."])
    found = []
    if repair.chosen is not repair.deployments[0]:
        run = read_run(repair.chosen.run)
        evidence = run.evidence()
        unseen = evidence.part(np.flatnonzero(choice.apart(evidence.n_inputs, options.seed)))
        record = {**run.record, "metrics": as_json(measure(unseen)), "tolerances": one.run.record["tolerances"]}
        name = f"{pair.model}@{choice.named(repair.chosen.scheme)}"
        found = [_Measured(name=name, run=replace(run, record=record), outcome=verdict(record))]
    command = f"{command} --out {as_typed(out)}"
    return _Search(found=found, lines=recommended(repair), command=command, repair=repair.to_json())


def _page(tried: Sequence[_Measured], subject: _Measured, search: _Search, task: str | None) -> Output:
    record, outcome, (answer, code) = subject.run.record, subject.outcome, _ANSWERS[subject.outcome.tone]
    others = [one for one in tried if one.name != subject.name]
    texts, evidence = read_texts(subject.run, task=task), subject.run.evidence()
    changed = changed_inputs(evidence)
    broken = changes_grid(record, evidence, changed, changed[:WORST], texts)
    costs = [one.cost for one in (*tried, *search.found)]
    head = [title for title in costs[0] if any(cost[title] is not None for cost in costs)]
    rows = [_plain(record), *costs] if len(head) > len(_CHANGES) + 1 else costs  # where something is saved
    prices = [["-" if row.get(title) is None else str(row[title]) for title in head] for row in rows]
    lines = [
        *(f"{one.name}: {one.ships}, {one.outcome.told}" for one in others),
        *search.lines[:1],
        *(f"May it be shipped, by those {one.cost['inputs']:,} inputs? {_briefly(one)}" for one in search.found),
        *search.lines[1:],
    ]
    commands = dict(_commands(subject, others, search, task))
    data = {"spec": subject.name, "data": record["data"]["name"], "run": str(subject.run.path), "answer": answer}
    data |= {"verdict": {**asdict(outcome), "sentence": outcome.sentence}, "lines": lines, "commands": commands}
    columns = changed_columns(texts, exact=evidence.exact, classes=answers(record) != "top-1")
    data |= {"breaks": records(columns, changed[:WORST])}
    notes = [f"note: {warning}" for warning in record["data"]["warnings"]]
    broken = replace(broken, title=f"What breaks: {broken.title.lower()}", lines=[*broken.lines[-1:], *subject.parts])
    ratios = [cost[_QUERY] for cost in costs if cost[_QUERY] is not None]
    slow = f"Over {record['data'].get('n_documents') or 0:,} documents an index saves no time."
    units = [slow] if ratios and min(ratios) >= 1 else []
    title = "What mends it, and what it costs" if search.found else "What it costs"
    price = Grid(title=title, head=head, rows=prices, words=head[-1:], lines=units)
    judged = f"Judged by {record['data']['name']}: {data_line(record)}; intervals are of 95 %."
    return Output(
        data={**data, "costs": costs, "parts": [*subject.parts], "repair": search.repair},
        title=f"May I ship {subject.name}? {answer.capitalize()}: {outcome.word}.",
        about=[*outcome.sentences, judged, *notes, ""],
        grids=[*([broken] if changed else []), price],
        lines=lines,
        next=["", *(line for what, command in commands.items() for line in (f"{what}:", f"    {command}"))],
        code=code,
    )


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """What full precision takes in float32, for comparison."""
    n, dim = (record.get("bits_per_weight") or {}).get("n_parameters"), (record.get("deployment") or {}).get("dim")
    takes = {"model, MB": n and round(n * 32 / 8e6, 1), "bytes a document": dim and 4 * dim}
    return {"deployment": "full precision, float32", **takes, _QUERY: 1}


def _briefly(one: _Measured) -> str:
    """The answer, and what is open; the figures stand in the table."""
    opened = [sentence for sentence in one.outcome.sentences if sentence.startswith("Open: ")]
    return " ".join([f"{one.ships.capitalize()}: {one.outcome.word}.", *opened])


def _commands(
    subject: _Measured, others: Sequence[_Measured], search: _Search, task: str | None
) -> Iterator[tuple[str, str]]:
    """What to type next, each with what it does."""
    record, place = subject.run.record, as_typed(subject.run.path)
    of_task = f" --task {shlex.quote(task)}" if task else ""
    best = (*search.found, subject)[0]
    advice = (subject.outcome.next.rstrip("."), subject.outcome.command)
    gate = typed(record, "gate", best.name)
    listed = [
        ("all answers that changed, with their texts", f"quantdrift show {place}{of_task} --all"),
        ("the same as a page for a browser", f"quantdrift report {place}{of_task}"),
        ("what each part changes, with intervals", typed(record, "waterfall", subject.name) if subject.parts else ""),
        *((f"what mends {one.name}", typed(record, "ship", one.name)) for one in others),
        *(("what was found, judged by all inputs", typed(one.run.record, "ship", one.name)) for one in search.found),
        ("what else was tried, or a longer search", search.command) if search.command else advice,
        ("which answers can be trusted as they are", f"quantdrift certify {place}"),
        ("a baseline to commit, so that CI tells when answers get worse", gate and f"{gate} --update"),
    ]
    yield from ((what, command) for what, command in listed if command)
