"""Options that several commands share, and the way in which a command's options are declared."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from quantdrift.base.display import note
from quantdrift.base.errors import DataError, QuantDriftError, UnsupportedError
from quantdrift.base.progress import Progress, progress_bars
from quantdrift.base.text import share_of
from quantdrift.cli import PANELS, Interrupted
from quantdrift.show.output import Output, emit, form_of
from quantdrift.spec.grammar import Spec, Versus, dtype_named

if TYPE_CHECKING:
    from quantdrift.asking.ask import Ask
    from quantdrift.asking.forecast import Forecast
    from quantdrift.data.labelled import Dataset
    from quantdrift.data.retrieval import RetrievalDataset
    from quantdrift.data.streamed import StreamedDataset
    from quantdrift.finished.shortlist import Shortlist
    from quantdrift.models.inputs import Settings
    from quantdrift.statistics.standing import Tolerances

_HEAD = re.compile(r"(?P<names>(?:--?[a-z/-]+ ?)*)(?P<metavar>[A-Z][A-Z.,=#|\[\]]*)?: ")
_FINISHED = ("RUN", "RUN...", "RUN|STUDY", "A", "B", "TARGET", "CANDIDATE")
"""Names of the arguments that take a finished run."""
_PANEL = re.compile(rf"({'|'.join(filter(None, PANELS))}): ")


def option(text: str, default: Any = None, **settings: Any) -> Any:
    """An option of a command, declared as its help shows it: "-m --metric NAME: What it is for".

    The names and the metavar are optional; without names the option has that of the parameter. The group of the help
    may follow them: "NAME: Data: Which split".
    """
    head = _HEAD.match(text)
    metavar = head["metavar"] if head else None
    text = text[head.end() if head else 0 :]
    panel = _PANEL.match(text)
    if panel:
        text = text[panel.end()].upper() + text[panel.end() + 1 :]
    return typer.Option(
        default,
        *(head["names"].split() if head else ()),
        help=text,
        metavar=metavar,
        callback=_latest if metavar == "RUN" else None,
        rich_help_panel=panel[1] if panel else None,
        **settings,
    )


def share_option(text: str, default: Any = None, **ends: float) -> Any:
    """An option that takes a number such as 0.05 or "5 %", from `min` to `max` of `ends` where they are given."""

    def read(value: str) -> float:
        number = share_of(str(value))
        if not ends.get("min", -math.inf) <= number <= ends.get("max", math.inf):
            raise ValueError(f"expected from {ends.get('min', 0):g} to {ends.get('max', math.inf):g}; got {value!r}")
        return number

    return option(text, default, parser=read)


def flag(text: str) -> Any:
    """An option without a value."""
    return option(text, default=False)


def argument(text: str, default: Any = ...) -> Any:
    """An argument of a command: "RUN: What it is". One that takes a finished run also takes the word `last`."""
    metavar, _, help_text = text.partition(": ")
    callback: Any = _latest if metavar in _FINISHED else _no_run if metavar == "SPEC" else None
    return typer.Argument(default, help=help_text, metavar=metavar, callback=callback)


def _no_run(context: typer.Context, value: str | None) -> str | None:
    """Refuse a finished run in place of a spec, and show the command with the run's own spec."""
    if value is None or not (Path(value) / "run.json").is_file():
        return value
    from quantdrift.runs.folder import read_run

    record = read_run(value).record
    place = record["data"].get("path")
    data = f" --data {shlex.quote(str(place))}" if place else ""
    raise QuantDriftError(
        f"expected a spec; {value} is a finished run. With its spec: {context.command_path} "
        f"{shlex.quote(record['spec'])}{data}"
    )


def _latest(value: Any) -> Any:
    """Replace `last` by the run that was written last, and say which that is."""
    if isinstance(value, list):
        return [_latest(place) for place in value]
    if str(value) != "last" or Path("last").exists():
        return value
    from quantdrift.runs.folder import last_run

    place = last_run()
    note(f"last is {place}")
    return place if isinstance(value, Path) else str(place)


# --- what several commands have -------------------------------------------------------------------

