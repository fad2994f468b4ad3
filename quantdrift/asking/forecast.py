"""What a measurement takes, told before it begins: passes, time, memory, disk and what is downloaded.

No weights are loaded. Sizes come from config.json, tokens from a sample of the texts, the rate from a block of the
model's shape on this machine, and what a quantizer or a stage costs from its own description.
"""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from quantdrift.asking.ask import Ask, names_of, stamp_of
from quantdrift.asking.rate import Rate, rate_of
from quantdrift.base.display import duration, size_words
from quantdrift.base.errors import QuantDriftError, RoomError, UnsupportedError
from quantdrift.base.records import parse_json, read_bytes
from quantdrift.candidate.calibration.sample import DEFAULT_SIZE
from quantdrift.data.labelled import ClassificationDataset
from quantdrift.data.streamed import StreamedDataset
from quantdrift.finished.shortlist import Shortlist
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES, Stage
from quantdrift.models.endless import check_rules
from quantdrift.models.files.kinds import is_embedding_model, on_disk
from quantdrift.models.files.named import ModelSource, resolve
from quantdrift.models.files.shape import Shape, shape_of
from quantdrift.models.inputs import SAMPLED, Settings
from quantdrift.models.store import EmbeddingStore, key_of
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import Spec, calibrates, chooses, is_endpoint

