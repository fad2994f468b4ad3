"""`quantdrift run`: measure a pair, write the run folder, say what was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.cli.options import SPEC, MeasuringAnything, argument, corpus, option, prints
from quantdrift.cli.output import Shown, metric_grid, percent, some
from quantdrift.display import note
from quantdrift.errors import QuantDriftError, UnsupportedError
from quantdrift.spec import FULL_BITS, Spec, Versus, parse_pair

if TYPE_CHECKING:
    from quantdrift.engine.encoders.server import Servers
    from quantdrift.runs import Run

Record = Mapping[str, Any]
"""The content of run.json."""
RUNS = Path("quantdrift-runs")


@dataclass(frozen=True, kw_only=True)
class RunOptions(MeasuringAnything):
    """The options of `quantdrift run`."""

    spec: str = argument(
        f'{SPEC}; or a model and a checkpoint that is quantized already: "minilm vs ./my-gptq"; or a model on a '
        'server: "minilm vs openai:http://localhost:8000/v1#my-model"'
    )
    concurrency: int | None = option(
        "N: Servers: how many requests to send at the same time; 4 by default.", min=1, max=64
    )
    requests_per_minute: float | None = option(
        "N: Servers: at most so many requests a minute; no limit by default.", min=0.01
    )
    query_prefix: str | None = option(
        "TEXT: Servers: text to put before every query; by default that of the other model."
    )
    document_prefix: str | None = option("TEXT: Servers: text to put before every document.")

    def servers(self, pair: Spec | Versus) -> Servers | None:
        """How servers are asked; None where no model is on one."""
        names = ("concurrency", "requests_per_minute", "query_prefix", "document_prefix")
        given = [name for name in names if getattr(self, name) is not None]
        if not (isinstance(pair, Versus) and pair.on_server):
            if given:
                raise QuantDriftError(
                    f"--{given[0].replace('_', '-')} is for a model on a server; expected "
                    f'"REFERENCE vs openai:URL#MODEL", got {str(pair)!r}'
                )
            return None
        from quantdrift.engine.encoders.server import Servers
        from quantdrift.engine.encoders.server_client import Patience

        prefixes = {"query": self.query_prefix, "document": self.document_prefix}
        return Servers(
            prefixes={role: text for role, text in prefixes.items() if text is not None},
            concurrency=self.concurrency or 4,
            patience=Patience(
                requests_per_minute=self.requests_per_minute, say=(lambda _: None) if self.quiet else note
            ),
        )


@prints("json")
def command(options: RunOptions) -> Shown:
    """Compare a model with its quantized self on a corpus, and write a run folder.

    On classification data, a classifier's own logits are compared. An embedding model gets a linear classifier first,
    fitted on its full-precision embeddings of the training part.

    To compare a model with a checkpoint that is already quantized, write "MODEL vs CHECKPOINT": a folder, a hub id or
    a GGUF file. Either side can be a model on a server with OpenAI's embeddings API: openai:URL#MODEL, with the key
    in QUANTDRIFT_OPENAI_KEY.

    A cross-encoder needs search results to rerank: --shortlist RUN. Both versions of the model score the same
    documents.

    The run folder holds evidence.parquet (one row per query or input: both rankings, and how far scores moved) and
    run.json (spec, versions, metrics with intervals). To see the changed answers: quantdrift show RUN. More metrics,
    without the model: quantdrift metrics RUN
    """
    pair = parse_pair(options.spec)
    run = measured(pair, options, data=options.data, task=options.task, servers=options.servers(pair))
    return shown_run(run)


def measured(
    pair: Spec | Versus,
    options: MeasuringAnything,
    *,
    data: Path | None,
    task: str | None,
    servers: Servers | None = None,
) -> Run:
    """Measure a pair on the data that are named, and write the run folder."""
    from quantdrift.datasets.labelled import Dataset, read_folder
    from quantdrift.engine.refusals import check_pair
    from quantdrift.finished.shortlist import FIRST, read_shortlist
    from quantdrift.runs import check_place

    if options.top is not None and options.shortlist is None:
        raise UnsupportedError("--top is the length of a shortlist; expected --shortlist RUN too")
    dataset: Dataset
    shortlist, ending = None, ""
    if options.shortlist is not None:
        if isinstance(pair, Versus):
            raise UnsupportedError(
                f'"{pair}" with --shortlist is not available; expected MODEL@SCHEME of one cross-encoder. Of two, '
                "rerank with each and compare the two TREC run files with quantdrift diff"
            )
        dataset = corpus(data, task, options.split)
        shortlist = read_shortlist(options.shortlist, dataset, top=options.top or FIRST)
        ending = f"_top{shortlist.top}"
    elif data is not None and task is None:
        dataset = read_folder(data, options.split)
    else:
        dataset = corpus(data, task, options.split)
    check_pair(pair, dataset, reranks=shortlist is not None)
    out = options.out or default_place(pair, dataset, ending)
    check_place(out.absolute())
    from quantdrift.engine.run import run

    with options.stoppable("no run was written"):
        return run(pair, dataset, out=out, **options.how, shortlist=shortlist, servers=servers)


# --- where runs are written -----------------------------------------------------------------------


def default_place(pair: Spec | Versus, dataset: Any, ending: str = "", *, root: Path = RUNS) -> Path:
    """The folder for runs of a pair on a dataset, under quantdrift-runs.

    Other data may have the same name. Whoever comes second gets a folder of their own, which is said on standard
    error: a run never takes the place of one on other data.
    """
    from quantdrift.records import read_json

    models = (pair.reference, "vs", pair.candidate) if isinstance(pair, Versus) else (str(pair),)
    name = "_".join(_slug(part) for part in (*models, "on", dataset.name))
    place = root / f"{name}{ending}"
    for record in (place / "run.json", *place.glob("*/run.json")):
        try:
            data = read_json(record)["data"]
            whole = (data.get("corpus_size") or {}).get("corpus_fingerprint") or data["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not a run; writing one there says so
        if whole != dataset.fingerprint:
            own = root / f"{name}-{dataset.fingerprint[:8]}{ending}"
            note(f"{place} holds a run on other data named {dataset.name}; this one goes to {own}")
            return own
    return place


def _slug(text: str) -> str:
    """The text as a file name that every file system takes; ./model gives that of model."""
    return re.sub(r"[^A-Za-z0-9.@+=_-]+", "_", text).strip("._") or "run"


# --- what a run says ------------------------------------------------------------------------------

_OF_CLASSES = {"flip@1", "noise_floor", "separation", "at_risk", "reference.accuracy", "accuracy", "change.accuracy"}
_OF_CLASSES |= {"gold_lost@1", "coverage", "candidate.coverage"}
"""What is shown of a classification run; whatever lies deeper than the first class says little."""


def shown_run(run: Run) -> Shown:
    """What a run found, how its candidate was made, and where it lies."""
    from quantdrift.metrics import headline_metrics
    from quantdrift.runs import classifies
    from quantdrift.statistics.estimates import Estimate

    record, bits = run.record, run.record["bits_per_weight"]
    headlines = _OF_CLASSES if classifies(record) else {str(metric) for metric in headline_metrics()}
    fields = {"value", "low", "high", "n", "reason", "bound"}
    estimates = {
        name: Estimate(**{key: entry[key] for key in fields & entry.keys()})
        for name, entry in record["metrics"].items()
        if name in headlines or (classifies(record) and name.split("@")[0] in headlines)
    }
    notes = [f"note: {each}" for each in record["data"]["warnings"]]
    weights = "bits per weight: not known, a server has the weights"
    if bits is not None:
        weights = (
            f"{bits['linear']:g} bits per weight of the linear layers ({bits['linear_with_scales']:.3f} with scales), "
            f"{bits['all_parameters']:.2f} over all parameters"
        )
    return Shown(
        data={**record, "path": str(run.path)},
        title=f"{record['spec']} on {record['data']['name']}",
        about=[data_line(record), weights, *candidate_lines(record), *notes],
        grids=[metric_grid(estimates)],
        lines=list(_findings(record)),
        next=[
            f"\nrun folder: {run.path}",
            f"which inputs changed, with their texts: quantdrift show {run.path}",
            f"all metrics: quantdrift metrics {run.path}",
        ],
    )


def data_line(record: Record) -> str:
    """How much data there was, and how it was read."""
    from quantdrift.runs import classifies

    data = record["data"]
    if shortlist := data.get("shortlist"):
        found = f" (found by {shortlist['retriever']} at full precision)" if shortlist["from"] == "run" else ""
        top = record["settings"]["shortlist"]["top"]
        return f"{data['n_queries']:,} queries, reranking {top:,} documents of {shortlist['path']}{found}"
    if not classifies(record):
        return f"{data['n_queries']:,} queries, {data['n_documents']:,} documents"
    reading = "the model's own logits"
    if record["settings"]["reading"] == "linear probe":
        reading = f"linear probe fitted on {data['n_train']:,} training {data['inputs']}"
    before = record["metrics"]["reference.accuracy"]["value"]
    accuracy = "" if before is None else f" (accuracy {percent(before)} at full precision)"
    return f"{data['n_inputs']:,} inputs, {data['n_classes']:,} classes, {reading}{accuracy}"


def candidate_lines(record: Record) -> Iterator[str]:
    """Library, widths, calibration, quantized activations, and what the scheme could not do."""
    made, data = record.get("quantization", {}), record.get("data", {})
    if "version" in made:
        grid = f", grid: {made['grid']}" if "grid" in made else ""
        yield f"{made['quantizer']} by {made['backend']} {made['version']}{grid}"
    if allocation := made.get("allocation"):
        yield _widths(allocation)
    if left_out := data.get("inputs_left_out"):
        yield f"{left_out:,} inputs that layers were measured on are left out of every figure"
    if calibration := made.get("calibration"):
        yield _calibration(calibration, made, str(data.get("inputs", "texts")))
    if activations := made.get("activations"):
        covered = f"{activations['layers_covered']} of {activations['layers']} linear layers"
        missing = activations["not_covered"]
        only = f"; not of {some(missing)}, so activations are quantized only in part" if missing else ""
        yield f"inputs of {covered} at {activations['bits']} bits{only}"
    fallbacks = made.get("fallbacks", {})
    for reason in dict.fromkeys(fallbacks.values()):
        yield f"rounded to nearest, {reason}: {some(name for name, why in fallbacks.items() if why == reason)}"
    if left_out := made.get("layers_left_out"):
        yield f"left at full precision: {some(left_out)}"
    if unreached := record["model"].get("layers_never_reached"):
        yield f"unused layer (does not affect embeddings): {some(unreached)}"


def _widths(allocation: Record) -> str:
    counts = sorted(Counter(allocation["widths"].values()).items())
    shown = ", ".join(f"{n} at {width} bits" if width != FULL_BITS else f"{n} not quantized" for width, n in counts)
    bits, n = allocation["bits_per_weight"], allocation["calibration_inputs"]
    average = "" if bits is None else f"{bits:.2f} bits per weight: "
    how = "changed by hand after" if allocation["edited"] else "by"
    source = f" on {n:,} inputs of {allocation['dataset'] or 'the data'}" if n else ""
    return f"{average}layers {shown}, {how} {allocation['criterion']}{source}"


def _calibration(calibration: Record, made: Record, called: str) -> str:
    source = calibration["source"]
    things = "documents" if source == "corpus" else f"{called} of {source}"
    what = f"{calibration['n_inputs']:,} of {calibration['of']:,} {things} (seed {calibration['seed']})"
    if made["layers_kept_from_before"] == len(made["layers"]):
        return f"calibrated on {what}, kept from an earlier run"
    return f"calibrated on {what} in {made['seconds']:.0f} s, of which the method took {made['seconds_in_method']:.0f}"


def _findings(record: Record) -> Iterator[str]:
    """The finding in plain sentences."""
    from quantdrift.runs import classifies

    def value(name: str, part: str = "value") -> float | None:
        found: float | None = metrics.get(name, {}).get(part)
        return found

    metrics, classes = record["metrics"], classifies(record)
    served = record.get("bits_per_weight", {}) is None  # what runs on a server can be any two models
    flip, noise, lost, risk = map(value, ("flip@1", "noise_floor", "gold_lost@1", "at_risk"))
    if flip is not None:
        n = metrics["flip@1"]["n"]
        yield (
            f"{round(flip * n):,} of {n:,} inputs ({percent(flip)}) have another "
            f"{'class' if classes else 'first answer'} than {'of the reference' if served else 'at full precision'}"
            + (f"; noise alone changes {percent(noise)}." if noise is not None else ".")
        )
    if classes and (change := value("change.accuracy")) is not None:
        low, high = value("change.accuracy", "low"), value("change.accuracy", "high")
        ends = f" (95 % interval {_points(low)} to {_points(high)})" if low is not None and high is not None else ""
        wrong = "" if lost is None else f"; {percent(lost)} of those that were right are wrong now"
        yield f"Accuracy moves by {_points(change)} points{ends}, while {percent(flip)} got another class{wrong}."
    before, after = value("reference.ndcg@10"), value("ndcg@10")
    if not classes and before and after is not None:
        gone = "" if lost is None else f", while {percent(lost)} of the inputs whose first answer was relevant lost it"
        yield f"The mean nDCG@10 moves by {100 * (after / before - 1):+.1f} %{gone}."
    shortlist = record["data"].get("shortlist") or {}
    relevant, found = shortlist.get("n_relevant"), shortlist.get("n_relevant_found")
    if relevant and found != relevant:
        yield (
            f"{relevant - found:,} of {relevant:,} relevant documents are in no shortlist: neither arm can find them, "
            "and they count in nDCG."
        )
    if risk is not None:
        yield (
            f"For {percent(1 - risk)} of the inputs the first answer leads by enough to be safe from this "
            f"{'difference' if served else 'quantization'} (separation ratio of 1 or more)."
        )


def _points(value: float) -> str:
    return f"{100 * value:+.1f}" if round(100 * value, 1) else "0.0"
