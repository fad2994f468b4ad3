"""`quantdrift certify`: coverage and violation of the stability check, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich.table import Table

from quantdrift.cli.certify_check import apply_stored
from quantdrift.cli.tables import console, one_format, print_markdown
from quantdrift.conformal import STATISTICS, Statistic, confidence_name
from quantdrift.display import clean, print_json, prose, say
from quantdrift.errors import QuantDriftError
from quantdrift.evidence import Evidence
from quantdrift.records import refuse_other
from quantdrift.runs import Run, find_runs
from quantdrift.trust.certify import ALPHAS, Certificate, Certified, Spread, certify
from quantdrift.trust.check import FORMAT, StabilityCheck

HEAD = ("level", "statistic", "accepted", "accepted and changed", "changed, of those", "threshold")

NO_CONFIDENCE = "msp and entropy are left out: they are of class probabilities, and this run ranks by similarities."
TWO = 2
TWO_CLASSES = "With two classes gap, msp and entropy order the inputs alike: their rows differ in the threshold only."
LIKENESS = (
    "The guarantee covers answers that are accepted and changed, for inputs like these: from the "
    "same source, in the same mix."
)


def certify_command(
    paths: Sequence[Path],
    *,
    alphas: Sequence[float],
    statistics: Sequence[str],
    splits: int,
    share: float,
    seed: int,
    save: Path | None,
    check: Path | None,
    json_output: bool,
    markdown: bool,
) -> None:
    """Print what the stability check accepts of each run, and what it lets through.

    Args:
        paths: run folders, or folders that hold some.
        alphas: levels; the paper's if there are none.
        statistics: what is calibrated; all that a run allows if there are none.
        splits: random splits.
        share: of the inputs that calibrates.
        seed: of the splits.
        save: where to write a check calibrated on all inputs.
        check: a stored check to apply instead.
        json_output: print one JSON object.
        markdown: print a Markdown table.

    Raises:
        QuantDriftError: no such run or statistic, a number out of its range, options that exclude
            each other, or a check of another pair.
    """
    one_format(json_output=json_output, markdown=markdown)
    for name in statistics:
        confidence_name(cast(Statistic, name))  # refuses what there is not
    asked = tuple(cast(Statistic, name) for name in dict.fromkeys(statistics))
    if check is not None and (alphas or asked or save):
        raise QuantDriftError(
            "--check applies a check as it is stored, with its own level; expected no --alpha, "
            "--statistic or --save beside it"
        )
    if save is not None:
        refuse_other(save, FORMAT, "a stability check")
    runs = find_runs(paths)
    if check is not None:
        apply_stored(check, runs, json_output=json_output, markdown=markdown)
        return
    if save is not None:
        _refuse_several(len(runs), len(set(alphas)), len(asked))
    levels, listed = tuple(dict.fromkeys(alphas)) or ALPHAS, []
    for run in runs:
        evidence = run.evidence()
        found = certify(evidence, levels, asked or _allowed(evidence), n_splits=splits, share=share, seed=seed)
        entry: dict[str, Any] = {"path": str(run.path), **_named(run), **found.to_json()}
        stored = None
        if save is not None:
            stored = StabilityCheck.calibrate(evidence, alpha=levels[0], statistic=(asked or ("S",))[0], on=run.record)
            stored.save(save)
            entry["saved"] = str(save)
        listed.append(entry)
        if not json_output:
            notes = [] if asked or evidence.confidence is not None else [NO_CONFIDENCE]
            alike = {"gap", "msp", "entropy"} & {each.statistic for each in found.certificates}
            if len(alike) > 1 and evidence.n_items.max(initial=0) == TWO:
                notes.append(TWO_CLASSES)
            if save is not None and stored is not None:
                notes.append(_saved(stored, save))
            _print(run, found, [*_sentences(found), *notes], markdown=markdown)
    if json_output:
        print_json({"runs": listed})


def _refuse_several(n_runs: int, n_alphas: int, n_statistics: int) -> None:
    """Refuse to save what is not one check; says what to type."""
    if n_runs != 1:
        raise QuantDriftError(f"--save calibrates a check on one run; got {n_runs} runs")
    if n_alphas != 1:
        got = f"one level, not {n_alphas}" if n_alphas else "one level"
        raise QuantDriftError(f"--save stores one check; give {got}, e.g. --alpha 0.05")
    if n_statistics > 1:
        raise QuantDriftError(f"--save stores one check; give one statistic, not {n_statistics}, e.g. --statistic S")


def _allowed(evidence: Evidence) -> tuple[Statistic, ...]:
    if evidence.confidence is not None:
        return STATISTICS
    return tuple(name for name in STATISTICS if confidence_name(name) == "gap")


def _named(run: Run) -> dict[str, Any]:
    return {"spec": run.record.get("spec"), "data": run.record.get("data", {}).get("name")}


def _print(run: Run, found: Certified, lines: Sequence[str], *, markdown: bool) -> None:
    named = _named(run)
    title = f"{named['spec']} on {named['data']}"
    rows = [
        (
            f"{each.alpha:.2f}" if round(each.alpha, 2) == each.alpha else f"{each.alpha:g}",
            _label(each),
            _share(each.coverage, sd=True),
            _share(each.joint_violation),
            _share(each.violation),
            _threshold(each),
        )
        for each in sorted(found.certificates, key=lambda each: -each.alpha)
    ]
    if markdown:
        say(f"**{prose(title)}**\n")
        print_markdown(HEAD, rows, lines)
        say()
        return
    table = Table(title=clean(title), title_justify="left")
    for name in HEAD:
        table.add_column(name, justify="left" if name == "statistic" else "right")
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before[0] != row[0]:
            table.add_section()
        table.add_row(*row)
    out = console(wide=True)
    out.print(table)
    for line in lines:
        out.print(line)


def _label(each: Certificate) -> str:
    return each.statistic if each.statistic in {"S", "2epsilon"} else f"{each.statistic} alone"


def _share(spread: Spread | None, *, sd: bool = False) -> str:
    if spread is None:
        return "-"
    plus = f" ± {100 * spread.sd:.1f}" if sd and spread.sd is not None else ""
    return f"{100 * spread.mean:.{1 if sd else 2}f} %{plus}"


def _threshold(each: Certificate) -> str:
    value = each.threshold
    if math.isfinite(value) and each.statistic == "entropy":  # stored as minus the entropy
        return f"{-value + 0.0:.4g} nats"
    if math.isfinite(value):
        return f"{value:.4g}"
    return "∞ (nothing)" if value > 0 else "-∞ (everything)"


def _sentences(found: Certified) -> list[str]:
    """What the first statistic's figures mean, in plain words."""
    tested = found.n_inputs - found.n_calibration
    splits = "one random split" if found.n_splits == 1 else f"{found.n_splits:,} random splits"
    lines = [
        f"{found.n_inputs:,} inputs, of which {found.n_calibration:,} calibrate and {tested:,} are "
        f"tested, over {splits}; {100 * found.flip_rate:.1f} % of the answers changed."
    ]
    first = found.certificates[0].statistic
    for each in (one for one in found.certificates if one.statistic == first):
        level = f"At level {each.alpha:g}"
        if each.coverage is None:
            assert each.reason is not None  # what is undefined says why
            lines.append(f"{each.reason[0].upper()}{each.reason[1:]}.")
            continue
        but = "."
        if found.flip_rate <= each.alpha:
            but = (
                ", but this level is too easy: accepting every answer would let only "
                f"{100 * found.flip_rate:.1f} % changed ones through. Ask for a smaller --alpha."
            )
        if each.violation is None:
            lines.append(f"{level} no answer can be used without asking full precision{but}")
        else:
            lines.append(
                f"{level}, {100 * each.coverage.mean:.1f} % of the answers can be used without "
                f"asking "
                f"full precision; of those, {100 * each.violation.mean:.2f} % changed{but}"
            )
    return [*lines, LIKENESS]


def _saved(check: StabilityCheck, path: Path) -> str:
    if check.reason is not None:
        return f"Saved to {path}, calibrated on all inputs: {check.reason}."
    sign = "above" if check.statistic not in {"S", "2epsilon"} else "at or above"
    looked_at = "its msp" if check.statistic == "msp" else "its gap"
    where = f"{looked_at} is {sign} {check.threshold:.6g}"
    if check.statistic == "entropy" and math.isfinite(check.threshold):  # minus the entropy
        where = f"its entropy is below {-check.threshold + 0.0:.6g} nats"
    return f"Saved to {path}, calibrated on all {check.n_calibration:,} inputs: an answer is accepted where {where}."
