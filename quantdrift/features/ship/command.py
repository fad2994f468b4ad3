"""`quantdrift ship`: may a deployment be shipped, what breaks, what mends it, and at what cost?"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from quantdrift.base.display import note
from quantdrift.base.errors import DataError, MissingExtraError, QuantDriftError, UnsupportedError
from quantdrift.base.text import with_interval
from quantdrift.cli.measuring import measured, output_folder
from quantdrift.cli.options import MeasuringAny, argument, option, prints
from quantdrift.features.repair import choice
from quantdrift.finished.texts import read_texts
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.verdict import Verdict, typed, verdict
from quantdrift.runs.words import Record, data_line, estimates_of, query_ratio, stored_bytes
from quantdrift.show.changes import changed_columns, changes_grid
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, records, table
from quantdrift.spec.grammar import Spec, is_endpoint, parse, parse_pair, stages_of

if TYPE_CHECKING:
    from quantdrift.data.labelled import Dataset
    from quantdrift.runs.folder import Run
    from quantdrift.statistics.estimates import Estimate

_BROKEN = 3
"""Changed answers that are shown, the worst first."""
_ANSWERS = {"good": ("yes", 0), "warn": ("no", 1), "bad": ("no", 1), "plain": ("not known", 4)}
"""The answer to "may it be shipped?" for each tone of a verdict, and the exit code, which is the gate's."""
_ENOUGH = 300
"""Inputs of which a third can show that a deployment may be shipped, where the answer was not known before."""


@dataclass(frozen=True, kw_only=True)
class ShipOptions(MeasuringAny):
    """The options of `quantdrift ship`."""

    spec: str = argument(
        'SPEC: What you want to ship: a deployment, such as minilm@W4+index=HNSW32 or "minilm vs ./my-gptq"; or a '
        "model alone, of which the usual schemes are tried."
    )
    minutes: float = option(
        "N: Minutes for trying what changes fewer answers, where the answer is not yes; 0 tries nothing.",
        default=10.0,
        min=0,
    )
    plan = False  # of a study's options


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A deployment as it is typed, with its run and the verdict on it."""

    name: str
    run: Run
    outcome: Verdict
    parts: Sequence[str] = ()
    """What each of its stages changes."""

    @property
    def ships(self) -> str:
        """The answer: yes, no, or not known."""
        return _ANSWERS[self.outcome.tone][0]

    @property
    def flips(self) -> Estimate:
        """Share of the inputs that count whose top-1 changed."""
        return estimates_of(self.run.record)["flip@1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search for what changes fewer answers: what it found, if anything, what to say of it, how to go on."""

    found: _Measured | None = None
    lines: Sequence[str] = ()
    command: str = ""
    repair: choice.Repair | None = None


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
    dataset = options.dataset
    tried = list(_measured(options, dataset))
    good = [one for one in tried if one.ships == "yes"]
    subject = _with_parts(good[-1] if good else tried[0], options, dataset)
    return _page(tried, subject, _mended(subject, options, dataset), options)


def _measured(options: ShipOptions, dataset: Dataset) -> Iterator[_Measured]:
    """Measure the deployment that is named; of a model alone the usual ones, until one may not be shipped.

    Each is judged only where the one before may be shipped, in an order that is fixed beforehand, so that the chance
    of a wrong yes is that of one verdict.
    """
    alone = not any(mark in options.spec for mark in ("@", " vs "))
    if alone and (is_endpoint(options.spec) or options.out is not None):
        raise QuantDriftError(
            f"{options.spec}: a model alone is measured under several schemes, so it takes no server and no --out; "
            "expected MODEL@SCHEME, or MODEL vs CANDIDATE"
        )
    for pair in _usual(options.spec, dataset) if alone else [parse_pair(options.spec)]:
        note(f"measures {pair} on {dataset.name}, and the noise of full precision")
        run = measured(pair, options)
        one = _Measured(name=str(pair), run=run, outcome=verdict(run.record))
        yield one
        if one.ships != "yes":
            return


