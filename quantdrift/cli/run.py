"""`quantdrift run`: measure a pair, write the run folder, say what was found."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdrift.base.display import note
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.cli.options import (
    ENGINE,
    KEEP,
    SPEC,
    WORKERS,
    MeasuringAnything,
    any_data,
    argument,
    corpus,
    flag,
    option,
    prints,
)
from quantdrift.runs.words import candidate_lines, data_line, findings, headlines, verdict, weights_line
from quantdrift.show.output import Shown
from quantdrift.show.tables import metric_grid
from quantdrift.spec.grammar import Spec, Versus, parse_pair

if TYPE_CHECKING:
    from quantdrift.data.labelled import Dataset
    from quantdrift.engine.encoders.server import Servers
    from quantdrift.runs.folder import Run

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
    engine: str | None = option(ENGINE)
    workers: int | None = option(WORKERS, min=1, max=4096)
    shard: int | None = option(
        "N: A corpus in shards: documents in each, 16384 by default; an interrupted worker does one shard again.",
        min=1,
        max=1 << 22,
    )
    keep: bool = flag(KEEP)

    @property
    def in_shards(self) -> bool:
        """Whether the corpus is read a part at a time."""
        from quantdrift.data.shards import is_sharded

        asked = self.keep or any(one is not None for one in (self.engine, self.workers, self.shard))
        if asked and self.data is None:
            raise QuantDriftError("--engine, --workers, --shard and --keep are for a corpus in files: expected --data")
        return asked or (self.data is not None and is_sharded(self.data))

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

    To compare a model with a checkpoint that is already quantized, write "MODEL vs CHECKPOINT": a folder, a hub id, a
    GGUF or an ONNX file. Either side can be a model on a server with OpenAI's embeddings API: openai:URL#MODEL, with
    the key in QUANTDRIFT_OPENAI_KEY.

    A cross-encoder needs search results to rerank: --shortlist RUN. Both versions of the model score the same
    documents.

    A corpus too large for memory comes in shards, corpus/*.parquet or corpus/*.jsonl in place of corpus.jsonl, in a
    folder or at a URL that fsspec reads (s3://, hf://): --workers N, or --engine ray for many machines.

    The run folder holds evidence.parquet (one row per query or input: both rankings, and how far scores moved) and
    run.json (spec, versions, metrics with intervals). To see the changed answers: quantdrift show RUN. More metrics,
    without the model: quantdrift metrics RUN
    """
    pair = parse_pair(options.spec)
    if options.in_shards:
        return shown_run(_in_shards(pair, options))
    run = measured(pair, options, data=options.data, task=options.task, servers=options.servers(pair))
    return shown_run(run)


def _in_shards(pair: Spec | Versus, options: RunOptions) -> Run:
    """Measure a pair on a corpus that is read a part at a time."""
    from quantdrift.data.shards import SHARD, read_sharded
    from quantdrift.engine.shards import refuse_in_shards, run_shards
    from quantdrift.engine.workers import Workers
    from quantdrift.runs.folder import check_place

    assert options.data is not None  # that is where the shards are
    if options.shortlist is not None:
        raise UnsupportedError(
            "--shortlist is for a corpus in memory; leave it out, or give a folder with corpus.jsonl"
        )
    refuse_in_shards(pair)
    workers = Workers(engine=options.engine or "local", n=options.workers)
    if options.out is not None:
        check_place(options.out.absolute())
    with options.stoppable("no run was written"):
        dataset = read_sharded(options.data, options.split, size=options.shard or SHARD, progress=options.progress)
        out = options.out or default_place(pair, dataset)
        check_place(out.absolute())
        return run_shards(pair, dataset, out=out, **options.how, workers=workers, keep=options.keep)


def measured(
    pair: Spec | Versus,
    options: MeasuringAnything,
    *,
    data: Path | None,
    task: str | None,
    servers: Servers | None = None,
) -> Run:
    """Measure a pair on the data that are named, and write the run folder."""
    from quantdrift.engine.refusals import check_pair
    from quantdrift.finished.shortlist import FIRST, read_shortlist
    from quantdrift.runs.folder import check_place

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
    else:
        dataset = any_data(data, task, options.split)
    check_pair(pair, dataset, reranks=shortlist is not None)
    out = options.out or default_place(pair, dataset, ending)
    check_place(out.absolute())
    from quantdrift.ask import Ask, ensure

    def measure(fingerprint: str | None = None) -> Run:
        from quantdrift.engine.run import run

        with options.stoppable("no run was written"):
            return run(
                pair, dataset, out=out, **options.how, shortlist=shortlist, servers=servers, fingerprint=fingerprint
            )

    ask = Ask(
        pair=pair,
        data=[dataset.name, dataset.split, dataset.fingerprint],
        settings={**asdict(options.settings), "device": options.device, "revision": options.revision},
        part=() if shortlist is None else ("shortlist", shortlist.digest, shortlist.top),
    )
    if not (options.cache and ask.certain):
        return measure()
    return ensure(ask, out, measure, say=lambda: note(f"{out} holds this run already; --no-cache measures it again"))


# --- where runs are written -----------------------------------------------------------------------


def default_place(pair: Spec | Versus, dataset: Any, ending: str = "", *, root: Path = RUNS) -> Path:
    """The folder for runs of a pair on a dataset, under quantdrift-runs.

    Other data may have the same name. Whoever comes second gets a folder of their own, which is said on standard
    error: a run never takes the place of one on other data.
    """
    from quantdrift.base.records import read_json

    models = (pair.reference, "vs", pair.candidate) if isinstance(pair, Versus) else (str(pair),)
    name = "_".join(slug(part) for part in (*models, "on", dataset.name))
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


def slug(text: str) -> str:
    """The text as a file name that every file system takes; ./model gives that of model."""
    return re.sub(r"[^A-Za-z0-9.@+=_-]+", "_", text).strip("._") or "run"


# --- what a run says ------------------------------------------------------------------------------


def shown_run(run: Run) -> Shown:
    """What a run found, how its candidate was made, and where it lies."""
    record = run.record
    said = verdict(record)
    notes = [f"note: {each}" for each in record["data"]["warnings"]]
    return Shown(
        data={**record, "path": str(run.path), "verdict": asdict(said)},
        title=f"{record['spec']} on {record['data']['name']}",
        about=[data_line(record), weights_line(record), *candidate_lines(record), *notes],
        grids=[metric_grid(headlines(record))],
        lines=[f"Verdict: {said.word}. {said.sentence} {said.next}".rstrip(), *findings(record)],
        next=[
            f"\nrun folder: {run.path}",
            f"which inputs changed, with their texts: quantdrift show {run.path}",
            f"all metrics: quantdrift metrics {run.path}",
            f"as a page for a browser: quantdrift report {run.path}",
        ],
    )
