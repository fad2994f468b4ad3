"""The exceptions quantdrift raises, one tree.

QuantDriftError
├── SpecError            the spec string does not parse
├── UnknownNameError     there is no model, quantizer, metric or task of that name
├── UnsupportedError     understood, but this model, scheme or task cannot be paired
├── MissingExtraError    a package is not installed; names the extra that brings it
├── DataError            the corpus, queries or relevance labels cannot be used
├── ScoreError           embeddings or scores are not finite
├── StudyError           a study.yaml or the folder of a study cannot be used
├── TheoryError          the theory of gaps cannot be applied to these numbers
├── ServerError          a model behind a URL cannot be reached, refuses, or gives an invalid answer
└── RunError             a run folder cannot be written or read
    └── DiskError        a disk is full or read-only

Every message says what was expected, what came, and what to do.
"""

import difflib
from collections.abc import Iterable, Mapping


class QuantDriftError(Exception):
    """Base class of every error quantdrift raises on purpose."""


class SpecError(QuantDriftError):
    """The spec string does not parse.

    Attributes:
        text: the whole string that was parsed.
        start: position of the first offending character in `text`.
        end: position after the last offending character.
    """

    def __init__(self, message: str, *, text: str, start: int, end: int) -> None:
        super().__init__(message)
        self.text = text
        self.start = start
        self.end = end

    def caret(self) -> str:
        """Two lines: the string, and carets under the characters at fault."""
        line = "".join(c if c.isprintable() else " " for c in self.text)  # one column a character
        return f"{line}\n{' ' * self.start}{'^' * max(1, self.end - self.start)}"


class UnknownNameError(QuantDriftError):
    """A name is not known; carries the nearest known ones.

    Attributes:
        kind: the kind of thing that was looked up, e.g. "model".
        name: the name that is not known.
        suggestions: known names, nearest first.
    """

    def __init__(
        self, kind: str, name: str, names: Iterable[str], *, hint: str = "", longer: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.name = name
        self.suggestions = nearest(name, names, longer=longer)
        meant = f"; did you mean {' or '.join(self.suggestions)}?" if self.suggestions else ""
        super().__init__(f"unknown {kind} {name!r}{meant}{' ' + hint if hint else ''}")


class UnsupportedError(QuantDriftError):
    """The request is understood, but not possible for this model, scheme or task; says why."""


class RoomError(QuantDriftError):
    """What is asked for fits neither into memory nor on disk here."""


class MissingExtraError(QuantDriftError, ImportError):
    """A package that this needs is not installed.

    Attributes:
        package: the package that could not be imported.
        extra: the quantdrift extra that brings it.
    """

    def __init__(self, package: str, extra: str, *, needed_for: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed; "
            f'install it with: pip install "quantdrift[{extra}]"'
        )


class DataError(QuantDriftError):
    """The corpus, queries or relevance labels cannot be used; names file and line."""


class ScoreError(QuantDriftError):
    """Embeddings or scores are not finite, or their shapes do not fit."""


class ServerError(QuantDriftError):
    """A model behind a URL cannot be reached, refuses to answer, or gives an invalid answer."""


class StudyError(QuantDriftError):
    """A study.yaml or the folder of a study cannot be used; names the line."""


class TheoryError(QuantDriftError):
    """The theory cannot be applied to these arguments; says which, and what was expected."""


class RunError(QuantDriftError):
    """A run folder cannot be written or read."""


class DiskError(RunError):
    """A disk is full or read-only, so that everything else that is written there fails as well."""


def nearest(name: str, names: Iterable[str], *, n: int = 3, longer: Mapping[str, str] | None = None) -> list[str]:
    """The known names closest to `name`, best first; matching ignores case and the organization.

    A longer form of a name in `longer` is matched too, and stands for the name. What is a name but for its case, or the
    longer form of one, is that name alone.

    >>> nearest("gtpq", ["rtn", "gptq", "awq"])
    ['gptq']
    >>> nearest("MiniLM-L6-v2", ["minilm"], longer={"minilm": "sentence-transformers/all-MiniLM-L6-v2"})
    ['minilm']
    """
    by_key: dict[str, str] = {}
    for candidate, known in [*((each, each) for each in names), *((text, key) for key, text in (longer or {}).items())]:
        by_key.setdefault(candidate.lower(), known)
        by_key.setdefault(candidate.lower().rsplit("/", 1)[-1], known)
    if name.lower() in by_key:
        return [by_key[name.lower()]]
    matches = difflib.get_close_matches(name.lower(), by_key, n=2 * n, cutoff=0.6)
    return list(dict.fromkeys(by_key[match] for match in matches))[:n]
