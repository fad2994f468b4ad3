"""The declaration of a search engine, and the order of an index that it builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quantdrift.base.errors import UnsupportedError, nearest
from quantdrift.base.registry import Package, Registry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantdrift.scoring.indexes import SearchIndex

Ranges = Mapping[str, tuple[int, int]]
"""Name of a number to its range, least and most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """The order of an index.

    Attributes:
        name: value of `+index=`, with the engine.
        search: value of `+search=`, if any.
        seed: seed of random draws; None for the engine's own.
        documents: float32 [n_docs, dim], the stored vectors, normalized for cosine; codes of bytes or bits, a bit as -1
            or 1.
        similarity: "cosine", "dot" or "euclidean".
        precision: value of `+emb=`; None for float32.
        word: the kind of index, after the engine's colon.
        stored: what that kind stores of a document, in words.
        built: numbers for building, after the word.
        asked: numbers for searching.
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
    """A search engine, described without importing its library.

    Attributes:
        what: description.
        build: builds an index; raises UnsupportedError if it cannot.
        packages: packages that it needs.
        reads: says whether an `+index=` names one of its indexes; only for names other than NAME:WORD.
        check: raises if `+index=` and `+search=` name no index that it can build, whatever the documents.
        words: kinds of index, `+index=NAME:WORD`, to what they store; the first is the default.
        built: numbers for building, `+index=NAME:WORD,KEY=N`, with their ranges.
        asked: numbers for searching, `+search=KEY=N`, with their ranges.
        wider: returns the `+search=` that searches more of an index; None if unknown.
        others: returns other `+index=` that may change fewer answers: finer codes, or more links of a graph.
        codes: whether it takes embeddings that `+emb=` has coded.
        place: position in the order in which engines are tried, ascending.
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
    others: Callable[[str], Iterable[str]] = lambda _: ()
    codes: bool = False
    place: int = 50

    def parts(self, name: str, search: str | None) -> dict[str, Any]:
        """Return `+index=` and `+search=` as fields of an order; none if the engine reads them itself.

        Raises:
            UnsupportedError: the word or the name of a number is unknown, or a number is out of range.
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
    """Read `KEY=N,KEY=N`; UnsupportedError if a key is unknown, occurs twice, or its number is out of range."""
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
"""All engines by name, in the order in which they are tried."""


def engine_of(index: str) -> Engine:
    """Return the engine of an `+index=`; the last one, faiss, takes all that the others do not."""
    if (named := ENGINES.get(index.partition(":")[0].partition(",")[0])) is not None and named.reads is None:
        return named
    return next(engine for engine in ENGINES.values() if engine.reads is not None and engine.reads(index))
