"""Measure one pair for a command: the run and its folder."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.base.display import duration, note
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.paths import RUNS
from quantdrift.cli.options import MeasuringAny, tolerances_given
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, table
from quantdrift.spec.grammar import Spec, Versus

if TYPE_CHECKING:
    from quantdrift.asking.ask import Ask
    from quantdrift.asking.forecast import Forecast
    from quantdrift.runs.folder import Run


def measured(pair: Spec | Versus, options: MeasuringAny, *, part: tuple[object, ...] = (), **until: Any) -> Run:
    """Measure a pair on data and write the run folder.

    What stops it before the last input is `until`: what `ensure` takes as `enough`, and a `part` that tells it apart.
    """
    ask, out = asked(pair, options, part=part, ending="_sequential" if until else "")
    return ensured(ask, options, out, **until)


def asked(
    pair: Spec | Versus,
    options: MeasuringAny,
    *,
    limit: int | None = None,
    part: tuple[object, ...] = (),
    ending: str = "",
) -> tuple[Ask, Path]:
    """The measurement of a pair on data, or on their first `limit` inputs, and its run folder."""
    from quantdrift.candidate.refusals import check_named
    from quantdrift.data.labelled import limited, searched
    from quantdrift.finished.shortlist import FIRST, read_shortlist

    if options.top is not None and options.shortlist is None:
        raise UnsupportedError("--top is the length of a shortlist; expected --shortlist RUN with it")
    check_named(pair)
    dataset, shortlist = options.dataset, None
    if options.shortlist is not None:
        shortlist = read_shortlist(options.shortlist, searched(dataset), top=options.top or FIRST)
        ending = f"_top{shortlist.top}{ending}"
    if limit is not None:
        if shortlist is not None:
            raise UnsupportedError("--limit does not go with --shortlist; leave it out")
        dataset, ending = limited(dataset, limit), f"_first{limit}{ending}"
    return options.ask(pair, dataset, *part, shortlist=shortlist), options.out or default_place(pair, dataset, ending)


def ensured(ask: Ask, options: MeasuringAny, out: Path, **loading: Any) -> Run:
    """Return the run that answers a request, judged with the tolerances that the options name."""
    from quantdrift.asking.ensure import ensure
    from quantdrift.runs.folder import judged_with
    from quantdrift.statistics.standing import Tolerances

    tolerances = tolerances_given(options.tolerance, options.mean_tolerance) or Tolerances()
    with options.stoppable("no run was written"):
        run = ensure(
            ask,
            out,
            **options.how,
            **loading,
            reuse=None if options.cache else False,
            found=lambda: note(f"{out} holds this run already; --no-cache measures it again"),
            record={"tolerances": asdict(tolerances)},
            before=lambda: options.foretell(ask),
        )
    return judged_with(run, tolerances)


_STEPS = (
    Column("stage", "stage", kind="words"),
    Column("inputs", "inputs", lambda n: f"{n:,}" if n else "", kind="count"),
    Column("time", "seconds", duration),
)


def planned(told: Forecast) -> Output:
    """Show what a measurement takes, stage by stage."""
    grids = [table(_STEPS, told.steps)]
    return Output(data=told.to_json(), title=f"{told.name}: {told.about}", grids=grids, lines=told.room)


def default_place(pair: Spec | Versus, dataset: Any, ending: str = "") -> Path:
    """The default folder for a run of a pair on a dataset, under quantdrift-runs.

    If it holds a run on other data of the same name, another folder is taken, with a note on standard error: a run
    never replaces one on other data.
    """
    from quantdrift.base.records import read_json

    models = (pair.reference, "vs", pair.candidate) if isinstance(pair, Versus) else (str(pair),)
    name = "_".join(slug(part) for part in (*models, "on", dataset.name))
    place = RUNS / f"{name}{ending}"
    try:
        data = read_json(place / "run.json")["data"]
        there = data.get("drawn", data)["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return place  # no run; a folder of something else is refused later
    if there == dataset.fingerprint:
        return place
    elsewhere = RUNS / f"{name}-{dataset.fingerprint[:8]}{ending}"
    note(f"{place} holds a run on other data named {dataset.name}; this run goes to {elsewhere}")
    return elsewhere


def output_folder(*words: str) -> Path:
    """The folder under quantdrift-runs for some words: output_folder("rag", "nq") is quantdrift-runs/rag_nq."""
    return RUNS / "_".join(map(slug, words))


def slug(text: str) -> str:
    """A file name for a text, valid on every file system; ./model gives model."""
    return re.sub(r"[^A-Za-z0-9.@+=_-]+", "_", text).strip("._") or "run"
