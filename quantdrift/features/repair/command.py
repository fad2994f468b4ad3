"""`quantdrift repair`: find the deployment of a model that changes the fewest answers."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quantdrift.base.errors import QuantDriftError, SpecError, UnsupportedError
from quantdrift.base.text import as_typed, counted, percent, with_interval
from quantdrift.builtin.weights import not_plain
from quantdrift.cli.measuring import planned
from quantdrift.cli.options import PLAN, OnData, OnModel, argument, flag, option, prints
from quantdrift.data.retrieval import facts_of
from quantdrift.features.repair import choice
from quantdrift.scheme import MAX_BITS, Scheme
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, table
from quantdrift.spec.grammar import Spec, options_of, parse
from quantdrift.spec.remedies import check_repairable


@dataclass(frozen=True, kw_only=True)
class RepairOptions(OnData, OnModel):
    """The options of `quantdrift repair`."""

    spec: str = argument("SPEC: The deployment that is to be repaired: minilm@W4, or minilm@fp+emb=int8+index=HNSW32")
    bits: float | None = option(
        "B: The budget in bits per linear weight, scales counted; by default an eighth of a bit more than SPEC takes.",
        min=2,
    )
    stored: float | None = option("--bytes N: The budget in bytes a document; by default what SPEC takes.", min=1)
    time: float | None = option(
        "X: The budget of the time of a query, as a multiple of exact search; by default 4 times what SPEC takes.",
        min=0,
    )
    quantizers: str | None = option(
        "NAME,NAME,...: Quantizers to try, of those with integer grids (quantdrift list quantizers); by default all "
        "that are installed except adaround."
    )
    thorough: bool = flag(
        "--thorough: Try more, in about an hour: further stages on the best of every group size, and longer tuning."
    )
    minutes: float | None = option("N: Begin nothing more after N minutes; the same command goes on from there.", min=0)
    plan: bool = flag(PLAN)
    out: Path = option("-o --out FOLDER: Folder for the runs and the allocation.", default=Path("repair"))
    k: int = option("-k --k: How many top-ranked documents to keep per query.", default=200, min=1)
    seed: int = option("Random seed for which queries are held out.", default=0)


@prints("json")
def command(options: RepairOptions) -> Output:
    """Try configurations of a deployment, and recommend the one that changes the fewest answers.

    Where weights are quantized, repair tries other quantizers, finer groups, widths by layer, tuning, the embedding
    matrix, the query side alone and coded embeddings. Where embeddings or an index are stored, it tries rescoring,
    finer codes, other indexes, wider searches, and to do without. Trials compare weights on a third of the queries (of
    labelled data, on the training part) by how far they move the gap. The best, and all that is stored, are run on the
    whole corpus, with rates over the other queries. Labels are not used.

    The same command resumes where it was stopped. To see the benefit of answering unsure inputs at full precision too,
    take quantdrift route.

    For example: quantdrift repair minilm@W4 --data FOLDER

    More: docs/guides/repair.md
    """
    spec = parse(options.spec)
    check_repairable(spec.scheme)
    if any(not_plain(spec.scheme)) and (options.bits or options.quantizers):
        raise QuantDriftError(f"{spec}: --bits and --quantizers are of weights, and none are searched for here")
    quantizers = _quantizers(options.quantizers)
    from quantdrift.allocation.record import nameable
    from quantdrift.asking.ask import Ask
    from quantdrift.candidate.refusals import check_spec
    from quantdrift.data.labelled import ClassificationDataset

    if not nameable(str(options.out)):
        raise QuantDriftError(f"--out {options.out}: expected no spaces, '+' and '@', as specs name a file in it")
    dataset = options.dataset
    check_spec(spec)
    ask = Ask(pair=spec, data=facts_of(dataset), dataset=dataset)
    more = partial(choice.likely_steps, spec.scheme, quantizers, thorough=options.thorough)
    if options.plan:
        return planned(more(options.foretold(ask)))
    options.foretell(ask, then=more)
    limits = {"bits": options.bits, "stored": options.stored, "time": options.time, "thorough": options.thorough}
    with options.stoppable(f"{options.out} is not finished"):
        repair = repaired(spec, dataset, options, quantizers=quantizers, **limits)
    return Output(
        data=repair.to_json(),
        title=f"{options.spec} on {dataset.name}: at most {_limits(repair)}",
        grids=[*([_trials(repair)] if _made(repair) else []), _deployments(repair)],
        lines=recommended(repair),
        next=_next(spec, repair, options, classes=isinstance(dataset, ClassificationDataset)),
    )


def repaired(spec: Spec, dataset: Any, options: Any, **limits: Any) -> choice.Repair:
    """Search for a better deployment with the model, folder, minutes, depth and seed of a command's options."""
    from quantdrift.base.records import check_writable

    check_writable(options.out.absolute() / "runs", what="a run")
    from quantdrift.features.repair.search import Tuner

    how = options.how
    how["settings"] = replace(how["settings"], k=options.k, seed=options.seed, noise_floor=False)
    how |= {"out": options.out, "minutes": options.minutes}
    return Tuner(spec=spec, dataset=dataset, **how, **limits).repaired()


