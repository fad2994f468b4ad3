"""What an engine of searches says of itself, and what it is given to build an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quantdrift.base.errors import UnsupportedError, nearest
from quantdrift.base.registry import Package, Registry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantdrift.scoring.indexes import SearchIndex

Ranges = Mapping[str, tuple[int, int]]
"""Names of numbers to the least and the most that each may be."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """An index that is wanted.

    Attributes:
        name: as `+index=` says it, with the engine.
        search: as `+search=` says it; None if it does not.
        seed: of what is drawn; None for the engine's own.
        documents: float32 [n_docs, dim], what is stored: normalized where similarity is cosine; of bytes and bits their
            codes, a bit as -1 or 1.
        similarity: "cosine", "dot" or "euclidean".
        precision: that of `+emb=`; None for float32.
        word: the kind of index, behind the engine's colon.
        stored: what that holds of a document, in words.
        built: numbers that it is built with, behind the word.
        asked: numbers that it is searched with.
    """

    name: str
    search: str | None = None
    seed: int | None = None
    documents: NDArray[Any]
    similarity: str
    precision: str | None = None
    word: str = ""
    stored: str = "float32"
    built: Mapping[str, int] = field(default_factory=dict)
    asked: Mapping[str, int] = field(default_factory=dict)

    def chunks(self, rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the documents, some rows at a time, each with the position of the first."""
        for start in range(0, len(self.documents), rows):
            yield start, self.documents[start : start + rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine, told without importing its library.

    Attributes:
        what: in words.
        build: makes the index that is wanted; UnsupportedError where it cannot.
        packages: that it stands on, whose extra is told where one is missing.
        reads: whether what `+index=` says is one of its indexes, where that is not its name with one of its `words`.
        check: raises where what `+index=` and `+search=` say is none that it can make, whatever the documents.
        words: kinds of index, `+index=NAME:WORD`, to what they hold; the first is meant where none is said.
        built: numbers that an index is built with, `+index=NAME:WORD,KEY=N`, to the least and the most of each.
        asked: numbers that it is searched with, `+search=KEY=N`, likewise.
        wider: the `+search=` that looks at more of an index than one does; None where nothing is known.
        codes: whether it takes embeddings that `+emb=` has coded.
        place: in the order in which engines are asked, ascending.
    """

    what: str
    build: Callable[[Order], SearchIndex]
    packages: tuple[Package, ...]
    reads: Callable[[str], bool] | None = None
    check: Callable[[str, str | None], object] = lambda *_: None
    words: Mapping[str, str] = field(default_factory=dict)
    built: Ranges = field(default_factory=dict)
    asked: Ranges = field(default_factory=dict)
    wider: Callable[[str, str | None], str | None] = lambda *_: None
    codes: bool = False
    place: int = 50

    def parts(self, name: str, search: str | None) -> dict[str, Any]:
        """What `+index=` and `+search=` say, as fields of an order; none where the engine reads them itself.

        Raises:
            UnsupportedError: a word or the name of a number that it does not have, or a number out of range.
        """
        if self.reads is not None:
            return {}
        said, _, settings = name.partition(",")
        engine, _, word = said.partition(":")
        word = word or next(iter(self.words))
        if word not in self.words:
            near = nearest(word, self.words, n=1)
            hint = f"did you mean {engine}:{near[0]}?" if near else f"expected {engine}:WORD, {' or '.join(self.words)}"
            raise UnsupportedError(f"+index={name}: {engine} has no index {word!r} here; {hint}")
        return {
            "word": word,
            "stored": self.words[word],
            "built": read_numbers(f"+index={name}", settings, self.built),
            "asked": read_numbers(f"+search={search}", search, self.asked),
        }


def read_numbers(written: str, settings: str | None, known: Ranges) -> dict[str, int]:
    """Read `KEY=N,KEY=N`; UnsupportedError where a key is not known, or there twice, or its number is out of range."""
    pairs = [setting.partition("=")[::2] for setting in settings.split(",")] if settings else []
    for at, (key, value) in enumerate(pairs):
        least, most = known.get(key, (1, 0))
        if not (value.isdecimal() and least <= int(value) <= most) or key in dict(pairs[:at]):
            names = ", ".join(f"{name}={least} to {most}" for name, (least, most) in known.items()) or "no number"
            raise UnsupportedError(f"{written}: cannot be made of {key}={value or '?'}; expected {names}, each once")
    return {key: int(value) for key, value in pairs}


ENGINES: Registry[Engine] = Registry(
    "quantdrift.search_engines", package="quantdrift.builtin.index.engines", attribute="ENGINE", kind=Engine
)
"""All engines by name, in the order in which they are asked."""


def engine_of(index: str) -> Engine:
    """The engine that reads what `+index=` says; the last one, faiss, reads whatever the others do not."""
    if (named := ENGINES.get(index.partition(":")[0].partition(",")[0])) is not None and named.reads is None:
        return named
    return next(engine for engine in ENGINES.values() if engine.reads is not None and engine.reads(index))
