"""The words that name two models: a reference, and a candidate that is quantized already.

VERSUS := MODEL " vs " MODEL        the reference first; either as in a spec, without a scheme

A candidate is also a GGUF file: `FOLDER/FILE.gguf`, or `ORG/REPO:FILE.gguf` on the hub. Either is
also a model on a server, `openai:URL#MODEL`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantdrift.errors import SpecError
from quantdrift.grammar import error_at, split_versus, stripped
from quantdrift.models.endpoint.address import canonical_model, is_endpoint
from quantdrift.spec import Spec, parse

__all__ = ["Versus", "parse_pair"]

WORD = " vs "


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Two models; its string is canonical, `REFERENCE vs CANDIDATE`.

    Every one that exists is valid: `parse_pair(str(versus)) == versus`.

    >>> str(Versus(reference="minilm", candidate="./minilm-gptq"))
    'minilm vs ./minilm-gptq'

    Attributes:
        reference: short name, hub id or folder: one line, no whitespace at its ends; or a model on
            a server, which becomes canonical.
        candidate: likewise, or a GGUF file.

    Raises:
        SpecError: the values make no such pair; `text` is what they would be written as.
    """

    reference: str
    candidate: str

    def __post_init__(self) -> None:
        if not (isinstance(self.reference, str) and isinstance(self.candidate, str)):
            got = f"{type(self.reference).__name__} and {type(self.candidate).__name__}"
            raise SpecError(f"expected str and str, got {got}", text="", start=0, end=0)
        text, n = str(self), len(self.reference)
        before, after = split_versus(text, 0, len(text)) or (n, n)
        if (before, after) != (n, n + len(WORD)):  # the word takes the spaces beside it
            start, end = (before, n) if before < n else (n + len(WORD), after)
            expected = "models without spaces at their ends"
            raise error_at(text, start, end, "unexpected", expected)
        for side, at in (("reference", 0), ("candidate", n + len(WORD))):
            object.__setattr__(self, side, canonical_model(getattr(self, side), text, at))

    @property
    def model(self) -> str:
        """The reference: what a run is of."""
        return self.reference

    @property
    def on_server(self) -> bool:
        """Whether one of the two is a model on a server."""
        return is_endpoint(self.reference) or is_endpoint(self.candidate)

    def __str__(self) -> str:
        return f"{self.reference}{WORD}{self.candidate}"


def parse_pair(text: str) -> Spec | Versus:
    """Read `MODEL@SCHEME` or `REFERENCE vs CANDIDATE`; whitespace around it does not count.

    >>> parse_pair("minilm vs ./minilm-gptq")
    Versus(reference='minilm', candidate='./minilm-gptq')
    >>> str(parse_pair("minilm@W4"))
    'minilm@W4-g128-rtn'

    Args:
        text: what is to be compared.

    Raises:
        SpecError: it is neither; its start and end are positions in `text`.
    """
    start, end = stripped(text)
    versus = split_versus(text, start, end)
    if versus is None:
        return parse(text)
    before, after = versus
    return Versus(
        reference=canonical_model(text[start:before], text, start),
        candidate=canonical_model(text[after:end], text, after),
    )