def _usual(model: str, dataset: Dataset) -> list[Spec]:
    """A model at 8 bits, and at 4 by the first calibrated quantizer that is installed and goes with the data."""
    from quantdrift.candidate.refusals import check_pair, check_spec

    four = parse(f"{model}@W4-rtn")
    for name in [name for name, entry in QUANTIZERS.items() if entry.calibrated and entry.in_repair]:
        with suppress(MissingExtraError, UnsupportedError):
            spec = replace(four, scheme=replace(four.scheme, quantizer=name))
            check_spec(spec)
            check_pair(spec, dataset)
            four = spec
            break
    return [parse(f"{model}@W8-rtn"), four]


def _with_parts(one: _Measured, options: ShipOptions, dataset: Dataset) -> _Measured:
    """Tell what each stage changes, where there are several and something changed; advice is then on the largest."""
    pair = parse_pair(one.name)
    if not isinstance(pair, Spec) or len(stages_of(pair.scheme)) == 1 or not one.flips.value:
        return one
    if pair.scheme.query_only or not typed(one.run.record, "waterfall", one.name):
        return one
    from quantdrift.features.waterfall.command import measured_stages
    from quantdrift.study.folder import open_study
    from quantdrift.study.shares import in_words, judged_whole, waterfalls_of

    note(f"measures what each of {', '.join(stages_of(pair.scheme))} changes")
    place, ended = measured_stages(pair, dataset, options)
    if ended.code:
        return replace(one, parts=ended.lines)
    waterfalls = waterfalls_of(open_study(place))
    outcome = judged_whole(one.run.record, waterfalls[0])
    return replace(one, outcome=outcome, parts=in_words(waterfalls, named=str(pair.scheme)))


def _mended(one: _Measured, options: ShipOptions, dataset: Dataset) -> _Search:
    """Search for what changes fewer answers, and judge it on inputs that took no part in the choice."""
    pair, command = parse_pair(one.name), typed(one.run.record, "repair", one.name)
    if not isinstance(pair, Spec) or not command or not options.minutes or not _could_be_mended(one):
        return _Search()
    from quantdrift.features.repair.command import named_spec, recommended, repaired
    from quantdrift.metrics import measure
    from quantdrift.runs.folder import read_run
    from quantdrift.spec.remedies import check_repairable
    from quantdrift.statistics.estimates import as_json

    folder = output_folder("repair", pair.model, dataset.name, dataset.fingerprint[:8])
    out = folder.with_name(re.sub("[@+=]", "_", folder.name))  # specs name a file in it
    note(f"tries for {options.minutes:g} minutes what changes fewer answers (--minutes)")
    try:
        check_repairable(pair.scheme)
        with options.stoppable("the search is not finished"):
            repair = repaired(pair, dataset, replace(options, out=out), quantizers=choice.TRIED)
    except (DataError, UnsupportedError) as error:
        return _Search(lines=[f"Nothing was tried that could change fewer answers: {error}."])
    command = f"{command} --out {shlex.quote(str(out))}"
    lines = recommended(repair)
    if repair.chosen is repair.deployments[0]:
        return _Search(lines=lines, command=command, repair=repair)
    run = read_run(repair.chosen.run)
    evidence = run.evidence()
    unseen = evidence.part(np.flatnonzero(choice.apart(evidence.n_inputs, options.seed)))
    record = {**run.record, "metrics": as_json(measure(unseen)), "tolerances": one.run.record["tolerances"]}
    name = named_spec(pair.model, repair.chosen.scheme)
    found = _Measured(name=name, run=replace(run, record=record), outcome=verdict(record))
    return _Search(found=found, lines=lines, command=command, repair=repair)


def _could_be_mended(one: _Measured) -> bool:
    if one.outcome.word == "open":
        return one.flips.n >= _ENOUGH
    return one.ships != "yes" and one.outcome.tone != "plain"


# --- the page -------------------------------------------------------------------------------------


