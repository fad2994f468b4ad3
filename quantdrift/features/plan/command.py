"""`quantdrift gate --plan`: compute how many inputs a verdict needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quantdrift.asking.ensure import ensure
from quantdrift.base.display import note
from quantdrift.base.errors import QuantDriftError, RunError, UnsupportedError
from quantdrift.base.text import counted, percent
from quantdrift.cli.measuring import default_place
from quantdrift.cli.options import CONFIG, METRIC, Measuring, OnData, argument, option, prints, share_option
from quantdrift.data.labelled import Dataset, sampled, size_of
from quantdrift.features.plan.power import Needed, needed_by
from quantdrift.gate.result import ALPHA
from quantdrift.gate.rules import Rule, configured, default_rules, parse_rule
from quantdrift.gate.target import target_of_run
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell
from quantdrift.runs.folder import Run, read_run
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, table
from quantdrift.spec.grammar import Spec, chooses, is_endpoint, parse
from quantdrift.statistics.standing import MARGIN

LEAST = 20
"""Inputs of a pilot at least; fewer do not show how many differ."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(OnData, Measuring):
    """The options of `quantdrift gate --plan`."""

    spec: str | None = argument(
        "SPEC: The spec that will be judged, MODEL@SCHEME: minilm@W4-rtn; by default the target in pyproject.toml.",
        None,
    )
    margin: float | None = share_option(
        "X: The margin, in the metric's own unit: 0.02 is 2 percentage points of a rate, or 0.02 of nDCG. By default "
        "the margins of the gate's default rules, and 0.03 for a --metric.",
        min=1e-6,
    )
    metric: list[str] | None = option(f"{METRIC} By default the metrics of the gate's default rules.")
    rule: list[str] | None = option(
        "-r --rule RULE: A rule of the gate, such as 'ndcg@10 no worse by 0.03'; may be repeated, and replaces the "
        "rules of pyproject.toml."
    )
    against: Path | None = option(
        "RUN: A run of the baseline on the same data, which shows how many inputs differ from it."
    )
    pilot: int = option("N: How many inputs to measure.", default=100, min=LEAST)
    power: float = share_option(
        "P: Probability that one rule passes if neither side is better.", default=0.8, min=0.5, max=0.999
    )
    alpha: float | None = share_option("P: Level of the gate's tests; 0.05 by default.", min=1e-9, max=0.4)
    config: Path | None = option(CONFIG)
    out: Path | None = option(
        "FOLDER: Folder for the run of the pilot; by default quantdrift-runs/SPEC_on_DATA_pilotN."
    )


@prints("json", "markdown")
def command(options: PlanOptions) -> Output:
    """Compute how many inputs a verdict of the gate needs, and whether the data have them.

    A pilot is measured: some inputs at random, against the whole corpus. The number of its inputs that differ shows how
    many inputs are needed to pass "no worse by the margin" if neither side is better. With --against RUN, the pilot is
    compared with that run; otherwise the baseline is assumed to change as many inputs as the pilot, independently.

    Spec, data, rules and level are by default those of [tool.quantdrift.gate] in pyproject.toml. The run of the pilot
    is kept, so that the same command with another margin, metric or power answers at once.

    For example: quantdrift gate --plan minilm@W4-rtn --data ./cranfield --margin 0.02

    More: docs/guides/ci.md
    """
    config, _ = configured(options.config)
    if (named := options.spec or config.target) is None:
        raise QuantDriftError(
            "expected what to judge: a spec such as minilm@W4-rtn with --data FOLDER; or target = ... in "
            "pyproject.toml, under [tool.quantdrift.gate]"
        )
    alpha = options.alpha or config.alpha or ALPHA
    options = replace(options, **config.data_for(options.data, options.columns, options.task), alpha=alpha)
    spec = parse(named)
    if chooses(spec.scheme):
        raise UnsupportedError(
            f"{spec}: {spec.scheme.criterion} chooses widths on a part of the inputs, and a pilot has too few; write "
            f"an allocation with quantdrift allocate, and plan {spec.model}@allocation.json"
        )
    dataset = options.dataset
    against = None if options.against is None else _run_on(options.against, dataset.fingerprint, spec.model)
    # a wrong rule is refused before anything is measured
    rules = _given(options) or _of_file(config.rules, options.margin)
    run = _pilot(spec, dataset, options)
    target = target_of_run(run)
    baseline = None if against is None else target_of_run(against)
    if baseline is not None:  # the pilot is a part of its data
        fingerprint = baseline.identity.data_fingerprint
        target = replace(target, identity=replace(target.identity, data_fingerprint=fingerprint))
    if not rules:
        rules = [replace(rule, number=options.margin or rule.number) for rule in default_rules(target)]
    needs = needed_by(rules, target, baseline, there=size_of(dataset), alpha=alpha, power=options.power)
    return _shown(run, needs, options, dataset, against)


