"""Options that several commands have, each written once, and what they come to."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import typer

from quantdrift.base.display import note
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.progress import Progress, progress_bars
from quantdrift.base.text import share_of
from quantdrift.cli import PANELS, Interrupted
from quantdrift.show.output import Output, emit, form_of
from quantdrift.spec.grammar import Spec, Versus, dtype_named

if TYPE_CHECKING:
    from quantdrift.asking.ask import Ask
    from quantdrift.data.labelled import Dataset
    from quantdrift.data.retrieval import RetrievalDataset
    from quantdrift.data.streamed import StreamedDataset
    from quantdrift.finished.shortlist import Shortlist
    from quantdrift.models.inputs import Settings
    from quantdrift.statistics.standing import Tolerances

_HEAD = re.compile(r"(?P<names>(?:--?[a-z/-]+ ?)*)(?P<metavar>[A-Z][A-Z.,=|\[\]]*)?: ")
_FINISHED = {"A", "B", "TARGET", "CANDIDATE"}
"""Signs of arguments, beside RUN, that take a finished run."""
_PANEL = re.compile(rf"({'|'.join(filter(None, PANELS))}): ")


def option(text: str, default: Any = None, **settings: Any) -> Any:
    """An option of a command, told as its help shows it: "-m --metric NAME: What it is for".

    Names and the sign for its value may be left out; the name is then that of the parameter. After them may stand the
    part of the help that the option is in: "NAME: Data: Which split".
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
        callback={"RUN": _latest, "DEVICE": _usable}.get(metavar or ""),
        rich_help_panel=panel[1] if panel else None,
        **settings,
    )


def share_option(text: str, default: Any = None, **ends: float) -> Any:
    """An option that takes a share or another number of a metric, 0.05 or "5 %", between ends where they are given."""

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
    """An argument of a command: "RUN: What it is"; of a finished run, `last` may be said."""
    metavar, _, help_text = text.partition(": ")
    callback: Any = _latest if _takes_run(metavar) else _no_run if metavar == "SPEC" else None
    return typer.Argument(default, help=help_text, metavar=metavar, callback=callback)


def _takes_run(metavar: str) -> bool:
    return metavar.startswith("RUN") or metavar in _FINISHED


def _no_run(context: typer.Context, value: str | None) -> str | None:
    """A spec; of a finished run in its place the command that was meant is told."""
    if value is None or not (Path(value) / "run.json").is_file():
        return value
    from quantdrift.runs.folder import read_run

    record = read_run(value).record
    place = record["data"].get("path")
    data = f" --data {shlex.quote(str(place))}" if place else ""
    raise QuantDriftError(
        f"{value} is a finished run, and a spec is expected; that of the run: {context.command_path} "
        f"{shlex.quote(record['spec'])}{data}"
    )


def _latest(value: Any) -> Any:
    """Put the run that was written last in the place of `last`, which is told."""
    if isinstance(value, list):
        return [_latest(one) for one in value]
    if str(value) != "last" or Path("last").exists():
        return value
    from quantdrift.runs.folder import last_run

    place = last_run()
    note(f"last is {place}")
    return place if isinstance(value, Path) else str(place)


def _usable(value: str | None) -> str | None:
    """A device, which is refused before anything is loaded where it cannot be there."""
    if value is not None:
        from quantdrift.candidate.refusals import check_device

        check_device(value)
    return value


# --- what several commands have -------------------------------------------------------------------

SPEC = "SPEC: What to compare, MODEL@SCHEME: minilm@W4-rtn, BAAI/bge-small-en-v1.5@W3-g64, ./my-model@W4-channel+query"
DATA = "FOLDER: Data: Folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv."
ANY_DATA = (
    f"{DATA} Or classification data: SPLIT.jsonl and train.jsonl of {{text, label}}; images in SPLIT/CLASS/ and "
    "train/CLASS/; a .npz file with x_SPLIT, y_SPLIT, x_train, y_train."
)
TASK = "NAME: Data: A task, in place of --data: built in (quantdrift list tasks), or mteb's NAME or NAME:SUBSET."
TEXTS = (
    "FOLDER: The data that the run was made of, for the texts, if they have moved or another program made the run; for "
    "a run of lm-eval, its samples_TASK_DATE.jsonl."
)
SPLIT = "NAME: Data: Which split of the data: the labels in qrels/SPLIT.tsv, or SPLIT.jsonl."
OWN_IDS = (
    "--keep-own-ids: Data: Rank documents of the query's own id and text too, which are left out otherwise, as in BEIR."
)
RUNS = "RUN...: Run folders, or folders that hold some at any depth; last is the one written last here."
METRIC = (
    "-m --metric NAME: Which metric, e.g. gold_lost@3, change.ndcg@10, flip@1:separation=0..0.05; may be repeated. "
    "All of them are in: quantdrift list metrics."
)
QRELS = (
    "FILE: Relevance labels for two finished runs: BEIR's qrels/SPLIT.tsv, or TREC's four columns. Run folders and "
    "samples of lm-eval hold their own."
)
PART = "NAME: Two finished runs: which task, or SUBSET/SPLIT of mteb's predictions; all that both have if not given."
COMMON = "--common: Two finished runs: compare the inputs that both have, leave out others."
COMPLETE = (
    "--complete: Two finished runs: the lists are not truncated, they hold every item that was scored, as after "
    "reranking a shortlist. Then epsilon is exact."
)
DTYPE = (
    "NAME: Model: The number type at full precision: float32, bfloat16 or float16, whatever type its files have. A "
    "checkpoint that is a candidate keeps its own."
)
DEVICE = "DEVICE: Model: Where it runs: cpu, cuda, cuda:1 or mps; by default the fastest one found."
LIMIT = "N: Data: A quick try on the first N queries or inputs; the run says so, and is no baseline."
CONFIG = "FILE: TOML file with [tool.quantdrift.gate]; the nearest pyproject.toml, here or above, if not given."
SHARE = "Share of the inputs that sets the threshold; the rest tests it."
SPLITS = "Random splits into those two parts."
SEED = "Random seed."