SPEC = "SPEC: What to compare, MODEL@SCHEME: minilm@W4-rtn, BAAI/bge-small-en-v1.5@W3-g64, ./my-model@W4-channel+query"
DATA = (
    "FOLDER|FILE: Data: Folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv. Or a table, a query and "
    "its document a row: .csv, .tsv, .jsonl, .parquet, .xlsx."
)
COLUMNS = (
    "ROLE=COLUMN,...: Data: The columns of a table, where their names do not tell: query=question,document=answer; "
    "also query_id, document_id, score; of classes text, label, id."
)
ANY_DATA = (
    f"{DATA} Or classification data: SPLIT.jsonl and train.jsonl of {{text, label}}, or SPLIT.csv and train.csv; "
    "images in SPLIT/CLASS/ and train/CLASS/; a .npz file with x_SPLIT, y_SPLIT, x_train, y_train."
)
TASK = "NAME: Data: A task, in place of --data: built in (quantdrift list tasks), or mteb's NAME or NAME:SUBSET."
TEXTS = (
    "FOLDER: The run's data, for the texts, if they have moved or another program made the run; for a run of lm-eval, "
    "its samples_TASK_DATE.jsonl."
)
SPLIT = "NAME: Data: Which split of the data: the labels in qrels/SPLIT.tsv, or SPLIT.jsonl."
OWN_IDS = (
    "--keep-own-ids: Data: Also rank documents with the id and text of the query, which are left out by default, as in "
    "BEIR."
)
RUNS = "RUN...: Run folders, or folders that contain some at any depth; last is the one written last here."
METRIC = (
    "-m --metric NAME: A metric, e.g. gold_lost@3, change.ndcg@10, flip@1:separation=0..0.05; may be repeated. "
    "quantdrift list metrics shows all."
)
QRELS = (
    "FILE: Relevance labels for two finished runs: BEIR's qrels/SPLIT.tsv, or TREC's four columns. Run folders and "
    "samples of lm-eval contain their own."
)
PART = "NAME: Two finished runs: a task, or SUBSET/SPLIT of mteb's predictions; by default all that both runs have."
COMMON = "--common: Two finished runs: compare only the inputs that both have."
COMPLETE = (
    "--complete: Two finished runs: the lists are not truncated but hold every item that was scored, as after "
    "reranking a shortlist, so that epsilon is exact."
)
DTYPE = (
    "NAME: Model: The number type of full precision: float32, bfloat16 or float16, whatever the model's files have. A "
    "checkpoint that is the candidate keeps its own."
)
DEVICE = "DEVICE: Model: Where the model runs: cpu, cuda, cuda:1 or mps; by default the fastest one found."
LIMIT = "N: Data: A quick try on the first N queries or inputs; the run says so, and cannot be a baseline."
PLAN = "Print what it takes, and stop: passes, time, memory, disk and downloads."
CONFIG = "FILE: TOML file with [tool.quantdrift.gate]; by default the nearest pyproject.toml, here or above."
SHARE = "Share of the inputs that sets the threshold; the rest tests it."
SPLITS = "How many random splits into these two parts."
SEED = "Random seed."


@dataclass(frozen=True, kw_only=True)
class OnData:
    """Options of commands that take data of every kind."""

    data: Path | None = option(ANY_DATA)
    columns: str | None = option(COLUMNS)
    task: str | None = option(TASK)
    split: str = option(SPLIT, default="test")
    keep_own_ids: bool = flag(OWN_IDS)

    @property
    def dataset(self) -> Any:
        """The data that the options name: a folder, an array file or a task."""
        from quantdrift.data.labelled import load_task, read_folder
        from quantdrift.data.retrieval import keeping_own_ids

        if (self.data is None) == (self.task is None):
            got = "neither" if self.data is None else "both"
            raise QuantDriftError(f"expected either --data FOLDER or --task NAME (quantdrift list tasks); got {got}")
        if self.data is not None:
            return keeping_own_ids(read_folder(self.data, self.split, self.columns), self.keep_own_ids)
        if self.columns is not None:
            raise QuantDriftError("--columns is for a table, --data FILE; leave it out")
        return keeping_own_ids(load_task(str(self.task), self.split), self.keep_own_ids)

    @property
    def data_words(self) -> str:
        """The options of `quantdrift run` that name the same data."""
        source = f"--data {shlex.quote(str(self.data or 'FOLDER'))}" if self.task is None else f"--task {self.task}"
        split = "" if self.split == "test" else f" --split {shlex.quote(self.split)}"
        columns = "" if self.columns is None else f" --columns {shlex.quote(self.columns)}"
        return f"{source}{columns}{split}{' --keep-own-ids' * self.keep_own_ids}"


@dataclass(frozen=True, kw_only=True)
class OnCorpus(OnData):
    """Options of commands that take queries and documents."""

    data: Path | None = option(DATA)

    @property
    def dataset(self) -> RetrievalDataset:
        """The data that the options name."""
        from quantdrift.data.labelled import searched

        return searched(super().dataset)