def _run_on(path: Path, fingerprint: str, model: str) -> Run:
    """Read the run of --against; refuse one of another model or on other data."""
    from quantdrift.models.files.named import resolve

    run = read_run(path)
    if not is_endpoint(model) and run.record["model"].get("canonical") not in {None, resolve(model).canonical}:
        raise RunError(f"expected --against with a run of {model}; that of {path} is of {run.record['model']['name']}")
    if run.record["data"].get("fingerprint") != fingerprint:
        raise RunError(f"expected --against with a run on these data; {path} is on other data or a part of them")
    return run


def _of_file(texts: Sequence[str], margin: float | None) -> list[Rule]:
    """The comparisons of all inputs in pyproject.toml; a note names the other rules."""
    rules = [parse_rule(text) for text in texts]
    planned = [rule for rule in rules if rule.compares and rule.on is None]
    if others := [str(rule) for rule in rules if rule not in planned]:
        note(f"a plan is for comparisons on all inputs; left out: {', '.join(others)}")
    return [replace(rule, number=margin or rule.number or MARGIN) for rule in dict.fromkeys(planned)]


def _given(options: PlanOptions) -> list[Rule]:
    """The rules of the options, each with a margin."""
    rules = [parse_rule(text) for text in options.rule or ()]
    for rule in rules:
        if rule.on is not None or not rule.compares:
            raise QuantDriftError(f"{rule}: expected a comparison on all inputs, such as 'flip@1 no worse by 0.03'")
    rules += [Rule(metric=parse_metric(name), test="no worse") for name in options.metric or ()]
    margin = options.margin or MARGIN
    rules = [replace(rule, number=margin if rule.number is None else rule.number) for rule in rules]
    return list(dict.fromkeys(rules))


def _pilot(spec: Spec, dataset: Dataset, options: PlanOptions) -> Run:
    """The run of the pilot, which is reused if it was measured before."""
    seed = f"-seed{options.seed}" if options.seed else ""
    part = sampled(dataset, options.pilot, options.seed)
    out = options.out or default_place(spec, part, f"_pilot{options.pilot}{seed}")
    with options.stoppable("no pilot was written"):
        run = ensure(
            options.ask(spec, part, "pilot", options.pilot, options.seed),
            out,
            **options.how,
            reuse=None if options.cache else False,
            record={"pilot": {"seed": options.seed, "n": size_of(part)}},
        )
    note(f"the pilot is kept in {out}")
    return run


# --- output ---------------------------------------------------------------------------------------


def _shown(run: Run, needs: Sequence[Needed], options: PlanOptions, dataset: Dataset, against: Run | None) -> Output:
    there, pilot = size_of(dataset), run.record["pilot"]
    most = max((need.to_pass for need in needs if need.to_pass is not None), default=None)
    lines = [*_sentences(needs, options)]
    if against is None:
        lines.append(
            "Run and baseline are assumed to change as many inputs as the pilot, independently of each other. Similar "
            "candidates need fewer inputs: --against RUN measures how many differ."
        )
    return Output(
        data={
            "spec": run.record["spec"],
            "data": dataset.name,
            "run": str(run.path),
            "against": None if against is None else str(against.path),
            "inputs": there,
            "pilot": pilot["n"],
            **{name: getattr(options, name) for name in ("alpha", "power", "seed")},
            "needed": most,
            "rules": [need.to_json() for need in needs],
        },
        title=f"{run.record['spec']} on {dataset.name}: a pilot of {pilot['n']:,} of {counted(there, 'input')}",
        grids=[table(_COLUMNS, needs, stacked=True)],
        lines=lines,
    )


def _to_pass(need: Needed) -> str:
    ends = "" if need.to_pass_low is None else f" ({need.to_pass_low:,} to {need.to_pass_high:,})"
    return "-" if need.to_pass is None else f"{need.to_pass:,}{ends}"


def _up(margin: float | None) -> str:
    """Round a margin up.

    >>> _up(0.0312)
    '0.032'
    """
    return "-" if margin is None else f"{-(-margin * 1000 // 1) / 1000:.3f}".rstrip("0")


_COLUMNS = (
    Column("rule", "rule"),
    Column("pilot (95 %)", lambda need: cell(need.rule.metric, need.pilot)),
    Column("differ", "differs", percent),
    Column("to pass", _to_pass),
    Column("smallest margin", "smallest", _up),
    Column("inputs", "enough", lambda enough: "enough" if enough else "too few", kind="words"),
)


def _sentences(needs: Sequence[Needed], options: PlanOptions) -> Iterator[str]:
    for need in needs:
        rule = need.rule
        if need.to_pass is None:
            yield f"{rule}: this pilot tells nothing: {need.reason}."
            continue
        step = 0.0 if need.difference is None else need.difference.value or 0.0
        harm = step if rule.metric.direction == "lower" else -step
        if harm >= need.margin:
            yield (
                f"{rule}: in the pilot it is worse by {harm:.3f}, the margin or more; if that holds, it fails with any "
                "number of inputs."
            )
    yield (
        f"To pass: enough in {100 * options.power:.0f} % of cases where run and baseline are equally good. In brackets "
        "the share that differs is at the ends of its 95 % interval."
    )