VARIABLE = "QUANTDRIFT_FORECAST"
LONG, _SLOW = 30.0, 5e9  # seconds from which a measurement is told of; operations a second of a slow machine
_SAMPLE, _CUT, _LETTERS = 64, 4000, 4.0  # texts whose tokens are counted, characters of each; else those of a token
_LARGEST = 1 << 27  # bytes of a tokenizer.json
_START, _PARAMETER, _PROBE = 20.0, 2e3, 2e4  # seconds for libraries; operations to load a weight, to fit a number
_MOMENTS = 1.5  # passes over the inputs to calibrate on
_BESIDE = 1.2  # what a model computes beside the products of a block, as measured
_LIBRARIES, _STORED = 6e8, 2  # bytes of memory of the libraries, and of a weight in most files
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
    def of(cls, lengths: NDArray[np.float64], batch_size: int) -> Self:
        """The sizes of inputs of these lengths, in batches of similar lengths."""
        padded = np.sort(lengths)[::-1]
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
        from quantdrift.measuring.problem import LEAST_SHARE  # noqa: PLC0415 -- torch

        shape, scheme, sides, rate = self.shape, self.scheme, self.sides, self.rate.operations

        def step(stage: str, *run: Side, more: float = 0.0) -> Step:
            operations = sum(side.operations(shape) for side in run) + more
            return Step(stage, sum(side.n for side in run), _BESIDE * operations / rate)

        start = step("loading", more=_PARAMETER * shape.parameters)
        yield start._replace(seconds=start.seconds + _START * (not self.loaded))
        if not self.kept:
            train = () if self.train is None else (self.train,)
            yield step("reference", *sides, *train, more=_PROBE * shape.hidden * sum(side.n for side in train))
        sample, is_quantized = self.calibration or sides[-1], scheme is not None and scheme.weight_bits != FULL_BITS
        if scheme is not None:
            one = sum(side.part(1).operations(shape) for side in (sides[0], sample, sample)) / 3
            asked = sides[0].n // LEAST_SHARE if self.train is None else self.train.n
            for name, stage in self._stages.items():
                passes = stage.passes(scheme, asked, shape.layers * len(shape.matrices))
                if passes and (self.measures or chooses(scheme)):
                    yield step(name if name != "weights" else "allocation", more=passes * one)
        if scheme is not None and is_quantized and self.measures:
            made = shape.layers * sum(QUANTIZERS[scheme.quantizer].operations(*size) for size in shape.matrices)
            given = scheme.option("calib", "")
            few = sample.part(min(sample.n, int(given) if given.isdecimal() else DEFAULT_SIZE))
            made += (_MOMENTS - 1) * few.operations(shape) * calibrates(scheme)
            yield step("calibration", few, more=made) if calibrates(scheme) else step("quantization", more=made)
        if self.measures:
            is_same = scheme is not None and all(stage.kind == "vectors" for stage in self._stages.values())
            moving = sides[: 1 if scheme is not None and scheme.query_only else 2]
            yield step("candidate", *(() if is_same else moving))
            if self.settings.noise_floor:  # two documents of each input, some of them the same
                again = [
                    min(SAMPLED, sides[0].n),
                    *(n * -math.expm1(-2 * SAMPLED / n) for n in (s.n for s in sides[1:])),
                ]
                yield step("noise floor", *(side.part(n) for side, n in zip(moving, again, strict=False)))

    @property
    def _stages(self) -> dict[str, Stage]:
        scheme = self.scheme
        return {} if scheme is None else {name: stage for name, stage in STAGES.items() if stage.in_(scheme)}

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(step.seconds for step in self.steps)

    @property
    def disk(self) -> int:
        """Bytes that stay in the cache: embeddings of both arms, and the codes of calibrated layers."""
        codes = self.shape.linear if self.scheme is not None and calibrates(self.scheme) else 0
        return (2 * 4 * self.shape.hidden * sum(side.n for side in self.sides) + codes) * self.keeps

    @property
    def memory(self) -> int:
        """Bytes of memory at the peak."""
        shape, scheme, sample = self.shape, self.scheme, self.calibration or self.sides[-1]
        taken = self.at_least(self.settings.batch_size) + 8.0 * shape.hidden * sum(side.n for side in self.sides)
        if scheme is None:  # two models
            taken += 4.0 * shape.parameters
        else:
            taken += sum(stage.memory(scheme, shape.linear) for stage in self._stages.values())
            tokens = sample.part(min(sample.n, DEFAULT_SIZE)).tokens * calibrates(scheme)
            taken += 4 * tokens * (4 * shape.hidden + shape.matrices[-1][1])
        return int(taken)

    def at_least(self, batch_size: int = 1) -> int:
        """Bytes of memory that the libraries, the model and one batch take."""
        shape, longest = self.shape, max(side.longest for side in self.sides)
        states = batch_size * longest * (8 * shape.hidden + 2 * shape.matrices[-1][1] + shape.heads * longest)
        return int(_LIBRARIES + (4 if self.settings.dtype == "float32" else 2) * (shape.parameters + states))

    @property
    def about(self) -> str:
        """Time, and the longest part."""
        longest = max(self.steps, key=lambda step: step.seconds)
        return f"about {duration(self.seconds)} on {self.rate.device}, most of it the {longest.stage}"

    @property
    def room(self) -> list[str]:
        """Memory, disk and download, and what would make it cheaper, a line each."""
        words = f"about {size_words(self.memory)} of memory, keeps {size_words(self.disk)} in the cache"
        words += f", downloads {size_words(self.download)}" if self.download else ""
        return [words, *([f"cheaper: {'; '.join(self.cheaper)}"] if self.cheaper else [])]

    @property
    def cheaper(self) -> list[str]:
        """What would make it cheaper, with the time that is left of it."""
        sides, scheme, changes = self.sides, self.scheme, dict[str, dict[str, Any]]()
        if len(sides) > 1 and scheme is not None and scheme.weight_bits != FULL_BITS and not scheme.query_only:
            changes["+query (documents stay at full precision)"] = {"scheme": replace(scheme, query_only=True)}
        if self.measures and not self.more:
            few = sides[0].part(sides[0].n / 2)
            changes[f"--limit {few.n}"] = {"sides": (few, *sides[1:])}
        if not self.keeps:
            changes["without --no-cache, from the second scheme on"] = {"kept": True}
        times = {what: replace(self, **change).seconds for what, change in changes.items()}
        half = ["--dtype bfloat16"] if self.rate.device != "cpu" and self.settings.dtype == "float32" else []
        worth = 0.8 * self.seconds
        return [*half, *(f"{what}: {duration(left)}" for what, left in times.items() if left < worth)]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, with seconds and bytes."""
        facts = {name: getattr(self, name) for name in ("name", "seconds", "memory", "disk", "download", "cheaper")}
        return {**facts, "steps": [step._asdict() for step in self.steps], "rate": self.rate.model_dump()}

    def check_room(self, store: EmbeddingStore) -> None:
        """Refuse what fits neither into memory, even with one input in a batch, nor on disk: RoomError."""
        least, left = self.at_least(), memory_left()
        halved = self.settings.dtype == "float32" and (least + _LIBRARIES) / 2 < (left or 0)
        smaller = "--dtype bfloat16" if halved else "a smaller model"
        wanted = [("of memory", least, left, smaller)] if self.rate.device == "cpu" else []
        if store.root is not None:
            there = next(place for place in (store.root, *store.root.absolute().parents) if place.exists())
            wanted.append((f"on the disk of {store.root}", self.disk, shutil.disk_usage(there).free, "--no-cache"))
        for where, needed, free, then in wanted:
            if free is not None and needed > free:
                raise RoomError(
                    f"{self.name} needs {size_words(needed)} {where} or more, and {size_words(free)} are free; "
                    f"expected more, or {then}. {VARIABLE}=off leaves this check out"
                )


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
    texts: tuple[Sequence[Any], ...] = (),
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
        texts: the inputs of each side, in place of the data.
        changes: fields of the result.

    Raises:
        RoomError: it cannot fit into memory or on disk.
        UnsupportedError: nothing is known of the model.
    """
    reference, dataset = names_of(ask.pair)[0], ask.dataset
    shape = None if is_endpoint(reference) else shape_of(source := resolve(reference), revision)
    if shape is None:
        raise UnsupportedError(f"{reference} has no config.json with the sizes of its layers: no time can be told")
    made = [side_of(source, shape, settings.batch_size, side) for side in texts or texts_of(dataset, ask.shortlist)]
    if isinstance(dataset, StreamedDataset):
        made[1] = made[1].part(dataset.n_documents)
    train = made.pop() if isinstance(dataset, ClassificationDataset) and len(made) > 1 else None
    is_here = source.kind != "hub" or any(on_disk(source, file, revision) for file in _WEIGHTS)
    note = None if dataset is None else kept_at(store, reference, dataset.fingerprint, settings)
    told = Forecast(
        name=f"{ask.pair} on {ask.data[0]}",
        rate=Rate(device=device or "cpu", dtype=settings.dtype, operations=_SLOW, measured=0.0),
        shape=shape,
        sides=tuple(made),
        train=train if is_embedding_model(source, revision) else None,
        scheme=ask.pair.scheme if isinstance(ask.pair, Spec) else None,
        settings=settings,
        keeps=store.root is not None,
        download=0 if is_here else _STORED * shape.parameters,
        **{"kept": note is not None and note.exists(), "calibration": train, **changes},
    )
    if told.at_least() > (memory_left() or math.inf):  # a GPU may have more
        from quantdrift.builtin.sentence.work import pick_device  # noqa: PLC0415 -- torch

        told = replace(told, rate=told.rate.model_copy(update={"device": str(pick_device(device))}))
    told.check_room(store)  # before a block of it is made
    if not (quick and told.seconds < LONG):
        told = replace(told, rate=rate_of(shape, device=device, dtype=settings.dtype, root=store.root))
    return told


