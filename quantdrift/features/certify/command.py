"""`quantdrift certify`: which quantized answers can be trusted, without labels and without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.text import counted, percent, with_interval
from quantdrift.cli.options import RUNS, SEED, SHARE, SPLITS, argument, option, prints
from quantdrift.evidence.record import Evidence
from quantdrift.features.certify.applied import apply_check
from quantdrift.runs.folder import Run, find_runs
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.statistics.conformal import STATISTICS, StabilityError, Statistic, accepted_where, confidence_name
from quantdrift.statistics.estimates import as_json
from quantdrift.trust.certify import ALPHAS, Certificate, Certified, Share, certify
from quantdrift.trust.check import StabilityCheck

_LIKENESS = (
    "The guarantee covers answers that are accepted and changed, for inputs like these: from the same source, in the "
    "same mix."
)


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    alpha: list[float] | None = option(
        "A: Level: at most this share of all answers is accepted although it changed; may be repeated. By default"
        " 0.10, 0.05 and 0.01, which need at least 9, 19 and 99 calibration inputs."
    ),
    statistic: list[str] | None = option(
        "S|2epsilon|gap|msp|entropy: What is calibrated: S (the paper's) or 2epsilon, against the gap; or the "
        "confidences gap, msp, entropy alone. May be repeated; all that the run allows if not given."
    ),
    splits: int = option(SPLITS, default=20),
    share: float = option(SHARE, default=0.5),
    seed: int = option(SEED, default=0),
    save: Path | None = option(
        "FILE: Calibrate on all inputs of one run at one --alpha, by S unless --statistic says otherwise, and "
        "write the check into this file, for a server."
    ),
    check: Path | None = option(
        "FILE: Instead of splits: apply a check that --save wrote to these runs of the same pair, e.g. on newer "
        "data. Says too whether their inputs look like those it was calibrated on."
    ),
) -> Output:
    """Which quantized answers are the same as at full precision? Checks them without labels.

    Part of the inputs sets a threshold for the quantized model's gap (first minus second score); an answer is
    accepted if its gap reaches it. For inputs like these, the chance that an answer is accepted although full
    precision would give another one is at most the level. The other inputs test this, over random splits:

    accepted: the share of answers that can be used without asking full precision.

    accepted and changed: a share of all answers; the level is guaranteed for this.

    changed, of those accepted: a share of the accepted answers; no guarantee.

        quantdrift certify RUN --alpha 0.1 --alpha 0.01

        quantdrift certify RUN --alpha 0.1 --save check.json

        quantdrift certify NEWER_RUN --check check.json
    """
    alphas = list(dict.fromkeys(alpha or ()))
    asked = tuple(cast(Statistic, one) for one in dict.fromkeys(statistic or ()))
    for one in asked:
        confidence_name(one)  # refuses what there is not
    if check is not None:
        if alphas or asked or save:
            raise QuantDriftError(
                "--check applies a check as it is stored, with its own level; expected no --alpha, --statistic or "
                "--save beside it"
            )
        return _applied(check, find_runs(runs))
    if save is not None:
        StabilityCheck.check_place(save)
    found = find_runs(runs)
    if save is not None and (len(found), len(alphas), max(1, len(asked))) != (1, 1, 1):
        raise QuantDriftError(
            "--save stores one check: expected one run, one level (--alpha 0.05) and at most one --statistic; got "
            f"{counted(len(found), 'run')}, {counted(len(alphas), 'level')} and {counted(len(asked), 'statistic')}"
        )
    listed, grids = [], []
    for run in found:
        evidence = run.evidence()
        statistics = asked or _allowed(evidence)
        certified = certify(evidence, alphas or ALPHAS, statistics, n_splits=splits, share=share, seed=seed)
        listed.append({**_named(run), **as_json(certified)})
        grids.append(
            Grid(
                title=f"{listed[-1]['spec']} on {listed[-1]['data']}",
                head=["level", "statistic", "accepted", "accepted and changed", "changed, of those", "accepted where"],
                rows=[_row(each) for each in sorted(certified.certificates, key=lambda each: -each.alpha)],
                words={"statistic", "accepted where"},
                ruled=True,
                lines=list(_lines(certified)),
            )
        )
    after = []
    if save is not None:
        stored = StabilityCheck.calibrate(evidence, alpha=alphas[0], statistic=(*asked, "S")[0], on=found[0].record)
        stored.save(save)
        after.append(f"check: {save}, calibrated on all {stored.n_calibration:,} inputs ({stored.rule})")
    return Output(data={"runs": listed, "saved": save and str(save)}, grids=grids, next=after)


def _allowed(evidence: Evidence) -> tuple[Statistic, ...]:
    if evidence.confidence is not None:
        return STATISTICS
    return tuple(name for name in STATISTICS if confidence_name(name) == "gap")


def _named(run: Run) -> dict[str, str]:
    data = run.record.get("data", {}).get("name")
    return {"path": str(run.path), "spec": str(run.record.get("spec")), "data": str(data)}


def _row(each: Certificate) -> list[str]:
    level = f"{each.alpha:.2f}" if round(each.alpha, 2) == each.alpha else f"{each.alpha:g}"
    named = each.statistic if each.statistic in {"S", "2epsilon"} else f"{each.statistic} alone"
    plus = "" if each.coverage.sd is None else f" ± {100 * each.coverage.sd:.1f}"
    shares = (_share(each.joint_violation), _share(each.violation))
    return [level, named, _share(each.coverage, 1) + plus, *shares, accepted_where(each.statistic, each.threshold)]


def _share(share: Share, digits: int = 2) -> str:
    return percent(share.value, digits)


def _lines(found: Certified) -> Iterator[str]:
    """What the first statistic's figures mean, in plain words."""
    tested = found.n_inputs - found.n_calibration
    yield (
        f"{found.n_inputs:,} inputs, of which {found.n_calibration:,} calibrate and {tested:,} are tested, over "
        f"{counted(found.n_splits, 'random split')}; {percent(found.flip_rate)} of the answers changed."
    )
    for each in found.certificates:
        if each.statistic != found.certificates[0].statistic:
            continue
        level = f"At level {each.alpha:g}"
        if each.violation.value is None:
            yield f"{level}: {each.violation.reason}."
        else:
            yield (
                f"{level}, {_share(each.coverage, 1)} of the answers can be used without asking full precision; of "
                f"those, {_share(each.violation)} changed."
            )
        if found.flip_rate <= each.alpha:
            changed = percent(found.flip_rate)
            yield f"Only {changed} changed in all, so accepting every answer keeps level {each.alpha:g} too."
    yield _LIKENESS


