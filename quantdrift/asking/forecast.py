"""What a measurement takes, told before it begins: passes, time, memory, disk and what is downloaded.

No weights are loaded. Sizes come from config.json, tokens from a sample of the texts, the rate from a block of the
model's shape on this machine, and what a quantizer or a stage costs from its own description.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from quantdrift.asking.ask import Ask, names_of, stamp_of
from quantdrift.asking.rate import Rate, rate_of
from quantdrift.base.display import duration
from quantdrift.base.errors import QuantDriftError, RoomError, UnsupportedError
from quantdrift.base.records import parse_json, write_text
from quantdrift.data.labelled import ClassificationDataset, Dataset
from quantdrift.data.streamed import StreamedDataset
from quantdrift.finished.shortlist import Shortlist
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES
from quantdrift.models.endless import check_rules
from quantdrift.models.files.kinds import is_embedding_model, model_json, on_disk
from quantdrift.models.files.named import ModelSource, resolve
from quantdrift.models.files.shape import Shape, shape_of
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore, key_of
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import Spec, calibrates, chooses, is_endpoint, stages_of

LONG, _SLOW = 30.0, 5e9
"""Seconds from which a measurement is told of beforehand, and operations a second of a slow machine."""
VARIABLE = "QUANTDRIFT_FORECAST"
_SAMPLE, _CUT, _LETTERS = 64, 4000, 4.0
"""Texts whose tokens are counted, characters of each, and characters of a token where there is no tokenizer."""
_START, _PARAMETER, _PROBE = 20.0, 2000.0, 20_000.0
"""Seconds to load the libraries; operations to load, digest and restore a weight, and to fit a number to labels."""
_MOMENTS, _CALIBRATION, _SAMPLED = 1.5, 512, 64
"""Passes over calibration inputs, with the sums of their products; these inputs; those of the noise floor."""
_LIBRARIES, _STORED = 6e8, 2
"""Bytes of memory that Python and the libraries take, and of a weight in the files of most models."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class Step(NamedTuple):
    """One stage: the forward passes of single inputs that it takes, and its seconds."""

    stage: str
    inputs: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Inputs by their sizes: how many, their tokens with padding, the sum of squared lengths, and the longest."""

    n: int
    tokens: float
    squares: float
    longest: int

    @classmethod
    def of(cls, lengths: NDArray[np.int64], batch_size: int) -> Self:
        """The sizes of inputs of these lengths, in batches of similar lengths."""
        padded = np.sort(lengths)[::-1].astype(np.float64)
        padded = padded[np.arange(len(padded)) // batch_size * batch_size]  # as long as the first of the batch
        longest = int(padded.max(initial=0.0))
        return cls(n=len(padded), tokens=float(padded.sum()), squares=float((padded**2).sum()), longest=longest)

    def part(self, n: float) -> Self:
        """The sizes of `n` such inputs."""
        share = n / max(1, self.n)
        return replace(self, n=math.ceil(n), tokens=self.tokens * share, squares=self.squares * share)

    def operations(self, shape: Shape) -> float:
        """Operations of a forward pass over them."""
        return 2 * shape.linear * self.tokens + 4 * shape.layers * shape.hidden * self.squares


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a measurement takes.

    Attributes:
        name: the pair and the data.
        rate: the rate of the machine.
        shape: the sizes of the model.
        sides: the inputs of both arms: queries and documents, or inputs.
        train: the inputs that a probe is fitted to, by the reference alone.
        calibration: the inputs that calibration draws from; None for the last side.
        scheme: the scheme; None for two models.
        settings: how inputs go through the models.
        kept: whether the reference's embeddings are kept.
        keeps: whether embeddings and layers are kept on disk.
        measures: whether the candidate is run; not by `allocate`.
        loaded: whether the model is in memory.
        download: bytes that the hub is asked for.
        more: further steps.
    """

    name: str
    rate: Rate
    shape: Shape
    sides: tuple[Side, ...]
    train: Side | None = None
    calibration: Side | None = None
    scheme: Scheme | None = None
    settings: Settings = field(default_factory=Settings)
    kept: bool = False
    keeps: bool = True
    measures: bool = True
    loaded: bool = False
    download: int = 0
    more: tuple[Step, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The stages, in their order."""
        return (*self._steps(), *self.more)

    def _steps(self) -> Iterator[Step]:
        shape, scheme, sides, rate = self.shape, self.scheme, self.sides, self.rate.operations

        def step(stage: str, *run: Side, more: float = 0.0) -> Step:
            operations = sum(side.operations(shape) for side in run) + more
            return Step(stage, sum(side.n for side in run), operations / rate)

        start = step("loading", more=_PARAMETER * shape.parameters)
        yield start._replace(seconds=start.seconds + _START * (not self.loaded))
        if not self.kept:
            train = () if self.train is None else (self.train,)
            yield step("reference", *sides, *train, more=_PROBE * shape.hidden * sum(side.n for side in train))
        sample, is_quantized = self.calibration or sides[-1], scheme is not None and scheme.weight_bits != FULL_BITS
        if scheme is not None:
            one = sum(side.part(1).operations(shape) for side in (sides[0], sample, sample)) / 3
            asked = sides[0].n // 4 if self.train is None else self.train.n
            for name in stages_of(scheme):
                passes = STAGES[name].passes(scheme, asked, shape.layers * len(shape.matrices))
                if passes and (self.measures or chooses(scheme)):
                    yield step(name if name != "weights" else "allocation", more=passes * one)
        if scheme is not None and is_quantized and self.measures:
            made = shape.layers * sum(QUANTIZERS[scheme.quantizer].operations(*size) for size in shape.matrices)
            given = scheme.option("calib", "")
            few = sample.part(min(sample.n, int(given) if given.isdecimal() else _CALIBRATION))
            made += (_MOMENTS - 1) * few.operations(shape) * calibrates(scheme)
            yield step("calibration", few, more=made) if calibrates(scheme) else step("quantization", more=made)
        if self.measures:
            is_same = scheme is not None and all(STAGES[name].kind == "vectors" for name in stages_of(scheme))
            yield step("candidate", *(sides[: 1 if scheme is not None and scheme.query_only else 2] * (not is_same)))
        if self.measures and self.settings.noise_floor:  # two documents of each input, some of them the same
            again = [side.n * -math.expm1(-2 * _SAMPLED / max(1, side.n)) for side in sides[1:]]
            counts = (min(_SAMPLED, sides[0].n), *again)
            yield step("noise floor", *(side.part(n) for side, n in zip(sides, counts, strict=True)))

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(step.seconds for step in self.steps)

    @property
    def _size(self) -> int:
        """Bytes of a number at full precision."""
        return 4 if self.settings.dtype == "float32" else 2

    @property
    def vectors(self) -> int:
        """Bytes of the embeddings of both arms."""
        arms = 2 - (self.scheme is not None and self.scheme.query_only)
        return 4 * self.shape.hidden * (sum(side.n for side in self.sides) * arms + (self.train.n if self.train else 0))

    @property
    def disk(self) -> int:
        """Bytes that stay in the cache: embeddings, and the codes of calibrated layers."""
        codes = self.shape.linear if self.scheme is not None and calibrates(self.scheme) else 0
        return (self.vectors + codes) * self.keeps

    def least(self, batch_size: int = 1) -> int:
        """Bytes of memory that a forward pass needs."""
        shape, longest = self.shape, max(side.longest for side in self.sides)
        states = 8 * shape.hidden + 2 * shape.matrices[-1][1] + shape.heads * longest
        return int(_LIBRARIES + self._size * (shape.parameters + batch_size * longest * states))

    @property
    def memory(self) -> int:
        """Bytes of memory at the peak."""
        taken = float(self.least(self.settings.batch_size) + self.vectors)
        if self.scheme is not None:
            taken += sum(STAGES[name].memory(self.scheme, self.shape.linear) for name in stages_of(self.scheme))
            sample = self.calibration or self.sides[-1]
            states = self._size * (4 * self.shape.hidden + self.shape.matrices[-1][1])
            taken += calibrates(self.scheme) * sample.part(min(sample.n, _CALIBRATION)).tokens * states
        return int(taken)

    @property
    def about(self) -> str:
        """Time, and the longest part."""
        longest = max(self.steps, key=lambda step: step.seconds)
        return f"about {duration(self.seconds)} on {self.rate.device}, most of it the {longest.stage}"

    @property
    def room(self) -> list[str]:
        """Memory, disk and download, and what would make it cheaper, a line each."""
        words = [f"about {size_words(self.memory)} of memory"]
        words += [f"keeps {size_words(self.disk)} in the cache"] if self.disk else []
        words += [f"downloads {size_words(self.download)}"] if self.download else []
        cheaper = "; ".join(self.cheaper())
        return [", ".join(words), *([f"cheaper: {cheaper}"] if cheaper else [])]

    def cheaper(self) -> Iterator[str]:
        """What would make it cheaper, with the time that is left of it."""
        scheme, sides, halved = self.scheme, self.sides, self.sides[0].part(self.sides[0].n / 2)
        changes: dict[str, dict[str, Any]] = {}
        if len(sides) > 1 and scheme is not None and stages_of(scheme) and not scheme.query_only:
            with suppress(QuantDriftError):  # a stage that +query does not go with
                changes["+query (documents stay at full precision)"] = {"scheme": replace(scheme, query_only=True)}
        if self.measures and not self.more:
            changes[f"--limit {halved.n}"] = {"sides": (halved, *sides[1:])}
        if not self.keeps and not self.kept:
            changes["without --no-cache, from the second scheme on"] = {"kept": True}
        if self.rate.device != "cpu" and self.settings.dtype == "float32":
            yield "--dtype bfloat16 (half the memory)"
        for what, change in changes.items():
            if (left := replace(self, **change).seconds) < 0.8 * self.seconds:
                yield f"{what}: {duration(left)}"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, with seconds and bytes."""
        facts = {name: getattr(self, name) for name in ("name", "seconds", "memory", "disk", "download")}
        steps = [step._asdict() for step in self.steps]
        return {**facts, "steps": steps, "cheaper": [*self.cheaper()], "rate": self.rate.model_dump()}

    def check_room(self, store: EmbeddingStore) -> None:
        """Refuse what cannot fit, even with one input in a batch.

        Raises:
            RoomError: it needs more memory or disk than is free.
        """
        on_cpu, left = self.rate.device == "cpu", memory_left()
        aside = self._size * self.shape.linear * (self.scheme is not None and on_cpu)  # the weights that are replaced
        wanted: list[tuple[str, int, float, str]] = []
        if left is not None and on_cpu:
            wanted.append(("of memory", self.least(), left, "--dtype bfloat16, a smaller model or a larger machine"))
        for folder, needed, then in ((store.root, self.disk, "--no-cache"), (Path(tempfile.gettempdir()), aside, "")):
            if folder is not None:
                there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
                wanted.append((f"below {folder}", needed, shutil.disk_usage(there).free, then or "a TMPDIR with room"))
        for where, needed, free, then in wanted:
            if needed > free:
                raise RoomError(
                    f"{self.name} needs {size_words(needed)} {where} or more, and {size_words(free)} are free; "
                    f"expected more, or {then}. {VARIABLE}=off leaves this check out"
                )


def size_words(n_bytes: float) -> str:
    """Bytes in words.

    >>> size_words(2.5e9), size_words(3e6)
    ('2.5 GB', '3 MB')
    """
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.0f} MB"  # noqa: PLR2004 -- a gigabyte


