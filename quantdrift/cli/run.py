"""`quantdrift run`: measure a pair, write the run folder, and show the result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quantdrift.base.display import note
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.cli.measuring import asked, default_place, ensured, planned
from quantdrift.cli.options import LIMIT, PLAN, SPEC, MeasuringAny, Streaming, argument, flag, option, prints
from quantdrift.show.output import Output
from quantdrift.spec.grammar import Spec, Versus, parse_pair

if TYPE_CHECKING:
    from pathlib import Path

    from quantdrift.asking.ask import Ask
    from quantdrift.data.streamed import DataKind
    from quantdrift.models.server import Servers


@dataclass(frozen=True, kw_only=True)
class RunOptions(Streaming, MeasuringAny):
    """The options of `quantdrift run`."""

    spec: str = argument(
        f'{SPEC}; or a model and a checkpoint that is already quantized: "minilm vs ./my-gptq"; or a model on a '
        'server: "minilm vs openai:http://localhost:8000/v1#my-model"'
    )
    concurrency: int | None = option(
        "N: Servers: how many requests to send at the same time; 4 by default.", min=1, max=64
    )
    query_prefix: str | None = option(
        "TEXT: Servers: text to put before every query; by default the prompt of the other model."
    )
    document_prefix: str | None = option("TEXT: Servers: text to put before every document.")
    index: str | None = option(
        "PLACE#COLLECTION: Search an existing collection (of PostgreSQL, LanceDB or Chroma) instead of an index of the "
        "data; SPEC is then MODEL@fp."
    )
    shard: int | None = option(
        "N: A corpus in shards: documents per shard, 16384 by default; an interrupted worker repeats one shard.",
        min=1,
        max=1 << 22,
    )
    limit: int | None = option(LIMIT, min=1)
    everything: bool = flag("--all: Also show how the candidate was made, and every metric.")
    plan: bool = flag(PLAN)

    @property
    def streamed(self) -> DataKind | None:
        """The kind of data that are never in memory as a whole; None of other data."""
        from quantdrift.data.streamed import streamed_kind

        asked = self.keep or any(value is not None for value in (self.workers, self.shard))
        if asked and self.data is None:
            raise QuantDriftError("--workers, --shard and --keep are for a corpus in files: expected --data")
        return None if self.data is None else streamed_kind(self.data, asked=asked)

    def servers(self, pair: Spec | Versus) -> Servers | None:
        """How to ask the server of a model; None if no model is on a server."""
        asked = [name for name in ("concurrency", "query_prefix", "document_prefix") if getattr(self, name) is not None]
        if not (isinstance(pair, Versus) and pair.on_server):
            if asked:
                raise QuantDriftError(
                    f"--{asked[0].replace('_', '-')} is for a model on a server; expected "
                    f'"REFERENCE vs openai:URL#MODEL", got {str(pair)!r}'
                )
            return None
        from quantdrift.models.server import Servers
        from quantdrift.models.server_client import RetryPolicy

        prefixes = {"query": self.query_prefix, "document": self.document_prefix}
        return Servers(
            prefixes={role: text for role, text in prefixes.items() if text is not None},
            concurrency=self.concurrency or 4,
            retry_policy=RetryPolicy(say=(lambda _: None) if self.quiet else note),
        )


@prints("json")
def command(options: RunOptions) -> Output:
    """Compare a model with its quantized self on a corpus, and write a run folder.

    On classification data, the logits of a classifier are compared. For an embedding model, a linear classifier is
    fitted first, on its full-precision embeddings of the training part.

    To compare a model with a checkpoint that is already quantized, write "MODEL vs CHECKPOINT": a folder, a hub id, a
    GGUF or an ONNX file. Either side can be a model on a server with OpenAI's embeddings API: openai:URL#MODEL, with
    the key in OPENAI_API_KEY for the host in OPENAI_BASE_URL.

    A cross-encoder needs search results to rerank: --shortlist RUN. Both versions of the model score the same
    documents.

    A corpus that is too large for memory comes in shards: corpus/*.parquet or corpus/*.jsonl instead of corpus.jsonl,
    in a folder. Take --workers N for N processes.

    The run folder contains evidence.parquet (one row per query or input: both rankings, and how far scores moved) and
    run.json (spec, versions, metrics with intervals). To see the top-1 changes: quantdrift show RUN. To compute more
    metrics without the model: quantdrift metrics RUN

    For example: quantdrift run minilm@W4-rtn --task PythonDocsRetrieval

    More: docs/tutorials/search.md
    """
    collection = f"+collection={options.index}" if options.index else ""
    pair = parse_pair(f"{options.spec}{collection}")
    if (kind := options.streamed) is not None:
        if options.limit is not None:
            raise UnsupportedError("--limit is for a corpus in memory; one in shards is searched as a whole")
        (ask, out), loading = _streamed(pair, kind, options), options.streaming
    else:
        loading = {"servers": options.servers(pair)}
        ask, out = asked(pair, options, limit=options.limit)
    if options.plan:
        from quantdrift.asking.ask import finished

        if options.cache and ask.certain and finished(out.absolute(), ask.fingerprint)[1] is not None:
            return Output(data={"path": str(out), "seconds": 0}, lines=[f"{out} holds this run already: it is taken"])
        return planned(options.foretold(ask))
    run = ensured(ask, options, out, **loading)
    from quantdrift.show.run import run_output

    return run_output(run, everything=options.everything)


def _streamed(pair: Spec | Versus, kind: DataKind, options: RunOptions) -> tuple[Ask, Path]:
    """The measurement of a pair on a corpus in shards, and its run folder."""
    from quantdrift.asking.streamed_search import check_streamed
    from quantdrift.runs.folder import check_place

    assert options.data is not None  # it has a kind
    if options.shortlist is not None:
        raise UnsupportedError(
            "--shortlist is for a corpus in memory; leave it out, or give a folder with corpus.jsonl"
        )
    check_streamed(pair)
    if options.out is not None:
        check_place(options.out.absolute())
    with options.stoppable("no run was written"):
        dataset = kind.dataset(options.data, options.split, shard=options.shard, progress=options.progress)
        dataset = replace(dataset, keep_own_ids=options.keep_own_ids)
    return options.ask(pair, dataset), options.out or default_place(pair, dataset)