# --- a stored check -------------------------------------------------------------------------------


def _applied(path: Path, runs: Sequence[Run]) -> Output:
    """What a stored check accepts of each run of the same pair, and what it lets through."""
    check = StabilityCheck.load(path)
    rows, listed = [], []
    lines: list[str] = []
    for run in runs:
        evidence, named = run.evidence(), _named(run)
        try:
            found = apply_check(check, evidence, run.record)
        except (StabilityError, RunError) as error:  # one of many: say which
            raise type(error)(f"{run.path}: {error}") from error
        listed.append({**named, **found.to_json()})
        shares = [with_interval(found.joint_violation, 2), with_interval(found.violation, 2)]
        rows.append([named["data"], f"{found.n_inputs:,}", with_interval(found.coverage), *shares])
        lines += [f"{named['data']}: {note}." for note in (*found.notes, found.resemblance.sentence)]
    grid = Grid(
        title=f"{path.name}: {check.statistic} at level {check.alpha:g} for {check.origin.spec}, calibrated on "
        f"{check.origin.data or 'unnamed data'}, of which it accepts {percent(check.expected_coverage)}",
        head=["run", "inputs", "accepted", "accepted and changed", "changed, of those accepted"],
        rows=rows,
        lines=lines,
    )
    stored = {"path": str(path), "alpha": check.alpha, "statistic": check.statistic, "data": check.origin.data}
    return Output(data={"check": stored, "runs": listed}, grids=[grid])