@dataclass(frozen=True, kw_only=True)
class OnCells:
    """Options of commands that measure the cells of a study."""

    plan: bool = flag("Print what would be measured and what it takes, and stop.")
    device: str | None = option(DEVICE)
    quiet: bool = option("-q --quiet: No progress bars.", default=False)
    cache = True  # cells share embeddings


@dataclass(frozen=True, kw_only=True)
class OnSchemes(OnCorpus, OnCells):
    """Options of `waterfall`, which measures a model under many schemes."""

    k: int = option("-k --k: How many top-ranked documents to keep per query.", default=200, min=1)
    batch_size: int = option("Inputs per forward pass.", default=32, min=1)


@dataclass(frozen=True, kw_only=True)
class OnModel:
    """Options of every command that runs a model."""

    batch_size: int = option("Model: Inputs per forward pass, or per request to a server.", default=32, min=1)
    device: str | None = option(DEVICE)
    revision: str | None = option("NAME: Model: Revision of a model on the Hugging Face hub.")
    dtype: str = option(DTYPE, default="float32")
    trust_remote_code: bool = flag("Model: Run Python code that comes with the model; it can do whatever you can.")
    query_prompt: str | None = option(
        "NAME: Model: The model's prompt to put before queries; by default the one named query, if any."
    )
    document_prompt: str | None = option("NAME: Model: The model's prompt to put before documents.")
    cache: bool = option("Keep embeddings and quantized layers on disk and reuse them in later runs.", default=True)
    quiet: bool = option("-q --quiet: No progress bars.", default=False)

    @property
    def settings(self) -> Settings:
        """The settings of the model."""
        from quantdrift.models.inputs import Settings

        return Settings(
            batch_size=self.batch_size,
            noise_floor=False,
            dtype=dtype_named(self.dtype),
            trust_remote_code=self.trust_remote_code,
            query_prompt=self.query_prompt,
            document_prompt=self.document_prompt,
        )

    @property
    def progress(self) -> Progress:
        """Bars on the terminal; none with --quiet."""
        return progress_bars(quiet=self.quiet)

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of every function that runs a model."""
        from quantdrift.models.store import EmbeddingStore, default_store

        return {
            "settings": self.settings,
            "store": default_store() if self.cache else EmbeddingStore(None),
            "progress": self.progress,
            "device": self.device,
            "revision": self.revision,
        }

    def foretold(self, ask: Ask, **more: Any) -> Forecast:
        """What a measurement takes."""
        from quantdrift.asking.forecast import forecast

        return forecast(ask, **{name: value for name, value in self.how.items() if name != "progress"}, **more)

    def foretell(self, ask: Ask, then: Callable[[Forecast], Forecast] = lambda told: told, **more: Any) -> None:
        """Say before a long measurement, and what comes `then`, what it takes; refuse one that cannot fit."""
        from quantdrift.asking.forecast import LONG, is_off

        with suppress(UnsupportedError, DataError):  # nothing is known: what is wrong, opening the pair tells
            told = None if is_off() else then(self.foretold(ask, quick=True, **more))
            if told is not None and told.seconds >= LONG and not self.quiet:
                for line in (f"{told.name}: {told.about}", *told.room):
                    note(line)

    @property
    def model_words(self) -> str:
        """The options, as typed, with which another command loads the same reference."""
        usual = {"dtype": "float32", "revision": None, "query_prompt": None, "document_prompt": None}
        values = {name: getattr(self, name) for name, default in usual.items() if getattr(self, name) != default}
        words = [f" --{name.replace('_', '-')} {shlex.quote(value)}" for name, value in values.items()]
        return "".join(words) + " --trust-remote-code" * self.trust_remote_code

    @contextmanager
    def stoppable(self, state: str) -> Iterator[None]:
        """A block in which Ctrl-C ends the command, with the state of its work as the message."""
        try:
            yield
        except KeyboardInterrupt:
            kept = "what was finished is kept, and the same command goes on from there"
            raise Interrupted(f"{state}; {kept}" if self.how["store"].root else state) from None


@dataclass(frozen=True, kw_only=True)
class Measuring(OnModel):
    """Options of commands that write runs."""

    k: int = option("-k --k: How many top-ranked documents to keep per query.", default=200, min=1)
    noise_floor: bool = option(
        "Also run the full-precision model a second time, in batches of another size, to count the answers that "
        "change without quantization.",
        default=True,
    )
    seed: int = option("Random seed for the order of that second run, and of gate --sequential.", default=0)

    @property
    def settings(self) -> Settings:
        """The settings of a measurement."""
        return replace(super().settings, k=self.k, noise_floor=self.noise_floor, seed=self.seed)

    def ask(
        self, pair: Spec | Versus, dataset: Dataset | StreamedDataset, *part: object, shortlist: Shortlist | None = None
    ) -> Ask:
        """The measurement of a pair on data; `part` is added to its fingerprint."""
        from quantdrift.asking.ask import Ask
        from quantdrift.data.retrieval import facts_of

        settings = {**asdict(self.settings), "device": self.device, "revision": self.revision}
        if shortlist is not None:
            part = ("shortlist", shortlist.digest, shortlist.top, *part)
        data = facts_of(dataset)
        return Ask(pair=pair, data=data, settings=settings, part=part, dataset=dataset, shortlist=shortlist)


TOLERANCE = (
    "P: The share of the inputs that may get another top-1, and of the right top-1 answers that may be lost; 0.03 by "
    "default."
)
MEAN_TOLERANCE = "X: By how much nDCG@10 or accuracy may fall; 0.03 by default."


def tolerances_given(changed: float | None, mean: float | None) -> Tolerances | None:
    """The tolerances of the two options; None if neither is given."""
    from quantdrift.statistics.standing import MARGIN, Tolerances

    if changed is None and mean is None:
        return None
    return Tolerances(changed=MARGIN if changed is None else changed, mean=MARGIN if mean is None else mean)


@dataclass(frozen=True, kw_only=True)
class MeasuringAny(OnData, Measuring):
    """Options of commands that measure data of every kind: `run` and `gate`."""

    tolerance: float | None = share_option(TOLERANCE)
    mean_tolerance: float | None = share_option(MEAN_TOLERANCE)
    out: Path | None = option(
        "FOLDER: Run folder to write; an earlier run there is replaced. By default quantdrift-runs/SPEC_on_DATA."
    )
    shortlist: Path | None = option(
        "RUN: Data: For a cross-encoder, the search results to rerank: the run folder of a retriever on the same data, "
        "of which the full-precision ranking is used, or a TREC run file."
    )
    top: int | None = option("N: Data: How many documents per query to rerank; 100 by default.", min=1)


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """Options of commands that take a corpus in shards: `run` and `study run`."""

    workers: int | None = option(
        "N: A corpus in shards: how many processes, each with a model of its own; by default 1.", min=1, max=4096
    )
    keep: bool = flag(
        "--keep: A corpus in shards: keep the full-precision embeddings of the documents on disk for the next scheme."
    )

    @property
    def streaming(self) -> dict[str, Any]:
        """The arguments of `open_streamed` for workers and what is kept."""
        return {"workers": self.workers, "keep": self.keep}


AS = {"json": "--json: Print JSON.", "markdown": "--markdown: Print Markdown."}


def prints(*formats: str) -> Callable[[Callable[..., Output | None]], Callable[..., None]]:
    """Print what a command returns, in the formats that it has besides tables: "json", "markdown".

    The command takes its options as keywords, or as one dataclass; of that the help shows data first, and the fields
    of a class before those of its bases.
    """

    def decorate(command: Callable[..., Output | None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            form = form_of([name for name in formats if given.pop(name)])
            shown = command(options(**given)) if options else command(**given)
            if shown is not None:
                emit(shown, form)
                raise typer.Exit(shown.code)

        hints = get_type_hints(command)
        records = [hint for hint in hints.values() if is_dataclass(hint) and hint is not Output]
        options: Any = records[0] if records else None
        parameters = _parameters(options) if options else [*inspect.signature(command).parameters.values()]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=flag(AS[name]), annotation=bool)
            for name in formats
        ]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        hints = get_type_hints(options) if options else hints
        called.__annotations__ = {**hints, **dict.fromkeys(formats, bool)}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorate


def _parameters(options: type[Any]) -> list[inspect.Parameter]:
    bases = sorted(options.__mro__, key=lambda base: base not in {OnData, OnCorpus})
    order = [*dict.fromkeys(name for base in bases for name in inspect.get_annotations(base))]
    return sorted(inspect.signature(options).parameters.values(), key=lambda parameter: order.index(parameter.name))


def given(context: typer.Context, name: str) -> bool:
    """True if the user gave an option, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def decimals(text: str, option: str, example: str) -> tuple[float, ...]:
    """The different numbers in a list with commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", part) for part in parts):
        raise QuantDriftError(f"{option} {text}: expected numbers with commas between, e.g. {example}")
    return tuple(dict.fromkeys(map(float, parts)))