def _limits(repair: choice.Repair) -> str:
    budget, plain = repair.budget, repair.deployments[0]
    limits = [f"{budget.bits:.4g} bits per linear weight, scales counted"] if plain.bits <= MAX_BITS else []
    if budget.stored is not None and options_of(plain.scheme, "vectors"):
        limits.append(f"{budget.stored:,.0f} bytes a document")
    limits += [f"{budget.time:.2g} times the time of exact search"] if plain.time not in {None, 1} else []
    return ", ".join(limits) or "as many bits as it has"


def _quantizers(names: str | None) -> tuple[str, ...]:
    quantizers = tuple(choice.TRIED) if names is None else tuple(names.split(","))
    if unknown := [name for name in quantizers if name not in choice.POSSIBLE]:
        raise QuantDriftError(f"--quantizers {unknown[0]!r}: expected names of {', '.join(choice.POSSIBLE)}")
    return quantizers


_TRIALS = (
    Column("scheme", "scheme"),
    Column("bits", "bits", "{:.3f}".format),
    Column("shift of the gap", "shift", "{:.5f}".format),
    Column("gaps closed", "likely", percent),
    Column("inputs", "n"),
)


def _made(repair: choice.Repair) -> list[choice.Tried]:
    last = {str(trial.scheme): trial for trial in repair.tried}.values()
    return sorted((trial for trial in last if trial.shift is not None), key=lambda trial: (-trial.n, trial.shift or 0))


def _left_out(repair: choice.Repair) -> list[str]:
    last = {str(trial.scheme): trial for trial in repair.tried}.values()
    return [f"{trial.scheme} is left out: {trial.reason}" for trial in last if trial.shift is None]


def _trials(repair: choice.Repair) -> Grid:
    title = "Trials, on other inputs than the rates below"
    return table(_TRIALS, _made(repair), title=title, lines=_left_out(repair))


_MEANING = {
    "bits": "bits are of a linear weight, scales counted",
    "of all": "of all stands for any parameter",
    "bytes": "bytes are of a document",
    "time": "time is of a query, as a multiple of exact search",
}


def _prices(tried: Sequence[choice.Deployment]) -> Iterator[Column]:
    """The columns of bits, bytes and time, so far as there are any."""

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    if tried[0].bits <= MAX_BITS or len({deployment.all_bits for deployment in tried}) > 1:
        yield Column("bits", lambda row: f"{row[0].bits:.2f}")
        yield Column("of all", lambda row: f"{row[0].all_bits:.2f}")
    if any(deployment.stored for deployment in tried):
        yield Column("bytes", lambda row: number(row[0].stored, ",.0f"))
    if any(deployment.time not in {None, 1} for deployment in tried):
        yield Column("time", lambda row: number(row[0].time, ".2g"))


