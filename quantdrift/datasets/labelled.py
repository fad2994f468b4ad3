"""Labelled inputs of one kind: a part that is evaluated, and one to learn from.

Probes are fitted, and quantizers calibrated, on the part called train; figures are over the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from quantdrift.datasets.beir_files import some
from quantdrift.errors import DataError

__all__ = ["TRAIN", "ClassificationDataset", "Kind", "Labelled"]

Kind = Literal["text", "image"]
TRAIN = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One part of the data.

    Attributes:
        ids: names, all different.
        inputs: texts, or images uint8 [height, width, 3].
        labels: one an input; None where there are none.
    """

    ids: tuple[str, ...] = field(repr=False)
    inputs: Sequence[Any] = field(repr=False)
    labels: tuple[str, ...] | None = field(repr=False)

    def contents(self) -> Iterator[str]:
        """What tells inputs apart, one string an input: the text, or a digest of the image."""
        stored = getattr(self.inputs, "contents", None)
        yield from (_content(value) for value in self.inputs) if stored is None else stored


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationDataset:
    """Labelled inputs of one kind, checked when it is made.

    Args:
        name: what reports call it.
        kind: what an input is.
        split: name of the part that is evaluated.
        test: that part.
        train: what a probe is fitted on and quantizers are calibrated on, where there is any.
        notes: what was tolerated in reading; `warnings` begins with it.
        path: the folder or file it was read from, where it was.

    Raises:
        DataError: a part is empty, its ids and inputs differ in number, or an id occurs twice.
    """

    name: str
    kind: Kind
    split: str
    test: Labelled
    train: Labelled | None = None
    notes: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for part, name in ((self.test, self.split), (self.train, TRAIN)):
            if part is None:
                continue
            where = f"dataset {self.name!r}, {name}"
            counts = {len(part.ids), len(part.inputs), len(part.labels or part.ids)}
            if len(counts) > 1:
                raise DataError(f"{where}: expected ids, inputs and labels of one number: {counts}")
            if not part.ids:
                raise DataError(f"{where}: there is no input; at least one is needed")
            if twice := _repeated(part.ids):
                raise DataError(f"{where}: every id must be unique; twice there is {some(twice)}")

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that occur in either part, sorted."""
        parts = (self.test, self.train)
        return tuple(sorted({label for part in parts if part for label in part.labels or ()}))

    @property
    def fingerprint(self) -> str:
        """A stable hex digest of ids, contents and labels of both parts.

        Name, split and notes are not part of it: they change no logit.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.test, self.train):
            sides = () if part is None else (part.ids, part.contents(), part.labels or ())
            digest.update(bytes([len(sides)]))
            for side in sides:
                texts = [text.encode() for text in side]
                digest.update(len(texts).to_bytes(8, "little"))
                for raw in texts:
                    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
                    digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is tolerated but worth telling, one sentence each."""
        told = [*self.notes]
        contents = list(self.test.contents())
        if self.kind == "text":
            empty = [
                name for name, text in zip(self.test.ids, contents, strict=True) if not text.strip()
            ]
            if empty:
                told.append(f"{_counted(empty, 'input is', 'inputs are')} empty: {some(empty)}")
        if n := len(contents) - len(set(contents)):
            told.append(f"{n:,} of the {self.split} inputs {_repeat(n)} an earlier one")
        if self.train is not None:
            known = set(self.train.contents())
            seen = [n for n, one in zip(self.test.ids, contents, strict=True) if one in known]
            if seen:
                inputs = _counted(seen, f"{self.split} input is", f"{self.split} inputs are")
                told.append(f"{inputs} also in {TRAIN}: {some(seen)}")
        if self.test.labels is None:
            told.append("no labels: changed classes are measured, accuracy is not")
        return tuple(told)


def _content(value: object) -> str:
    if isinstance(value, str):
        return value
    image = np.asarray(value)
    return hashlib.blake2b(f"{image.shape}".encode() + image.tobytes(), digest_size=16).hexdigest()


def _repeated(ids: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(ids).items() if times > 1]


def _counted(names: Sequence[str], one: str, many: str) -> str:
    return f"{len(names):,} {one if len(names) == 1 else many}"


def _repeat(n: int) -> str:
    return "repeats" if n == 1 else "repeat"
