"""`quantdrift run`: measure a pair, write the run folder, say what was found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quantdrift.base.display import note
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.cli.measuring import default_place, ensured, measured, shown_run
from quantdrift.cli.options import LIMIT, SPEC, MeasuringAny, Streaming, argument, option, prints
from quantdrift.show.output import Output
from quantdrift.spec.grammar import Spec, Versus, parse_pair

if TYPE_CHECKING:
    from quantdrift.data.streamed import DataKind
    from quantdrift.models.server import Servers
    from quantdrift.runs.folder import Run


@dataclass(frozen=True, kw_only=True)
class RunOptions(Streaming, MeasuringAny):
    """The options of `quantdrift run`."""

    spec: str = argument(
        f'{SPEC}; or a model and a checkpoint that is quantized already: "minilm vs ./my-gptq"; or a model on a '
        'server: "minilm vs openai:http://localhost:8000/v1#my-model"'
    )
    concurrency: int | None = option(
        "N: Servers: how many requests to send at the same time; 4 by default.", min=1, max=64
    )
    query_prefix: str | None = option(
        "TEXT: Servers: text to put before every query; by default that of the other model."
    )
    document_prefix: str | None = option("TEXT: Servers: text to put before every document.")
    index: str | None = option(
        "URL#COLLECTION: Ask a collection that is there, of a server of Qdrant, Elasticsearch or Weaviate, of "
        "PostgreSQL, LanceDB or Chroma, in place of an index of the data; SPEC is then MODEL@fp."
    )
    shard: int | None = option(
        "N: A corpus in shards: documents in each, 16384 by default; an interrupted worker does one shard again.",
        min=1,
        max=1 << 22,
    )

    limit: int | None = option(LIMIT, min=1)

    @property
    def streamed(self) -> DataKind | None:
        """The kind of the data, where they are never in memory as a whole."""
        from quantdrift.data.streamed import streamed_kind

        asked = self.keep or any(value is not None for value in (self.engine, self.workers, self.shard))
        if asked and self.data is None:
            raise QuantDriftError("--engine, --workers, --shard and --keep are for a corpus in files: expected --data")
        return None if self.data is None else streamed_kind(self.data, asked=asked)

    def servers(self, pair: Spec | Versus) -> Servers | None:
        """Return how servers are asked; None where no model is on one."""
        given = [name for name in ("concurrency", "query_prefix", "document_prefix") if getattr(self, name) is not None]
        if not (isinstance(pair, Versus) and pair.on_server):
            if given:
                raise QuantDriftError(
                    f"--{given[0].replace('_', '-')} is for a model on a server; expected "
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

    On classification data, a classifier's own logits are compared. An embedding model gets a linear classifier first,
    fitted on its full-precision embeddings of the training part.

    To compare a model with a checkpoint that is already quantized, write "MODEL vs CHECKPOINT": a folder, a hub id, a
    GGUF or an ONNX file. Either side can be a model on a server with OpenAI's embeddings API: openai:URL#MODEL, with
    the key in OPENAI_API_KEY for the host in OPENAI_BASE_URL.

    A cross-encoder needs search results to rerank: --shortlist RUN. Both versions of the model score the same
    documents; so do two of them, "CROSS vs CHECKPOINT".

    A corpus too large for memory comes in shards, corpus/*.parquet or corpus/*.jsonl in place of corpus.jsonl, in a
    folder or at a URL that fsspec reads (s3://, hf://): --workers N, or --engine ray for many machines.

    The run folder holds evidence.parquet (one row per query or input: both rankings, and how far scores moved) and
    run.json (spec, versions, metrics with intervals). To see the top-1 changes: quantdrift show RUN. More metrics,
    without the model: quantdrift metrics RUN

    For example: quantdrift run minilm@W4-rtn --task PythonDocsRetrieval

    More: docs/tutorials/search.md
    """
    there = f"+collection={options.index}" if options.index else ""
    pair = parse_pair(f"{options.spec}{there}")
    if (kind := options.streamed) is not None:
        if options.limit is not None:
            raise UnsupportedError("--limit is for a corpus in memory; one in shards is searched as a whole")
        return shown_run(_streamed(pair, kind, options))
    run = measured(
        pair, options, data=options.data, task=options.task, servers=options.servers(pair), limit=options.limit
    )
    return shown_run(run)


def _streamed(pair: Spec | Versus, kind: DataKind, options: RunOptions) -> Run:
    """Measure a pair on data that are never in memory as a whole."""
    from quantdrift.asking.streamed_search import check_streamed
    from quantdrift.runs.folder import check_place

    assert options.data is not None  # that is what the kind is of
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
        out = options.out or default_place(pair, dataset)
        return ensured(pair, options, dataset, out, **options.streaming)
