"""The texts that `canary` and `verify` embed; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.parts import SENTENCES, OneInputError, QuantDriftError

if TYPE_CHECKING:
    from quantdrift.parts import RetrievalDataset

Role = Literal["query", "document"]
Texts = Sequence[tuple[Role, str]]
Vectors = NDArray[np.float32]

_PARTS = " ".join(f"Part {number} of the manual is about pump {number * 7 % 11}." for number in range(1, 201))
TEXTS: tuple[tuple[Role, str], ...] = (
    *(("query" if text.endswith("?") else "document", text) for text in SENTENCES),
    ("query", "opening hours of the museum on MONDAYS"),
    ("query", "which tablets cause a rash"),
    ("document", "."),
    ("document", " \n\t "),
    ("document", "RETURNS ARE ACCEPTED WITHIN 30 DAYS, ORDER NO. 2026-11/0042, EUR 1,024.50"),
    ("document", "cafe\u0301 is café; Ελληνικά, русский, 日本語, العربية; 🙂 ﬁne print\u00a0…"),
    ("document", _PARTS[-1500:]),  # beyond the 256 tokens of a small model
    ("document", _PARTS),  # beyond 512
)
"""Texts that runtimes treat differently: long ones, capitals, unicode, signs, almost empty ones, queries."""
MORE: tuple[tuple[Role, str], ...] = tuple(("document", " ".join(two)) for two in permutations(SENTENCES, 2))
"""Further texts."""
LONGEST = 100_000
"""Characters of a text at most."""


def draw(dataset: RetrievalDataset, n: int, seed: int = 0) -> Texts:
    """Draw n texts of a corpus, a third of them queries, with the longest document among them."""
    if "image" in dataset.kinds:
        raise QuantDriftError(f"expected queries and documents that are texts; {dataset.name} has images")
    rng = np.random.default_rng(seed)
    asked = rng.permutation(len(dataset.queries))[: n // 3]
    longest = max(range(len(dataset.documents)), key=lambda row: len(dataset.documents[row]))
    others = [row for row in rng.permutation(len(dataset.documents)).tolist() if row != longest]
    texts: list[tuple[Role, str]] = [("query", dataset.queries[row][:LONGEST]) for row in asked]
    kept = (longest, *others[: n - len(asked) - 1])
    return [*texts, *(("document", dataset.documents[row][:LONGEST]) for row in kept)]


def embedded(model: Any, texts: Texts, size: int) -> Vectors:
    """Embed texts in batches of a size, float32 [n, dim]."""
    rows: list[int] = []
    parts = []
    for role in dict.fromkeys(role for role, _ in texts):
        of_role = [row for row, text in enumerate(texts) if text[0] == role]
        parts.append(model.encode([texts[row][1] for row in of_role], role, size))
        rows += of_role
    vectors = np.concatenate(parts)[np.argsort(rows)]
    if not np.isfinite(vectors).all():
        raise QuantDriftError("expected embeddings of finite numbers; some are not")
    return np.asarray(vectors, dtype=np.float32)


def accepted(model: Any, texts: Texts, size: int) -> tuple[Vectors, list[int]]:
    """Embed the texts that a model takes, and return the positions of the others: llama.cpp refuses long texts."""
    try:
        return embedded(model, texts, size), []
    except OneInputError as first:
        taken, refused = [], []
        for row, text in enumerate(texts):  # one by one, to see which are refused
            try:
                taken.append(embedded(model, [text], 1))
            except OneInputError:
                refused.append(row)
        if not taken:
            raise QuantDriftError(f"the model takes none of the texts: {first}") from first
        return np.concatenate(taken), refused


def without(texts: Texts, refused: Sequence[int]) -> tuple[Texts, list[str]]:
    """The texts that are not refused, and a line on each of the others."""
    lines = [f"left out, as the model refuses it: {shortened(texts[row][1])}" for row in refused]
    return [text for row, text in enumerate(texts) if row not in refused], lines


def shortened(text: str) -> str:
    """The beginning of a text, quoted."""
    return repr(text[:60]) + "..." * (len(text) > 60)  # noqa: PLR2004
