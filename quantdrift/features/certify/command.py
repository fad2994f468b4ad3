"""`quantdrift certify`: which quantized answers can be trusted, without labels and without torch."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from quantdrift.base.errors import QuantDriftError, RunError, ScoreError
from quantdrift.base.records import parse_json
from quantdrift.base.text import as_typed, counted, percent, with_interval
from quantdrift.cli.options import RUNS, SEED, SHARE, SPLITS, argument, flag, option, prints, share_option
from quantdrift.data.retrieval import read_lines
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import RECORD, Run, find_runs
from quantdrift.runs.identity import Identity
from quantdrift.show.answers import write_answers
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.statistics import conformal
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined
from quantdrift.statistics.selective import CONFIDENCE
from quantdrift.trust.certify import ALPHAS, Certificate, Certified, Promise, certify
from quantdrift.trust.check import StabilityCheck
from quantdrift.trust.shift import Resemblance

_LIKENESS = (
    "The guarantees are for inputs like these, from the same source in the same mix. They are about full precision's "
    "answer, not the right one."
)


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(f"{RUNS} With --check also files of scores."),
    alpha: list[float] | None = share_option(
        "A: Level: at most this share of the accepted answers changed (a joint guarantee: of all answers, accepted and "
        "changed); may be repeated. By default 0.10, 0.05 and 0.01."
    ),
    confidence: float = share_option(
        "C: Confidence of the conditional guarantee, over the draw of the calibration inputs.", default=CONFIDENCE
    ),
    statistic: list[str] | None = option(
        "S|2epsilon|gap|msp|entropy: What is calibrated: of either guarantee a confidence, gap, msp or entropy; of the "
        "joint one also S (the paper's) or 2epsilon, against the gap. May be repeated; by default gap, and jointly all "
        "that the run allows."
    ),
    splits: int = option(SPLITS, default=20),
    share: float = share_option(SHARE, default=0.5),
    seed: int = option(SEED, default=0),
    save: Path | None = option(
        "FILE: Calibrate on all inputs of one run at one --alpha, by the gap unless --statistic says otherwise, and "
        "write the check into this file, for a server."
    ),
    joint: bool = flag("--joint: With --save: the paper's check, whose level bounds accepted and changed jointly."),
    check: Path | None = option(
        "FILE: Instead of splits: apply a check that --save wrote to these runs of the same pair, e.g. on newer "
        "data, or to the candidate's scores alone: a file of JSON lines, each one confidence, or a list of the scores "
        "of one input. Says too whether their inputs look like those it was calibrated on."
    ),
    everything: bool = flag("--all: The paper's check and other confidences too, a row each."),
    out: Path | None = option(
        "-o --out FILE: Write every input of one run with the candidate's answer and whether that is accepted, by "
        "--check or at one --alpha, into a .csv or .parquet file."
    ),
) -> Output:
    """Which quantized answers are the same as at full precision? Checks them without labels.

    The inputs set a threshold for how sure the quantized model is (its gap: first minus second score). It is tried,
    too: set on a part of them and tested on the others, over random splits. Two guarantees, for inputs like these:

    conditional: of the answers that are accepted, at most the level changed, with confidence 0.9.

    joint (--all): at most the level of all answers is accepted although it changed, on average (the paper's check).

    accepted: the share of answers that can be used without asking full precision.

    changed, of those: what a conditional level bounds.

    accepted and changed: a share of all answers; what a joint level bounds.

        quantdrift certify RUN --alpha 0.1 --alpha 0.01

        quantdrift certify RUN --alpha 0.1 --save check.json -o certified.csv

        quantdrift certify NEWER_RUN --check check.json -o certified.csv

        quantdrift certify SCORES.jsonl --check check.json

    More: docs/explained/trust.md
    """
    alphas = list(dict.fromkeys(alpha or ()))
    asked = tuple(cast(conformal.Statistic, name) for name in dict.fromkeys(statistic or ()))
    for name in asked:
        conformal.confidence_name(name)  # refuses what there is not
    if check is not None:
        if alphas or asked or save:
            raise QuantDriftError(
                "--check applies a check as it is stored, with its own level; expected no --alpha, --statistic or "
                "--save beside it"
            )
        return _applied(check, runs, out)
    if save is not None:
        StabilityCheck.check_place(save)
    chosen = find_runs(runs)
    of_one = next((name for name, place in {"--save": save, "-o": out}.items() if place is not None), None)
    if of_one and (len(chosen), len(alphas), max(1, len(asked))) != (1, 1, 1):
        raise QuantDriftError(
            f"{of_one} is of one check: expected one run, one level (--alpha 0.05) and at most one --statistic; got "
            f"{counted(len(chosen), 'run')}, {counted(len(alphas), 'level')} and {counted(len(asked), 'statistic')}"
        )
    listed, grids = [], []
    after: list[str] = []
    for run in chosen:
        evidence = run.evidence()
        how: Any = {"confidence": confidence, "n_splits": splits, "share": share, "seed": seed}
        certified = certify(evidence, alphas or ALPHAS, _promises(evidence, asked), **how)
        listed.append({**_named(run), **as_json(certified)})
        grids.append(
            _grid(certified, f"{listed[-1]['spec']} on {listed[-1]['data']}", whole=everything or joint or bool(asked))
        )
        after += [] if asked or of_one else _next(run, certified)
    if of_one:
        promise: Any = {"guarantee": "joint" if joint else "conditional", "statistic": asked[0] if asked else None}
        stored = StabilityCheck.calibrate(
            evidence, alpha=alphas[0], confidence=confidence, on=chosen[0].record, **promise
        )
        if save is not None:
            stored.save(save)
        of_all = f"calibrated on all {stored.n_calibration:,} inputs, of which it accepts"
        place = save or "not saved (--save FILE)"
        after.append(f"check: {place}, {of_all} {percent(stored.expected_coverage)} ({stored.rule})")
        if out is not None:
            after.append(write_answers(chosen[0], stored.statistic, {"accepted": stored.accepts_confidence}, out))
        else:
            listing = f"quantdrift certify {as_typed(chosen[0].path)} --check {shlex.quote(str(save))} -o certified.csv"
            after.append(f"{listing}   # which answers these are")
    return Output(data={"runs": listed, "saved": save and str(save)}, grids=grids, next=after)


def _promises(evidence: Evidence, asked: Sequence[conformal.Statistic]) -> list[Promise]:
    """What is certified: the conditional guarantee by the gap first, and then the joint ones."""
    classes = evidence.confidence is not None
    allowed = [name for name in conformal.STATISTICS if classes or conformal.confidence_name(name) == "gap"]
    alone: list[Promise] = [("conditional", name) for name in asked if not conformal.bounds_gap(name)]
    return [*(alone if asked else [("conditional", "gap")]), *(("joint", name) for name in asked or allowed)]


def _grid(certified: Certified, title: str, *, whole: bool) -> Grid:
    """A row for each level and guarantee; unless it is `whole`, only what the first guarantee accepts."""
    entries = sorted(certified.certificates, key=lambda entry: -entry.alpha) if whole else certified.of_first
    head = ["level", "guarantee", "statistic", "accepted", "accepted where"]
    head += ["tried: accepted", "changed, of those", "accepted and changed"]
    left = {"accepted"}  # for its width
    if not whole:
        left = {"guarantee", "statistic", "tried: accepted", "changed, of those", "accepted and changed"}
    rows = [_row(entry) for entry in entries]
    kept = [column for column, name in enumerate(head) if name not in left]
    return Grid(
        title=f"{title}: which answers can be trusted",
        head=[head[column] for column in kept],
        rows=[[row[column] for column in kept] for row in rows],
        words={"guarantee", "statistic", "accepted where"} - left,
        ruled=whole,
        lines=list(_lines(certified, whole=whole)),
    )


def _next(run: Run, certified: Certified) -> Iterator[str]:
    """Of the levels that accept something, the strictest to keep for a server; and what answers the other inputs."""
    conditional = [one for one in certified.certificates if one.guarantee == "conditional"]
    place = as_typed(run.path)
    if kept := [one.alpha for one in conditional if one.threshold_of_all != math.inf]:
        command = f"quantdrift certify {place} --alpha {min(kept):g} --save check.json -o certified.csv"
        yield f"{command}   # the check, for a server, and what it accepts of each input"
    yield f"quantdrift route {place}   # if the rest goes to full precision: its level is of all answers"


def _named(run: Run) -> dict[str, str]:
    data = run.record.get("data", {}).get("name")
    return {"path": str(run.path), "spec": str(run.record.get("spec")), "data": str(data)}


def _row(entry: Certificate) -> list[str]:
    plus = "" if entry.coverage.sd is None else f" ± {100 * entry.coverage.sd:.1f}"
    shares = [percent(share.value, 2) for share in (entry.violation, entry.joint_violation)]
    where = conformal.accepted_where(entry.statistic, entry.threshold_of_all)
    kept = [percent(entry.coverage_of_all), where]
    return [entry.level, entry.guarantee, entry.statistic, *kept, percent(entry.coverage.value) + plus, *shares]


def _lines(certified: Certified, *, whole: bool) -> Iterator[str]:
    """What the first statistic's figures mean, in plain words."""
    first = certified.certificates[0]
    if whole:
        yield certified.tried
    if first.guarantee == "conditional" and whole:
        yield "Serve by the first row of a level. The joint rows, the paper's among them, bound a share of all answers."
    elif not whole:
        how, tried = certified.briefly("violation", "the accepted answers changed")
        yield how
        yield (
            "You choose the level: of the accepted answers at most that share changed, with confidence "
            f"{certified.confidence:g}. They can be used without asking full precision. gap: the candidate's first "
            "score minus its second."
        )
        yield tried
    for entry in certified.of_first:
        level = f"At level {entry.alpha:g}"
        if entry.nothing_of_all is not None:
            yield f"{entry.nothing_of_all[0].upper()}{entry.nothing_of_all[1:]}; measure more, or take a larger level."
        elif entry.violation.value is None and whole:
            yield f"{level}, tried: {entry.violation.reason}."
        elif whole and (none := certified.n_splits - entry.violation.n) and entry.violation.n:
            yield (
                f"{level}, {none:,} of the {certified.n_splits:,} checks that were set on {certified.n_calibration:,} "
                "inputs accepted nothing, as these are few for it. What --save keeps is set on all "
                f"{certified.n_inputs:,}, and its promise holds."
            )
        elif entry.threshold_of_all == -math.inf and entry.guarantee == "conditional":
            changed = percent(certified.flip_rate)
            yield f"{level} every answer is accepted, as only {changed} of all changed; a smaller level chooses."
        if entry.guarantee == "joint" and certified.flip_rate <= entry.alpha:
            changed = percent(certified.flip_rate)
            yield f"Only {changed} changed in all, so accepting every answer keeps level {entry.alpha:g} too."
    yield _LIKENESS


# --- a stored check applied to a run, which knows the reference's answers too ---------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a check does on a run that also knows the reference's answers, or on the candidate's scores alone.

    Attributes:
        n_inputs: inputs with at least two items; the others take no part.
        flip_rate: share of them whose top-1 changed; None where the reference did not answer.
        coverage: share of them that are accepted.
        joint_violation: share of them that are accepted though their top-1 changed; undefined likewise.
        violation: share of the accepted ones whose top-1 changed; undefined if none is accepted, and likewise.
        resemblance: whether the inputs look like the calibration inputs.
        notes: what differs from what the check was calibrated on, a line each.
    """

    n_inputs: int
    flip_rate: float | None
    coverage: Estimate
    joint_violation: Estimate
    violation: Estimate
    resemblance: Resemblance
    notes: tuple[str, ...]


def apply_check(check: StabilityCheck, evidence: Evidence, record: Mapping[str, Any]) -> Applied:
    """Apply a check to the inputs of a run."""
    # refused before the evidence is looked at: msp of similarities would be another message
    here = Identity.of(record, input_ids=evidence.input_ids[evidence.n_items > 1])
    check.origin.refuse_other(
        here,
        what="the stability check",
        make=conformal.MAKE,
        error=conformal.StabilityError,
        candidate=False,  # what is measured is measured: a note says that the bound is for others
    )
    observed = conformal.observe(evidence, check.statistic)
    observed = observed.part(observed.defined)
    if not len(observed.confidence):
        raise conformal.StabilityError("there is nothing to check: no input has two items to compare")
    accepted = check.accepts_confidence(observed.confidence)
    wrong = (accepted & observed.flipped).astype(np.float64)
    return Applied(
        n_inputs=len(accepted),
        flip_rate=float(observed.flipped.mean()),
        coverage=rate_estimate(accepted.astype(np.float64)),
        joint_violation=rate_estimate(wrong),
        violation=rate_estimate(wrong[accepted]) if accepted.any() else undefined("the check accepts no answer"),
        resemblance=check.resembles_confidence(observed.confidence, warn=False),
        notes=tuple(_notes(check, here, observed.n_items)),
    )


def _notes(check: StabilityCheck, here: Identity, n_items: tuple[int, int]) -> Iterator[str]:
    was, sides = check.origin, ("when it was calibrated", "here")
    yield from was.differences(here, ("candidate",), sides=sides)
    other = was.differences(here, ("data",), sides=sides)
    yield from other
    # ids alone would not do: mteb's tasks without ids have "test-0" and so on in every subset
    if not other and {was.inputs, was.data_fingerprint} & {here.inputs, here.data_fingerprint} - {None}:
        yield "the check was calibrated on these very inputs, so that these figures are not held out"
    if n_items[0] < check.n_items_min or n_items[1] > check.n_items_max:
        had, have = ("{:,} to {:,}".format(*span) for span in ((check.n_items_min, check.n_items_max), n_items))
        yield f"items per input: {had} {sides[0]}, {have} {sides[1]}; with more, quantization can overturn larger gaps"


def _confidence_in(line: str, check: StabilityCheck) -> float:
    value = parse_json(line, strict=True)
    if not all(type(part) in {int, float} for part in (value if isinstance(value, list) else [value])):
        raise ValueError(f"got {line.strip():.40}")
    return float(check.confidence([value])[0] if isinstance(value, list) else value)


def check_scores(check: StabilityCheck, file: Path) -> Applied:
    """Apply a check to the scores that the candidate alone gave, one input a line."""
    confidences = []
    for number, line in read_lines(file):
        try:
            confidences.append(_confidence_in(line, check))
        except (ValueError, ScoreError) as error:
            expected = f"expected one confidence ({check.score}), or a list of the scores of one input"
            raise ScoreError(f"{file}, line {number}: {expected}; {error}") from error
    if not confidences:
        raise ScoreError(f"{file} holds no input; expected one confidence ({check.score}) or a list of scores a line")
    resemblance = check.resembles_confidence(confidences, warn=False)
    unknown = undefined("full precision did not answer these inputs")
    return Applied(
        n_inputs=len(confidences),
        flip_rate=None,
        coverage=rate_estimate(check.accepts_confidence(confidences).astype(np.float64)),
        joint_violation=unknown,
        violation=unknown,
        resemblance=resemblance,
        notes=(f"whether {check.origin.spec or 'the same pair'} gave these scores is not known",),
    )


def _each_applied(check: StabilityCheck, places: Sequence[Path]) -> Iterator[tuple[dict[str, str], Applied]]:
    """Apply a check to files of scores, and to the runs at the other places."""
    files = [place for place in places if place.is_file() and place.name != RECORD]
    for file in files:
        yield {"path": str(file), "spec": str(check.origin.spec), "data": file.name}, check_scores(check, file)
    for run in find_runs(place for place in places if place not in files):
        try:
            yield _named(run), apply_check(check, run.evidence(), run.record)
        except (conformal.StabilityError, RunError) as error:  # one of many: say which
            raise type(error)(f"{run.path}: {error}") from error


def _applied(path: Path, places: Sequence[Path], out: Path | None) -> Output:
    """What a stored check accepts of each run of the same pair, and what it lets through."""
    check = StabilityCheck.load(path)
    chosen = [*find_runs(places)] if out is not None else []
    if out is not None and len(chosen) != 1:
        raise QuantDriftError(f"-o lists the answers of one run; got {counted(len(chosen), 'run')}")
    rows, listed = [], []
    lines: list[str] = []
    for named, applied in _each_applied(check, places):
        listed.append({**named, **as_json(applied)})
        shares = [with_interval(applied.joint_violation, 2), with_interval(applied.violation, 2)]
        rows.append([named["data"], f"{applied.n_inputs:,}", with_interval(applied.coverage), *shares])
        lines += [f"{named['data']}: {note}." for note in (*applied.notes, applied.resemblance.sentence)]
    grid = Grid(
        title=f"{path.name}: {check.guarantee}, {check.statistic} at level {check.alpha:g} for {check.origin.spec}, "
        f"calibrated on {check.origin.data or 'unnamed data'}, of which it accepts {percent(check.expected_coverage)}",
        head=["run", "inputs", "accepted", "accepted and changed", "changed, of those accepted"],
        rows=rows,
        lines=lines,
    )
    after = []
    if out is not None:
        after.append(write_answers(chosen[0], check.statistic, {"accepted": check.accepts_confidence}, out))
    stored = {"path": str(path), **{name: getattr(check, name) for name in ("guarantee", "alpha", "statistic")}}
    stored["data"] = check.origin.data
    return Output(data={"check": stored, "runs": listed}, grids=[grid], next=after)
