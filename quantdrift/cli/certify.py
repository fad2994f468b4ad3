"""`quantdrift certify`: which quantized answers can be trusted, without labels and without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from quantdrift.cli.options import RUNS, SEED, SHARE, SPLITS, argument, option, prints
from quantdrift.cli.output import Grid, Shown, percent, some, with_interval
from quantdrift.conformal import STATISTICS, StabilityError, Statistic, confidence_name
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.evidence import Evidence
from quantdrift.runs import Run, find_runs
from quantdrift.trust.certify import ALPHAS, Certificate, Certified, Spread, certify
from quantdrift.trust.check import Applied, StabilityCheck, apply_check

_NO_CONFIDENCE = "msp and entropy are left out: they are of class probabilities, and this run ranks by similarities."
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
) -> Shown:
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
    alphas, asked = (
        list(dict.fromkeys(alpha or ())),
        tuple(cast(Statistic, one) for one in dict.fromkeys(statistic or ())),
    )
    for one in asked:
        confidence_name(one)  # refuses what there is not
    if check is not None:
        if alphas or asked or save:
            raise QuantDriftError(
                "--check applies a check as it is stored, with its own level; expected no --alpha, --statistic or "
                "--save beside it"
            )
        return _applied(check, find_runs(runs))
        return None
    if save is not None:
        StabilityCheck.check_place(save)
    found = find_runs(runs)
    if save is not None and (len(found), len(alphas), max(1, len(asked))) != (1, 1, 1):
        raise QuantDriftError(
            "--save stores one check: expected one run, one level (--alpha 0.05) and at most one --statistic; got "
            f"{len(found)} runs, {len(alphas)} levels and {len(asked)} statistics"
        )
    listed, grids = [], []
    for run in found:
        evidence = run.evidence()
        certified = certify(
            evidence, alphas or ALPHAS, asked or _allowed(evidence), n_splits=splits, share=share, seed=seed
        )
        named = {"spec": run.record.get("spec"), "data": _data(run)}
        entry: dict[str, Any] = {"path": str(run.path), **named, **certified.to_json()}
        lines = list(_lines(certified))
        if not asked and evidence.confidence is None:
            lines.append(_NO_CONFIDENCE)
        if save is not None:
            stored = StabilityCheck.calibrate(
                evidence, alpha=alphas[0], statistic=asked[0] if asked else "S", on=run.record
            )
            stored.save(save)
            entry["saved"] = str(save)
            lines.append(_saved(stored, save))
        listed.append(entry)
        grids.append(
            Grid(
                title=f"{named['spec']} on {named['data']}",
                head=["level", "statistic", "accepted", "accepted and changed", "changed, of those", "threshold"],
                rows=[_row(each) for each in sorted(certified.certificates, key=lambda each: -each.alpha)],
                words={"statistic"},
                ruled=True,
                lines=lines,
            )
        )
    return Shown(data={"runs": listed}, grids=grids)


def _allowed(evidence: Evidence) -> tuple[Statistic, ...]:
    if evidence.confidence is not None:
        return STATISTICS
    return tuple(name for name in STATISTICS if confidence_name(name) == "gap")


def _data(run: Run) -> str:
    return str(run.record.get("data", {}).get("name"))


def _row(each: Certificate) -> list[str]:
    level = f"{each.alpha:.2f}" if round(each.alpha, 2) == each.alpha else f"{each.alpha:g}"
    named = each.statistic if each.statistic in {"S", "2epsilon"} else f"{each.statistic} alone"
    threshold = f"{each.threshold:.4g}"
    if not math.isfinite(each.threshold):
        threshold = "∞ (nothing)" if each.threshold > 0 else "-∞ (everything)"
    elif each.statistic == "entropy":  # stored as minus the entropy
        threshold = f"{-each.threshold + 0.0:.4g} nats"
    plus = f" ± {100 * each.coverage.sd:.1f}" if each.coverage and each.coverage.sd is not None else ""
    shares = (_share(each.joint_violation), _share(each.violation))
    return [level, named, _share(each.coverage, 1) + plus, *shares, threshold]


def _share(spread: Spread | None, digits: int = 2) -> str:
    return percent(None if spread is None else spread.mean, digits)


def _lines(found: Certified) -> Iterator[str]:
    """What the first statistic's figures mean, in plain words."""
    tested = found.n_inputs - found.n_calibration
    splits = "one random split" if found.n_splits == 1 else f"{found.n_splits:,} random splits"
    yield (
        f"{found.n_inputs:,} inputs, of which {found.n_calibration:,} calibrate and {tested:,} are tested, over "
        f"{splits}; {percent(found.flip_rate)} of the answers changed."
    )
    for each in found.certificates:
        if each.statistic != found.certificates[0].statistic:
            continue
        if each.coverage is None:
            reason = str(each.reason)
            yield f"{reason[0].upper()}{reason[1:]}."
            continue
        level, but = f"At level {each.alpha:g}", "."
        if found.flip_rate <= each.alpha:
            but = (
                ", but this level is too easy: accepting every answer would let only "
                f"{percent(found.flip_rate)} changed ones through. Ask for a smaller --alpha."
            )
        if each.violation is None:
            yield f"{level} no answer can be used without asking full precision{but}"
        else:
            yield (
                f"{level}, {_share(each.coverage, 1)} of the answers can be used without asking full precision; of "
                f"those, {_share(each.violation)} changed{but}"
            )
    yield _LIKENESS