def is_off() -> bool:
    """Say whether the user wants no forecast."""
    return os.environ.get(VARIABLE, "").strip().lower() == "off"


def forecast(
    ask: Ask,
    *,
    settings: Settings,
    store: EmbeddingStore,
    device: str | None = None,
    revision: str | None = None,
    quick: bool = False,
    **changes: Any,
) -> Forecast:
    """Tell what a measurement takes.

    Args:
        ask: the measurement, with its data.
        settings: how inputs go through the models.
        store: where embeddings are kept.
        device: device of the model.
        revision: revision of a model on the hub.
        quick: whether the rate is that of a slow machine, not measured, where nothing is long even on that.
        changes: fields of the result.

    Raises:
        RoomError: it cannot fit into memory or on disk.
        UnsupportedError: nothing is known of the model.
    """
    reference, dataset = names_of(ask.pair)[0], ask.dataset
    shape = None if is_endpoint(reference) else shape_of(source := resolve(reference), revision)
    if shape is None:
        raise UnsupportedError(f"{reference} has no config.json with the sizes of its layers: no time can be told")
    assert dataset is not None  # a forecast is of data
    sides, train = sides_of(dataset, ask.shortlist, source, shape, settings)
    is_here = source.kind != "hub" or any(on_disk(source, file, revision) for file in _WEIGHTS)
    told = Forecast(
        name=f"{ask.pair} on {ask.data[0]}",
        rate=Rate(device=device or "cpu", dtype=settings.dtype, operations=_SLOW, measured=0.0),
        shape=shape,
        sides=sides,
        train=train if is_embedding_model(source, revision) else None,
        scheme=ask.pair.scheme if isinstance(ask.pair, Spec) else None,
        settings=settings,
        keeps=store.root is not None,
        download=0 if is_here else _STORED * shape.parameters,
        **{"kept": is_kept(store, reference, dataset.fingerprint, settings), "calibration": train, **changes},
    )
    if not (quick and told.seconds < LONG):
        told = replace(told, rate=rate_of(shape, device=device, dtype=settings.dtype, root=store.root))
    told.check_room(store)
    return told