def _deployments(repair: choice.Repair) -> Grid:
    """One row for each deployment."""
    tried = repair.deployments
    prices = list(_prices(tried))
    columns = [
        Column("scheme", lambda row: _short(row[0].scheme) + "*" * row[1], kind="words"),
        *prices,
        Column("top-1 changes", lambda row: with_interval(row[0].flips)),
        Column("more than plain", lambda row: with_interval(row[0].difference, sign="+") if row[0].difference else "-"),
    ]
    lines = [
        "; ".join(["The first is the plain scheme", *(_MEANING[column.title] for column in prices)]) + ".",
        "* no other deployment is as good in size and top-1 changes.",
        *([] if _made(repair) else _left_out(repair)),
    ]
    n = tried[0].flips.n
    title = f"By the {n} held-out inputs that the choice is made on (95 % intervals, not adjusted for the choice)"
    rows = list(zip(tried, choice.front(tried), strict=True))
    return table(columns, rows, title=title, lines=lines)


def _short(scheme: Scheme) -> str:
    return choice.named(scheme, path=False)


def recommended(repair: choice.Repair) -> list[str]:
    """What is recommended, by what it does on inputs that took no part in the choice, and what was left out."""
    chosen, confirmed = repair.chosen, repair.confirmed
    flips, difference = confirmed.flips, confirmed.difference
    if chosen is repair.deployments[0]:
        lines = ["Recommended: the plain scheme, which changes the fewest answers within the budget."]
    else:
        lines = [
            f"Recommended: {_short(chosen.scheme)}. On {flips.n:,} held-out inputs, which took no part in the choice, "
            f"it changes {with_interval(flips)} of the answers; {_short(repair.plain.scheme)} changes "
            f"{with_interval(repair.plain.flips)} of the same."
        ]
    if chosen is not repair.deployments[0] and difference is not None and (difference.high or 0.0) >= 0:
        lines.append(
            f"{flips.n:,} inputs are too few to show that it changes fewer: the difference's interval reaches 0."
        )
    freest = min(repair.deployments, key=lambda deployment: deployment.rate)
    if freest.rate < chosen.rate:
        lines.append(
            f"Beyond the limits (--bits, --bytes, --time) {_short(freest.scheme)} changes "
            f"{with_interval(freest.flips)} of the inputs of the choice, and the recommended one "
            f"{with_interval(chosen.flips)}."
        )
    more = f"{counted(repair.left, 'configuration')} more did not fit into --minutes; the same command goes on there."
    return [*lines, more] if repair.left else lines


def _next(spec: Spec, repair: choice.Repair, options: RepairOptions, *, classes: bool) -> list[str]:
    from quantdrift.candidate.refusals import refuse_uncalibrated
    from quantdrift.models.files.kinds import check_saved
    from quantdrift.models.files.named import resolve
    from quantdrift.models.files.saved import check_savable

    chosen, same = repair.chosen, f"{'' if classes else f' {options.data_words}'}{options.model_words}"
    named = f"{spec.model}@{choice.named(chosen.scheme)}"
    lines = [f"\nrun it: quantdrift run {shlex.quote(named)} {options.data_words}{options.model_words}"]
    lines += [f"its run: {chosen.run}", f"the remaining changes: quantdrift show {as_typed(chosen.run)}"]
    if chosen.scheme.query_only:
        lines.append("embed the documents at full precision, and queries with the quantized model:")
    stored = options_of(chosen.scheme, "vectors")  # quantize does not write these
    kept = tuple(pair for pair in chosen.scheme.options if f"+{pair[0]}=" not in stored)
    with suppress(UnsupportedError, SpecError):  # what quantize refuses, or where no model is quantized, is not advised
        scheme = replace(chosen.scheme, query_only=False, options=kept)
        named = f"{spec.model}@{choice.named(scheme)}"
        check_savable(scheme)
        check_saved(resolve(spec.model), options.revision)
        refuse_uncalibrated(Spec(model=spec.model, scheme=scheme), has_data=not classes)
        lines.append(f"make it: quantdrift quantize {shlex.quote(named)} --out FOLDER{same}")
    if not chosen.scheme.query_only:  # full precision could search its documents itself
        lines.append(f"the benefit of full precision on unsure inputs: quantdrift route {as_typed(chosen.run)}")
    return lines
