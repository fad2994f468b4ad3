"""`quantdrift repair`: which deployment of a model changes fewest answers."""

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.text import percent, with_interval
from quantdrift.cli.options import OnData, OnModel, argument, flag, option, prints
from quantdrift.features.repair import choice
from quantdrift.scheme import Scheme
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, table
from quantdrift.spec.grammar import Spec, options_of, parse


@dataclass(frozen=True, kw_only=True)
class RepairOptions(OnData, OnModel):
    """The options of `quantdrift repair`."""

    spec: str = argument("SPEC: The model and the plain scheme that is to be repaired: minilm@W4")
    bits: float | None = option(
        "B: Bits a linear weight may take, scales counted; by default an eighth of a bit more than SPEC takes.", min=2
    )
    latency: float | None = option(
        "X: How many times the plain scheme's time a query may take: 1.3 lets some be rescored at full precision. "
        "By default none is, unless --target needs it.",
        min=1,
    )
    target: str | None = option("flip@1=RATE: Find the cheapest deployment that changes at most so many answers.")
    speed_up: float = option(
        "X: How many times faster the quantized model is than full precision: your own figure, not measured here.",
        default=4.5,
        min=1,
    )
    quantizers: str | None = option(
        "NAME,NAME,...: Quantizers to try, of those with integer grids (quantdrift list quantizers); by default all "
        "that are installed but adaround."
    )
    thorough: bool = flag(
        "--thorough: Take about an hour: build on the best of every group size and on widths by gap, tune for longer."
    )
    out: Path = option("-o --out FOLDER: Folder for the runs and the allocation.", default=Path("repair"))
    plan: bool = flag("--plan: Say what would be tried, and stop.")
    k: int = option("-k --k: How many top-ranked documents to keep per query.", default=200, min=1)
    seed: int = option("Random seed for which queries are held out.", default=0)


@prints("json")
def command(options: RepairOptions) -> Output:
    """Try what can be done about the answers that a quantized model changes, and say which deployment pays.

    Tried are quantizers and finer groups, bits given to the layers that move it, tuning, the
    embedding matrix, the query side alone, coded embeddings, and unsure inputs rescored or deferred at full precision.
    Configurations are compared on a third of the queries (of labelled data: on the training part), by how far they
    move the gap; what comes through is run on the whole corpus, and all rates are over the others. Labels are not used.

    quantdrift repair minilm@W4 --data FOLDER --latency 1.3

    quantdrift repair minilm@W4 --data FOLDER --target flip@1=0.05

    The same command goes on where it was stopped.

    More: docs/guides/repair.md
    """
    spec = parse(options.spec)
    choice.check_plain(spec.scheme)
    goals = _goals(options)
    if options.plan:
        return _planned(spec, goals)
    from quantdrift.allocation.record import nameable
    from quantdrift.base.records import check_writable
    from quantdrift.candidate.refusals import check_spec
    from quantdrift.data.labelled import ClassificationDataset

    if not nameable(str(options.out)):
        raise QuantDriftError(f"--out {options.out}: specs name a file in it; expected no spaces, '+' and '@'")
    dataset = options.dataset
    check_spec(spec)
    check_writable(options.out.absolute() / "runs", what="a run")
    from quantdrift.features.repair.search import Tuner

    how = options.how
    how["settings"] = replace(how["settings"], k=options.k, seed=options.seed)
    with options.stoppable(f"{options.out} is not finished"):
        repair = Tuner(spec=spec, dataset=dataset, goals=goals, out=options.out, **how).repaired()
    return Output(
        data=repair.to_json(),
        title=f"{options.spec} on {dataset.name}: at most {repair.bits:.4g} bits a linear weight, scales counted",
        grids=[_tried(repair), _found(repair)],
        lines=_verdict(repair),
        next=_next(spec, repair, options, classes=isinstance(dataset, ClassificationDataset)),
    )