def _saved(check: StabilityCheck, path: Path) -> str:
    if check.reason is not None:
        return f"Saved to {path}, calibrated on all inputs: {check.reason}."
    sign = "at or above" if check.statistic in {"S", "2epsilon"} else "above"
    where = f"its {'msp' if check.statistic == 'msp' else 'gap'} is {sign} {check.threshold:.6g}"
    if check.statistic == "entropy" and math.isfinite(check.threshold):  # minus the entropy
        where = f"its entropy is below {-check.threshold + 0.0:.6g} nats"
    return f"Saved to {path}, calibrated on all {check.n_calibration:,} inputs: an answer is accepted where {where}."


# --- a stored check -------------------------------------------------------------------------------


def _applied(path: Path, runs: Sequence[Run]) -> Shown:
    """What a stored check accepts of each run of the same pair, and what it lets through."""
    check = StabilityCheck.load(path)
    rows, listed = [], []
    lines: list[str] = []
    for run in runs:
        evidence, name = run.evidence(), _data(run)
        try:
            found = apply_check(check, evidence, run.record)
        except (StabilityError, RunError) as error:  # one of many: say which
            raise type(error)(f"{run.path}: {error}") from error
        listed.append({"path": str(run.path), "spec": run.record.get("spec"), "data": name, **found.to_json()})
        shares = [with_interval(found.joint_violation, 2), with_interval(found.violation, 2)]
        rows.append([name, f"{found.n_inputs:,}", with_interval(found.coverage), *shares])
        lines += _of_run(check, name, found)
    names = some(dict.fromkeys(map(_data, runs)), 3)
    grid = Grid(
        title=f"{path.name}: {check.statistic} at level {check.alpha:g} for {check.origin.spec}, calibrated on "
        f"{check.origin.data or 'unnamed data'}, applied to {names}",
        head=["run", "inputs", "accepted", "accepted and changed", "changed, of those accepted"],
        rows=rows,
        lines=lines,
    )
    named = {"path": str(path), "alpha": check.alpha, "statistic": check.statistic, "data": check.origin.data}
    return Shown(data={"check": named, "runs": listed}, grids=[grid])


def _of_run(check: StabilityCheck, name: str, found: Applied) -> Iterator[str]:
    for note in found.notes:
        yield f"Note, {name}: {note}."
    if found.violation.value is None:
        yield f"{name}: no answer is accepted ({found.violation.reason})."
    else:
        yield (
            f"{name}: {percent(found.coverage.value)} of the answers are accepted (of the calibration inputs "
            f"{percent(check.expected_coverage)}); of those, {percent(found.violation.value, 2)} changed, of all "
            f"{percent(found.flip_rate)}."
        )
    if found.resemblance.alike:
        yield f"{name}: {found.resemblance.sentence}."