@dataclass(frozen=True, kw_only=True)
class OnData:
    """Options of commands that take data of every kind; in the help they come first."""

    data: Path | None = option(ANY_DATA)
    task: str | None = option(TASK)
    split: str = option(SPLIT, default="test")
    keep_own_ids: bool = flag(OWN_IDS)

    @property
    def dataset(self) -> Any:
        """The data that are named."""
        return self.any_data(self.data, self.task)

    def any_data(self, data: Path | None, task: str | None) -> Any:
        """The folder, the array file or the task of that name, of whatever kind."""
        from quantdrift.data.labelled import load_task, read_folder
        from quantdrift.data.retrieval import keeping_own_ids

        if (data is None) == (task is None):
            got = "neither" if data is None else "both"
            raise QuantDriftError(f"expected either --data FOLDER or --task NAME (quantdrift list tasks); got {got}")
        read = read_folder(data, self.split) if data is not None else load_task(str(task), self.split)
        return keeping_own_ids(read, self.keep_own_ids)

    @property
    def data_words(self) -> str:
        """The options of `quantdrift run` that name the same data."""
        named = f"--data {shlex.quote(str(self.data or 'FOLDER'))}" if self.task is None else f"--task {self.task}"
        split = "" if self.split == "test" else f" --split {shlex.quote(self.split)}"
        return f"{named}{split}{' --keep-own-ids' * self.keep_own_ids}"


@dataclass(frozen=True, kw_only=True)
class OnCorpus(OnData):
    """Options of commands that take queries and documents."""

    data: Path | None = option(DATA)

    @property
    def dataset(self) -> RetrievalDataset:
        """The data that are named."""
        from quantdrift.data.labelled import searched

        return searched(self.any_data(self.data, self.task))


@dataclass(frozen=True, kw_only=True)
class OnCells:
    """Options of commands that measure many cells, in a folder that they go on in."""

    plan: bool = flag("Print what there is to do, and stop.")
    device: str | None = option(DEVICE)
    quiet: bool = option("-q --quiet: No progress bars.", default=False)
    cache = True  # through which cells share embeddings

    @property
    def streaming(self) -> Mapping[str, Any]:
        """How data are measured that are never in memory as a whole."""
        return {}