def _goals(options: RepairOptions) -> choice.Goals:
    target = None
    if options.target is not None:
        match = re.fullmatch(r"flip@1=(0?\.[0-9]+|0)", options.target)
        if match is None:
            raise QuantDriftError(f"--target {options.target}: expected flip@1=RATE with a rate below 1: flip@1=0.05")
        target = float(match[1])
    names = tuple(choice.TRIED) if options.quantizers is None else tuple(options.quantizers.split(","))
    if unknown := [name for name in names if name not in choice.POSSIBLE]:
        raise QuantDriftError(f"--quantizers {unknown[0]!r}: expected names of {', '.join(choice.POSSIBLE)}")
    return choice.Goals(
        bits=options.bits,
        latency=options.latency,
        target=target,
        speed_up=options.speed_up,
        quantizers=names,
        thorough=options.thorough,
    )


def _planned(spec: Spec, goals: choice.Goals) -> Output:
    names = [str(scheme) for scheme in choice.uniform_configurations(spec.scheme, goals.quantizers)]
    best, longer = ("the best of every group size", " (for longer, too)") if goals.thorough else ("the best of all", "")
    return Output(
        data={"ways": names},
        title=f"{spec}: what repair tries",
        lines=[
            f"1. {len(names)} quantizers, in trials on 32 inputs: {', '.join(names)}",
            "   (what takes too many bits, or whose library is missing, is left out)",
            "2. the better half of them on 160 inputs, in finer groups too",
            "   the best with widths chosen by gap",
            f"3. {best} with scales, biases and norms tuned{longer},",
            "   with 8-bit token embeddings, with the query side alone quantized, with int8 embeddings",
            "4. whole runs of these and of the plain scheme; unsure inputs rescored or deferred at full precision",
        ],
    )


_TRIALS = (
    Column("scheme", "scheme"),
    Column("bits", "bits", "{:.3f}".format),
    Column("shift of the gap", "shift", "{:.5f}".format),
    Column("gaps closed", "likely", percent),
    Column("inputs", "n"),
)


def _tried(repair: choice.Repair) -> Grid:
    last = {str(trial.scheme): trial for trial in repair.tried}.values()
    made = sorted((trial for trial in last if trial.shift is not None), key=lambda trial: (-trial.n, trial.shift))
    missing = [f"{trial.scheme} is left out: {trial.reason}" for trial in last if trial.shift is None]
    return table(_TRIALS, made, title="Trials, on inputs that no rate below is over", lines=missing)


def _found(repair: choice.Repair) -> Grid:
    """A line for every scheme, with what deferring makes of it beside it."""
    stars = dict(zip(map(id, repair.deployments), choice.front(repair.deployments), strict=True))
    lines: dict[str, list[choice.Deployment]] = {}
    for deployment in repair.deployments:
        lines.setdefault(_short(deployment.scheme), []).append(deployment)
    most = max(lines.values(), key=len)[1:]
    stored = repair.deployments[0].vector_bits
    rows = []
    for number, (alone, *again) in enumerate(lines.values(), 1):
        looks = [  # where gaps tie, its cost is not that of the column
            f"{percent(each.rate)}{'*' * stars[id(each)]}" + f" ({_cost(each)})" * (_cost(each) != _cost(usual))
            for each, usual in zip(again, most, strict=False)
        ]
        rows.append(
            [
                f"{number}{'*' if stars[id(alone)] else ''}",
                f"{alone.bits:.2f}",
                f"{alone.all_bits:.2f}",
                *([f"{alone.vector_bits}"] if stored else []),
                with_interval(alone.flips),
                "" if alone.difference is None else with_interval(alone.difference, sign="+"),
                *looks,
                *([""] * (len(most) - len(looks))),
            ]
        )
    head = ["", "bits", "of all", *(["stored"] if stored else []), "top-1 changes", "more than plain"]
    head += map(_cost, most)
    lines_below = [
        *(f"{number} {name}{', the plain scheme' if number == 1 else ''}" for number, name in enumerate(lines, 1)),
        "bits: of a linear weight, scales counted; of all: of a parameter of the whole model"
        + ("; stored: of a dimension of a document's embedding." if stored else "."),
        *(["%: so many unsure inputs are rescored or deferred at full precision; x: cost of a query."] if most else []),
        "* nothing else is as good in size, cost and top-1 changes.",
    ]
    n = repair.deployments[0].flips.n
    title = f"On the {n} held-out inputs of the choice (95 % intervals, not adjusted for it)"
    return Grid(title=title, head=head, rows=rows, lines=lines_below)