# --- the inputs -----------------------------------------------------------------------------------


def sides_of(
    dataset: Dataset | StreamedDataset, lists: Shortlist | None, source: ModelSource, shape: Shape, settings: Settings
) -> tuple[tuple[Side, ...], Side | None]:
    """Return the inputs of both arms by their sizes, and those that classes are learnt from."""
    side = partial(side_of, source, shape, settings)
    if isinstance(dataset, ClassificationDataset):
        return (side(dataset.test.inputs),), None if dataset.train is None else side(dataset.train.inputs)
    if isinstance(dataset, StreamedDataset):
        first = [text for _, text, _ in islice(dataset.shards[0].documents(), _SAMPLE)]
        return (side(dataset.queries, "query"), side(first).part(dataset.n_documents)), None
    if lists is None:
        return (side(dataset.queries, "query"), side(dataset.documents)), None
    queries = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    documents = dict(zip(dataset.document_ids, dataset.documents, strict=True))
    pairs = [f"{queries[query]} {documents[name]}" for query, names in lists.documents.items() for name in names]
    return (side(pairs),), None


def side_of(
    source: ModelSource, shape: Shape, settings: Settings, inputs: Sequence[Any], role: str = "document"
) -> Side:
    """Return texts by their sizes, with the model's prompt and the marks at their ends; an image is a longest text."""
    if not all(isinstance(text, str) for text in inputs[:1]):
        return Side.of(np.full(len(inputs), shape.longest), settings.batch_size)
    prompts = model_json(source, "config_sentence_transformers.json").get("prompts")
    named = settings.query_prompt if role == "query" else settings.document_prompt
    prompt = len(str(prompts.get(named or role) or "")) if isinstance(prompts, dict) else 0
    letters = np.fromiter(map(len, inputs), dtype=np.int64, count=len(inputs)) + prompt
    tokens = np.ceil(letters / letters_of_token(source, inputs)).astype(np.int64) + 2
    return Side.of(np.minimum(tokens, shape.longest), settings.batch_size)