@dataclass(frozen=True, kw_only=True)
class OnSchemes(OnCorpus, OnCells):
    """Options of commands that measure a model under many schemes: `noise` and `waterfall`."""

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
        "NAME: Model: Which of its prompts stands before queries; that named query if any."
    )
    document_prompt: str | None = option("NAME: Model: Which of its prompts stands before documents.")
    cache: bool = option("Keep embeddings and quantized layers on disk and reuse them in later runs.", default=True)
    quiet: bool = option("-q --quiet: No progress bars.", default=False)

    @property
    def settings(self) -> Settings:
        """The settings that inputs are put through the model with."""
        from quantdrift.models.inputs import Settings

        how: dict[str, Any] = {"dtype": dtype_named(self.dtype), "trust_remote_code": self.trust_remote_code}
        how |= {"query_prompt": self.query_prompt, "document_prompt": self.document_prompt}
        return Settings(batch_size=self.batch_size, noise_floor=False, **how)

    @property
    def progress(self) -> Progress:
        """Bars on the terminal, unless it is to be quiet."""
        return progress_bars(quiet=self.quiet)

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of all that runs a model: settings, where embeddings are kept, progress, device, revision."""
        from quantdrift.models.store import EmbeddingStore, default_store

        return {
            "settings": self.settings,
            "store": default_store() if self.cache else EmbeddingStore(None),
            "progress": self.progress,
            "device": self.device,
            "revision": self.revision,
        }

    @property
    def model_words(self) -> str:
        """The options, as they are typed, by which another command loads the same reference."""
        given = {"dtype": (self.dtype, "float32"), "revision": (self.revision, None)}
        given |= {f"{role}-prompt": (getattr(self, f"{role}_prompt"), None) for role in ("query", "document")}
        words = [f" --{name} {shlex.quote(value or '')}" for name, (value, usual) in given.items() if value != usual]
        return "".join(words) + " --trust-remote-code" * self.trust_remote_code

    @contextmanager
    def stoppable(self, left: str) -> Iterator[None]:
        """Inside, Ctrl-C is told with what is left."""
        try:
            yield
        except KeyboardInterrupt:
            kept = "what was finished is kept, and the same command goes on from there"
            raise Interrupted(f"{left}; {kept}" if self.how["store"].root else left) from None


@dataclass(frozen=True, kw_only=True)
class Measuring(OnModel):
    """Options of commands that write runs."""

    k: int = option("-k --k: How many top-ranked documents to keep per query.", default=200, min=1)
    noise_floor: bool = option(
        "Also run the full-precision model a second time, in batches of another size, to see how many answers "
        "change without any quantization.",
        default=True,
    )
    seed: int = option("Random seed for the order of that second run.", default=0)

    @property
    def settings(self) -> Settings:
        """The settings that a pair is measured with."""
        return replace(super().settings, k=self.k, noise_floor=self.noise_floor, seed=self.seed)

    def ask(
        self, pair: Spec | Versus, dataset: Dataset | StreamedDataset, *part: object, shortlist: Shortlist | None = None
    ) -> Ask:
        """The measurement of a pair on data, or what else of them, that these options ask for."""
        from quantdrift.asking.ask import Ask
        from quantdrift.data.retrieval import facts_of

        settings = {**asdict(self.settings), "device": self.device, "revision": self.revision}
        if shortlist is not None:
            part = ("shortlist", shortlist.digest, shortlist.top)
        data = facts_of(dataset)
        return Ask(pair=pair, data=data, settings=settings, part=part, dataset=dataset, shortlist=shortlist)


TOLERANCE = (
    "P: The share of the inputs that may get another top-1, and of the right first answers that may be lost; "
    "0.03 by default."
)
MEAN_TOLERANCE = "X: By how much nDCG@10 or accuracy may fall; 0.03 by default."


def tolerances_given(changed: float | None, mean: float | None) -> Tolerances | None:
    """The tolerances that options name; None where they name none."""
    from quantdrift.statistics.standing import MARGIN, Tolerances

    if changed is None and mean is None:
        return None
    return Tolerances(changed=MARGIN if changed is None else changed, mean=MARGIN if mean is None else mean)


@dataclass(frozen=True, kw_only=True)
class MeasuringAny(OnData, Measuring):
    """Options of commands that measure whatever kind of data: `run` and `gate`."""

    tolerance: float | None = share_option(TOLERANCE)
    mean_tolerance: float | None = share_option(MEAN_TOLERANCE)
    out: Path | None = option(
        "FOLDER: Run folder to write; an earlier run there is replaced. By default quantdrift-runs/SPEC_on_DATA."
    )
    shortlist: Path | None = option(
        "RUN: Data: For a cross-encoder: the search results to rerank, as the run folder of a retriever on the same "
        "data (its full-precision ranking is used) or a TREC run file."
    )
    top: int | None = option("N: Data: How many documents per query to rerank; 100 by default.", min=1)


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """Options of commands that take data which are never in memory as a whole: `run` and `study run`."""

    engine: Literal["local", "ray"] | None = option(
        "NAME: A corpus in shards: who works through them, local (processes on this machine; the default) or ray (the "
        "cluster of RAY_ADDRESS; without it, Ray is started here)."
    )
    workers: int | None = option(
        "N: A corpus in shards: how many workers, each with a model of its own; by default 1, and with Ray one for "
        "every GPU, or else every core.",
        min=1,
        max=4096,
    )
    keep: bool = flag(
        "--keep: A corpus in shards: keep the full-precision embeddings of the documents on disk for the next scheme."
    )

    @property
    def streaming(self) -> dict[str, Any]:
        """The arguments of `open_streamed` for workers and what is kept."""
        return {"engine": self.engine, "workers": self.workers, "keep": self.keep}


def of_texts(dataset: RetrievalDataset, command: str) -> RetrievalDataset:
    """The data, for a command that takes no images."""
    if "image" in dataset.kinds:
        raise UnsupportedError(
            f"quantdrift {command} takes queries and documents that are texts, and {dataset.name} has images"
        )
    return dataset


AS = {"json": "--json: Print JSON.", "markdown": "--markdown: Print Markdown."}


def prints(*formats: str) -> Callable[[Callable[..., Output | None]], Callable[..., None]]:
    """Print what a command returns, in the formats that it has beside tables: "json", "markdown".

    The command takes its options as keywords, or as one dataclass of them; there data come first, and a class's own
    fields before those of its bases.
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
    hints, defaults = get_type_hints(options), {field.name: field.default for field in fields(options)}
    bases = sorted(options.__mro__, key=lambda base: base not in {OnData, OnCorpus})
    order = dict.fromkeys(name for base in bases for name in inspect.get_annotations(base))
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name])
        for name in order
    ]


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, also where it was given as it is by itself."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def decimals(text: str, option: str, example: str) -> tuple[float, ...]:
    """The numbers in a list with commas, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", part) for part in parts):
        raise QuantDriftError(f"{option} {text}: expected numbers with commas between, e.g. {example}")
    return tuple(dict.fromkeys(map(float, parts)))