# --- the inputs -----------------------------------------------------------------------------------


def texts_of(dataset: Any, lists: Shortlist | None) -> tuple[Sequence[Any], ...]:
    """Return the inputs of both arms, and those that classes are learnt from as the second of labelled data."""
    if isinstance(dataset, ClassificationDataset):
        return (dataset.test.inputs, *(() if dataset.train is None else (dataset.train.inputs,)))
    if isinstance(dataset, StreamedDataset):
        return dataset.queries, [text for _, text, _ in islice(dataset.shards[0].documents(), _SAMPLE)]
    if lists is None:
        return dataset.queries, dataset.documents
    queries = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    documents = dict(zip(dataset.document_ids, dataset.documents, strict=True))
    return ([f"{queries[query]} {documents[name]}" for query, names in lists.documents.items() for name in names],)


def side_of(source: ModelSource, shape: Shape, batch_size: int, inputs: Sequence[Any]) -> Side:
    """Return texts by their sizes, with the marks at their ends; an image counts as a longest text."""
    if not isinstance(inputs[0], str):
        return Side.of(np.full(len(inputs), float(shape.longest)), batch_size)
    tokens = np.ceil(np.array([*map(len, inputs)]) / letters_of_token(source, inputs)) + 2
    return Side.of(np.minimum(tokens, shape.longest), batch_size)


def letters_of_token(source: ModelSource, texts: Sequence[str]) -> float:
    """Return the mean characters of a token, by the model's tokenizer on a sample where it is on this machine."""
    some = [texts[row][:_CUT] for row in range(0, len(texts), -(-len(texts) // _SAMPLE) or 1)]
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 -- an optional package

        file = on_disk(source, "tokenizer.json")
        content = "" if file is None else read_bytes(file, limit=_LARGEST).decode()
        check_rules(parse_json(content), str(file))
        tokenizer = Tokenizer.from_str(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        counted = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(some, add_special_tokens=False))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # of Rust, too; whatever is wrong with it, opening the model tells
        return _LETTERS
    return sum(map(len, some)) / counted if counted else _LETTERS


# --- what is kept, and what there is room for -----------------------------------------------------


def kept_at(store: EmbeddingStore, model: str, data: str, settings: Settings) -> Path | None:
    """Return the place of the note that a reference's embeddings are kept, which only its weights could tell else.

    None where nothing is kept, and for a model in memory.
    """
    with suppress(QuantDriftError):
        key = key_of(model=stamp_of(model), data=data, batch_size=settings.batch_size, **settings.loading)
        return None if store.root is None else store.root / "references" / key[:2] / f"{key}.txt"
    return None


def memory_left() -> int | None:
    """Return the bytes of memory that are free, by the system and the limits of a container; None if unknown."""
    found, groups = list[int](), Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError, IndexError):
        told = Path("/proc/meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2]
        found.append(1024 * int(told.split()[0]))
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            found.append(int((groups / limit).read_text()) - int((groups / used).read_text()))
    return max(0, min(found)) if found else None