def letters_of_token(source: ModelSource, texts: Sequence[str]) -> float:
    """Return the mean characters of a token, by the model's tokenizer on a sample where it is on this machine."""
    some = [texts[row][:_CUT] for row in range(0, len(texts), -(-len(texts) // _SAMPLE) or 1)]
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 -- an optional package

        file = on_disk(source, "tokenizer.json")
        content = "" if file is None else file.read_text(encoding="utf-8")
        check_rules(parse_json(content), str(file))
        tokenizer = Tokenizer.from_str(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        counted = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(some, add_special_tokens=False))
    except Exception:  # whatever is wrong with it, opening the model tells
        return _LETTERS
    return sum(map(len, some)) / counted if counted else _LETTERS


# --- what is kept, and what there is room for -----------------------------------------------------


def _note_of(store: EmbeddingStore, model: str, data: str, settings: Settings) -> Path | None:
    """Return the place of the note that names the files of a reference's embeddings; None where nothing is kept."""
    key = key_of(model=stamp_of(model), data=data, batch_size=settings.batch_size, **settings.loading)
    return None if store.root is None else store.root / "references" / key[:2] / f"{key}.txt"


def remember(store: EmbeddingStore, model: str, data: str, settings: Settings, keys: Iterable[str | None]) -> None:
    """Note the keys of a reference's embeddings, which no forecast can compute without weights."""
    named = [*keys]
    with suppress(QuantDriftError):  # a model in memory has no files, and a full disk is told by what needs it
        if (note := _note_of(store, model, data, settings)) is not None and None not in named:
            write_text(note, "\n".join(map(str, named)), what="the names of embeddings")


def is_kept(store: EmbeddingStore, model: str, data: str, settings: Settings) -> bool:
    """Say whether the embeddings of a reference are kept."""
    with suppress(QuantDriftError, OSError, ValueError):
        note = _note_of(store, model, data, settings)
        return note is not None and all(store.has(key) for key in note.read_text(encoding="utf-8").split())
    return False


def memory_left() -> int | None:
    """Return the bytes of memory that are free, by the system and the limits of a container; None if unknown."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        found.append(
            1024 * int(Path("/proc/meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2].split()[0])
        )
    for limit, used in _LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    return max(0, min(found)) if found else None


_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files of control groups, of version 2 and 1: the limit, and what is used of it."""