def _page(tried: Sequence[_Measured], subject: _Measured, search: _Search, options: ShipOptions) -> Output:
    record, outcome = subject.run.record, subject.outcome
    answer, code = _ANSWERS[outcome.tone]
    others = [one for one in tried if one.name != subject.name]
    found = [] if search.found is None else [search.found]
    texts, evidence = read_texts(subject.run, task=options.task), subject.run.evidence()
    changed = changed_inputs(evidence)
    broken = changes_grid(record, evidence, changed, changed[:_BROKEN], texts)
    commands = dict(_commands(subject, others, search))
    rows = [*tried, *found]
    lines = [
        *subject.parts,
        *(f"{one.name}: {one.ships}. {one.outcome.told}" for one in others),
        *search.lines,
        *(f"{one.name}, on those inputs: {one.ships}. {one.outcome.told}" for one in found),
    ]
    columns = list(_costs(rows))
    return Output(
        data={
            "spec": subject.name,
            "data": record["data"]["name"],
            "may_be_shipped": {"yes": True, "no": False}.get(answer),
            "verdict": {**asdict(outcome), "sentence": outcome.sentence},
            "run": str(subject.run.path),
            "breaks": records(changed_columns(texts, exact=evidence.exact), changed[:_BROKEN]),
            "costs": records(columns, rows),
            "repair": None if search.repair is None else search.repair.to_json(),
            "lines": lines,
            "commands": commands,
        },
        title=f"May I ship {subject.name}? {answer.capitalize()}, by {record['data']['name']}: {outcome.word}.",
        about=[data_line(record), *(f"note: {warning}" for warning in record["data"]["warnings"]), *outcome.sentences],
        grids=[
            *([replace(broken, title=f"What breaks: {broken.title}", lines=broken.lines[-1:])] if changed else []),
            table(columns, rows, title="What it costs"),
        ],
        lines=lines,
        next=["", *(line for what, typed in commands.items() for line in (f"{what}:", f"    {typed}"))],
        code=code,
    )


def _costs(rows: Sequence[_Measured]) -> Iterator[Column]:
    """The columns of the table of costs, but for prices that are not known of any row."""

    def bits(record: Record) -> float | None:
        return (record.get("bits_per_weight") or {}).get("all_parameters")

    wide = 32 if "float32" in str(rows[0].run.record["settings"].get("dtype", "float32")) else 16
    yield Column("deployment", "name", kind="words")
    for title, key, form, price in (
        (f"bits a weight (of {wide})", "bits", ".1f", bits),
        ("bytes a document", "bytes_per_document", ",.0f", stored_bytes),
        ("time of a query (exact: 1)", "query_ratio", ".2g", query_ratio),
    ):
        if any(price(one.run.record) is not None for one in rows):
            yield Column(title, partial(_of_record, price), partial(_number, form), key=key)
    yield Column("inputs", "flips.n", "{:,}".format, key="n")
    yield Column("other answers", "flips", with_interval, key="flip@1")
    yield Column("may be shipped", "ships", kind="words")


def _of_record(price: Callable[[Record], float | None], one: _Measured) -> float | None:
    return price(one.run.record)


def _number(form: str, value: float | None) -> str:
    return "-" if value is None else format(value, form)


def _commands(subject: _Measured, others: Sequence[_Measured], search: _Search) -> Iterator[tuple[str, str]]:
    """What to type next, each with what it does."""
    record, place = subject.run.record, shlex.quote(os.path.relpath(subject.run.path))
    listed = {"all answers that changed, with their texts": f"quantdrift show {place}"}
    listed["the same as a page for a browser"] = f"quantdrift report {place}"
    if subject.parts:
        listed["what each part changes, with intervals"] = typed(record, "waterfall", subject.name)
    for one in others:
        listed[f"what mends {one.name}"] = typed(record, "ship", one.name)
    if search.found is not None:
        listed["what was found, on all inputs"] = typed(record, "run", search.found.name)
    if search.command:
        listed["what else was tried, or a longer search"] = search.command
    elif subject.outcome.command:
        listed[subject.outcome.next.rstrip(".")] = subject.outcome.command
    listed["which answers can be trusted as they are"] = f"quantdrift certify {place}"
    best = subject if search.found is None else search.found
    if gate := typed(record, "gate", best.name):
        listed["keep it from getting worse, in CI: write the baseline, commit it"] = f"{gate} --update"
    yield from ((what, command) for what, command in listed.items() if command)
