"""`quantdrift repair`: which deployment of a model changes fewest answers."""

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
    quantizers: str | None = option(
        "NAME,NAME,...: Quantizers to try, of those with integer grids (quantdrift list quantizers); by default all "
        "that are installed but adaround."
    )
    thorough: bool = flag(
        "--thorough: Take about an hour: build on the best of every group size and on widths by gap, tune for longer."
    )
    out: Path = option("-o --out FOLDER: Folder for the runs and the allocation.", default=Path("repair"))
    k: int = option("-k --k: How many top-ranked documents to keep per query.", default=200, min=1)
    seed: int = option("Random seed for which queries are held out.", default=0)


@prints("json")
def command(options: RepairOptions) -> Output:
    """Try what can be done about the answers that a quantized model changes, and say which deployment pays.

    Tried are quantizers and finer groups, bits given to the layers that move it, tuning, the embedding matrix, the
    query side alone, and coded embeddings. Configurations are compared on a third of the queries (of labelled data: on
    the training part), by how far they move the gap; what comes through is run on the whole corpus, and all rates are
    over the others. Labels are not used.

    The same command goes on where it was stopped. What it brings beside to send unsure inputs to full precision, says
    quantdrift route.

    For example: quantdrift repair minilm@W4 --data FOLDER

    More: docs/guides/repair.md
    """
    spec = parse(options.spec)
    choice.check_plain(spec.scheme)
    goals = _goals(options)
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
    names = tuple(choice.TRIED) if options.quantizers is None else tuple(options.quantizers.split(","))
    if unknown := [name for name in names if name not in choice.POSSIBLE]:
        raise QuantDriftError(f"--quantizers {unknown[0]!r}: expected names of {', '.join(choice.POSSIBLE)}")
    return choice.Goals(bits=options.bits, quantizers=names, thorough=options.thorough)


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
    """A line for every scheme."""
    stored, rows = repair.deployments[0].vector_bits, []
    stars = choice.front(repair.deployments)
    for number, (deployment, star) in enumerate(zip(repair.deployments, stars, strict=True), 1):
        difference = deployment.difference
        rows.append(
            [
                f"{number}{'*' * star}",
                f"{deployment.bits:.2f}",
                f"{deployment.all_bits:.2f}",
                *([f"{deployment.vector_bits}"] if stored else []),
                with_interval(deployment.flips),
                "" if difference is None else with_interval(difference, sign="+"),
            ]
        )
    names = [_short(deployment.scheme) for deployment in repair.deployments]
    lines = [
        *(f"{number} {name}{', the plain scheme' if number == 1 else ''}" for number, name in enumerate(names, 1)),
        "bits: of a linear weight, scales counted; of all: of a parameter of the whole model"
        + ("; stored: of a dimension of a document's embedding." if stored else "."),
        "* nothing else is as good in size and top-1 changes.",
    ]
    head = ["", "bits", "of all", *(["stored"] if stored else []), "top-1 changes", "more than plain"]
    n = repair.deployments[0].flips.n
    title = f"On the {n} held-out inputs of the choice (95 % intervals, not adjusted for it)"
    return Grid(title=title, head=head, rows=rows, lines=lines)


def _short(scheme: Scheme) -> str:
    """The scheme, or the name of the file with its widths and what stands beside that."""
    file = scheme.option("allocation")
    return str(scheme) if file is None else choice.named_by(Path(file).name, scheme)


def _verdict(repair: choice.Repair) -> list[str]:
    chosen, confirmed = repair.chosen, repair.confirmed
    flips, difference = confirmed.flips, confirmed.difference
    if chosen is repair.deployments[0]:
        lines = ["Nothing else is recommended: the plain scheme changes fewest answers of what fits."]
    else:
        lines = [
            f"Recommended: {_short(chosen.scheme)}. On {flips.n:,} other inputs, which no choice saw, it changes "
            f"{with_interval(flips)} of the answers, the plain scheme {with_interval(repair.plain.flips)}."
        ]
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
    if not chosen.scheme.query_only:  # its documents are at full precision: to ask again is to search with it
        lines.append(f"what full precision brings on unsure inputs: quantdrift route {shlex.quote(chosen.run)}")
    return lines