def _cost(deployment: choice.Deployment) -> str:
    return f"{100 * deployment.looked:.0f} %, x{deployment.cost:.2f}"


def _short(scheme: Scheme) -> str:
    """The scheme, or the name of the file with its widths and what stands beside that."""
    file = scheme.option("allocation")
    return str(scheme) if file is None else choice.named_by(Path(file).name, scheme)


def _name(deployment: choice.Deployment) -> str:
    rescored = f", {100 * deployment.looked:.0f} % rescored or deferred" if deployment.looked else ""
    return f"{_short(deployment.scheme)}{rescored}"


def _verdict(repair: choice.Repair) -> list[str]:
    chosen, confirmed = repair.chosen, repair.confirmed
    flips, difference = confirmed.flips, confirmed.difference
    if chosen is repair.deployments[0]:
        reached = repair.target is not None and (chosen.flips.high or 1.0) <= repair.target
        why = "reaches the target most cheaply" if reached else "changes fewest answers of what fits"
        lines = [f"Nothing else is recommended: the plain scheme {why}."]
    else:
        lines = [
            f"Recommended: {_name(chosen)}. On {flips.n:,} other inputs, which no choice saw, it changes "
            f"{with_interval(flips)} of the answers, the plain scheme {with_interval(repair.plain.flips)}."
        ]
    if repair.target is not None:
        shown = "Shown" if repair.target_shown else "Not shown"
        end = f"the interval ends at {percent(flips.high)}"
        lines.append(f"{shown}: that at most {percent(repair.target)} change there: {end}.")
    if chosen is not repair.deployments[0] and difference is not None and (difference.high or 0.0) >= 0:
        lines.append("The interval of the difference reaches 0: it could be chance. More queries would tell.")
    return lines


def _next(spec: Spec, repair: choice.Repair, options: RepairOptions, *, classes: bool) -> list[str]:
    from quantdrift.candidate.refusals import refuse_uncalibrated
    from quantdrift.models.files.kinds import check_saved
    from quantdrift.models.files.named import resolve
    from quantdrift.models.files.saved import check_savable

    chosen, same = repair.chosen, f"{'' if classes else f' {options.data_words}'}{options.model_words}"
    lines = [f"\nits run: {chosen.run}", f"what remains changed: quantdrift show {shlex.quote(chosen.run)}"]
    if chosen.scheme.query_only:
        lines.append("embed the documents at full precision, and queries with the quantized model:")
    stored = options_of(chosen.scheme, "vectors")  # nothing that quantize writes
    kept = tuple(pair for pair in chosen.scheme.options if f"+{pair[0]}=" not in stored)
    scheme = replace(chosen.scheme, query_only=False, options=kept)
    file = scheme.option("allocation")
    named = f"{spec.model}@{scheme if file is None else choice.named_by(file, scheme)}"
    with suppress(UnsupportedError):  # what quantize refuses is not advised; it calibrates on documents alone
        check_savable(scheme)
        check_saved(resolve(spec.model), options.revision)
        refuse_uncalibrated(Spec(model=spec.model, scheme=scheme), has_data=not classes)
        lines.append(f"make it: quantdrift quantize {shlex.quote(named)} --out FOLDER{same}")
    if chosen.looked:
        lines.append(
            f"rescore or defer them: quantdrift route {shlex.quote(chosen.run)} "
            f"--percentile {100 * chosen.looked:.6g} --save router.json"
        )
    return lines
