"""Why do two runtimes of one model give different embeddings? Hypotheses are tried by encoding a few texts again.

One side is a sentence-transformers model that can be changed; the other stays as it is, whatever runs it. A hypothesis
changes the first in one way (other pooling, a prompt, no [CLS], fewer tokens) and looks whether the difference goes
away. What no hypothesis explains is what quantization, a number type or kernels did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.engine.encoders.sentence import SentenceEncoder
from quantdrift.engine.pair import Model
from quantdrift.engine.weights import restoring

Vectors = NDArray[np.float32]
Verdict = Literal["explains it", "part of it", "does not"]

ROUNDING = 1e-6
"""1 - cosine that float32 in other batches and libraries comes to; MiniLM differs by 1e-12 to 1e-7."""
_PART = 0.25
"""Share of the difference that has to go away for a part of an explanation."""
_MOST = 3
"""Hypotheses that are put together."""
_SAME_LENGTH = 1e-3
"""Relative difference of two lengths that rounding can make; bfloat16 makes up to 4e-3 of single numbers."""
_PROMPTS = (("query: ", "passage: "), ("search_query: ", "search_document: "))
"""Prompts for queries and documents that widely used models were trained with."""
_LENGTHS = (16, 32, 64, 128, 256, 384, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way in which the first side could differ.

    Attributes:
        told: what it is.
        advice: what to do if it is so.
        change: changes the model; undone afterwards.
        text: changes every text.
    """

    told: str
    advice: str
    change: Callable[[Any], object] | None = None
    text: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of a hypothesis.

    Attributes:
        name: of it.
        told: the variant that came nearest.
        advice: what to do.
        before: mean 1 - cosine without it.
        after: mean 1 - cosine with it.
        worst: largest 1 - cosine of a text with it.
        verdict: how much of the difference it explains.
        ways: variants of it that were tried; 0 if it is read off the vectors.
        why_not: why it could not be tried, else empty.
    """

    name: str
    told: str = ""
    advice: str = ""
    before: float = 0.0
    after: float = 0.0
    worst: float = 0.0
    verdict: Verdict = "does not"
    ways: int = 0
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        n: texts that were encoded.
        changed: the side that was changed: "reference" or "candidate"; "" if none could be.
        before: mean 1 - cosine of both sides.
        worst: largest one.
        lengths: mean relative difference of the lengths of vectors.
        first: queries whose first answer among the documents differs, before and after what was found; of n_queries.
        n_queries: among the texts.
        tried: every hypothesis by itself.
        found: what explains the difference together, the largest part first.
        left: mean 1 - cosine that is left then.
    """

    n: int
    changed: str
    before: float
    worst: float
    lengths: float
    first: tuple[int, int]
    n_queries: int
    tried: tuple[Tried, ...]
    found: tuple[Tried, ...]
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Texts:
    """The texts that are encoded, queries first."""

    queries: list[str]
    documents: list[str]

    def __len__(self) -> int:
        return len(self.queries) + len(self.documents)


def chosen_texts(dataset: RetrievalDataset, n: int) -> _Texts:
    """Queries and documents from the shortest to the longest, one longer than any limit, and some in capitals."""

    def spread(texts: Sequence[str], many: int) -> list[str]:
        own = sorted({text for text in texts if text.strip()}, key=lambda text: (len(text), text))
        places = np.unique(np.linspace(0, len(own) - 1, min(many, len(own))).astype(int)) if own else []
        return [own[place] for place in places]

    queries = spread(dataset.queries, max(2, n // 3))
    documents = spread(dataset.documents, max(4, n - len(queries) - 4))
    if not queries or not documents:
        raise UnsupportedError(f"{dataset.name} has no text to encode; expected queries and documents")
    capitals = [text.upper() for text in documents[:: max(1, len(documents) // 3)]][:3]
    return _Texts(queries=queries, documents=[*documents, *capitals, " ".join(documents[-2:] * 4)])


@dataclass(slots=True)
class _Comparison:
    """Both sides on the same texts."""

    texts: _Texts
    mine: SentenceEncoder | None
    batch_size: int
    theirs: Vectors = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))

    def encoded(self, model: Model, change: Callable[[str], str] | None = None) -> Vectors:
        found = []
        for role, texts in (("query", self.texts.queries), ("document", self.texts.documents)):
            found.append(model.encode([change(t) if change else t for t in texts], role, self.batch_size))
        return np.concatenate(found).astype(np.float32)

    def under(self, variants: Sequence[Variant]) -> Vectors:
        """What the changed side makes of the texts under some variants."""
        assert self.mine is not None  # nothing is tried without
        with ExitStack() as stack:
            stack.enter_context(_undone(self.mine.model))
            for variant in variants:
                if variant.change is not None:
                    variant.change(self.mine.model)

            def change(text: str) -> str:
                for variant in variants:
                    text = variant.text(text) if variant.text is not None else text
                return text

            return self.encoded(self.mine, change)


@contextmanager
def _undone(model: Any) -> Iterator[None]:
    """Inside, a sentence-transformers model may be changed; its tokenizer is put back as well."""
    tokenizer, prompts = model.tokenizer, dict(model.prompts)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    processor = None if backend is None else backend.post_processor
    limit = model.max_seq_length
    with restoring(model):
        try:
            yield
        finally:
            model.prompts = prompts
            model.max_seq_length = limit
            if backend is not None:
                backend.post_processor = processor


# --- the hypotheses -------------------------------------------------------------------------------


def _prompts(model: Any) -> Iterator[Variant]:
    def asked(query: str, document: str) -> Callable[[Any], object]:
        return lambda one: setattr(one, "prompts", {"query": query, "document": document})

    own = (model.prompts.get("query") or "", model.prompts.get("document") or "")
    if any(own):
        advice = f"send the model's prompts: {own[0]!r} before queries and {own[1]!r} before documents"
        yield Variant(told="the other side has no prompts", advice=advice, change=asked("", ""))
        yield Variant(told="prompts of the other role", advice="swap the prompts", change=asked(own[1], own[0]))
    for query, document in _PROMPTS:
        if (query, document) != own:
            told = f"the other side puts {query!r} and {document!r} before texts"
            yield Variant(told=told, advice="let both sides use the same prompts", change=asked(query, document))


def _pooling(model: Any) -> Iterator[Variant]:
    pooling = next((part for part in model if hasattr(part, "pooling_mode")), None)
    if pooling is None:
        raise UnsupportedError("the model has no pooling of sentence-transformers")

    def to(mode: str) -> Callable[[Any], object]:
        return lambda _: setattr(pooling, "pooling_mode", mode)

    for mode in ("mean", "cls", "lasttoken", "max"):
        if mode != pooling.pooling_mode:
            advice = f"set the other side's pooling to {pooling.pooling_mode} (llama.cpp: --pooling)"
            yield Variant(told=f"the other side pools by {mode}", advice=advice, change=to(mode))


def _special_tokens(model: Any) -> Iterator[Variant]:
    from tokenizers.processors import TemplateProcessing  # noqa: PLC0415 -- a part of transformers

    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedError("the tokenizer is not a fast one, whose special tokens can be changed")
    around, plain = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    at = around.index(plain[0])
    names = [tokenizer.convert_ids_to_tokens(one) for one in (around[:at], around[at + len(plain) :])]
    first, last = (list(map(str, part)) for part in names)

    def to(before: Sequence[str], after: Sequence[str]) -> Callable[[Any], object]:
        special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in dict.fromkeys([*before, *after])]
        template = " ".join([*before, "$A", *after])
        return lambda _: setattr(
            backend,
            "post_processor",
            TemplateProcessing(single=template, pair=f"{template} $B", special_tokens=special),
        )

    ends = [
        name for name in (tokenizer.bos_token, tokenizer.eos_token, tokenizer.cls_token, tokenizer.sep_token) if name
    ]
    ways = {
        f"the other side lacks {' and '.join([*first, *last])}": ((), ()),
        f"the other side lacks {' '.join(first)} before": ((), last),
        f"the other side lacks {' '.join(last)} behind": (first, ()),
        **{f"the other side has another {name} behind": (first, [*last, name]) for name in ends},
        **{f"the other side has another {name} before": ([name, *first], last) for name in ends},
    }
    advice = f"let the other side add {' '.join([*first, 'TEXT', *last])}, as the model was trained with"
    for told, (before, after) in ways.items():
        if (list(before), list(after)) != (first, last):
            yield Variant(told=told, advice=advice, change=to(before, after))


def _truncation(model: Any) -> Iterator[Variant]:
    own = model.max_seq_length
    if not own:
        raise UnsupportedError("the model has no length limit")

    def to(limit: int) -> Callable[[Any], object]:
        return lambda one: setattr(one, "max_seq_length", limit)

    # more than a model's positions cannot be encoded
    body = getattr(model[0], "auto_model", None)
    most = getattr(getattr(body, "config", None), "max_position_embeddings", own)
    for limit in dict.fromkeys([own - 1, own - 2, own + 1, own + 2, *_LENGTHS]):
        if 2 < limit <= most and limit != own:  # noqa: PLR2004 -- special tokens
            told = f"the other side cuts texts at {limit} tokens, this one at {own}"
            yield Variant(told=told, advice=f"set the other side's limit to {own} tokens", change=to(limit))


def _case(model: Any) -> Iterator[Variant]:
    del model
    advice = "let both sides lower-case, as the model's tokenizer says"
    yield Variant(told="the other side lower-cases texts", advice=advice, text=str.lower)


def _modules(model: Any) -> Iterator[Variant]:
    dense = [name for name, part in model.named_children() if type(part).__name__ == "Dense"]
    if not dense:
        raise UnsupportedError("the model has no Dense module that could be missing")

    def without(one: Any) -> None:
        for name in dense:
            del one._modules[name]

    advice = "the other side lacks the Dense module of the model; use a runtime that has it"
    yield Variant(told="the other side has no Dense module", advice=advice, change=without)


HYPOTHESES: dict[str, Callable[[Any], Iterator[Variant]]] = {
    "prompt": _prompts,
    "pooling": _pooling,
    "special tokens": _special_tokens,
    "truncation": _truncation,
    "case": _case,
    "modules": _modules,
}
"""What may differ, and how it is tried."""

# --- comparing ------------------------------------------------------------------------------------


def _angles(one: Vectors, other: Vectors) -> NDArray[np.float64]:
    """1 - cosine of every text; of vectors of different lengths, of the dimensions that both have."""
    width = min(one.shape[1], other.shape[1])
    left, right = (part[:, :width].astype(np.float64) for part in (one, other))
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray(1 - (left * right).sum(axis=1) / np.maximum(norms, 1e-30)).clip(min=0)


def _first(vectors: Vectors, n_queries: int) -> NDArray[np.int64]:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    return np.asarray((unit[:n_queries] @ unit[n_queries:].T).argmax(axis=1))


def _judged(name: str, told: str, advice: str, before: float, angles: NDArray[np.float64]) -> Tried:
    after = float(angles.mean())
    share = 1 - after / before if before else 0.0
    whole = after <= ROUNDING
    verdict: Verdict = "explains it" if whole and share > 0 else "part of it" if share >= _PART else "does not"
    return Tried(
        name=name, told=told, advice=advice, before=before, after=after, worst=float(angles.max()), verdict=verdict
    )


def diagnose(
    reference: Model, candidate: Model, dataset: RetrievalDataset, *, n: int, batch_size: int, progress: Progress
) -> Diagnosis:
    """Try every hypothesis by itself, and then what explains most together.

    Args:
        reference: one side.
        candidate: the other; of two that can be changed, the reference is.
        dataset: where texts are taken from.
        n: about how many.
        batch_size: inputs per forward pass or request.
        progress: where progress is shown.
    """
    texts = chosen_texts(dataset, n)
    mine, theirs, changed = _sides(reference, candidate)
    called, other = ("candidate", "reference") if changed == "candidate" else ("reference", "candidate")
    at = _Comparison(texts, mine, batch_size)
    with progress.stage("encoding with both", 2) as tell:
        at.theirs = at.encoded(theirs)
        tell(1)
        plain = at.encoded(mine or reference)
        tell(1)
    angles, n_queries = _angles(plain, at.theirs), len(texts.queries)
    before = float(angles.mean())
    both = min(plain.shape[1], at.theirs.shape[1])
    norms = [np.linalg.norm(part[:, :both], axis=1) for part in (plain, at.theirs)]
    lengths = float(np.mean(np.abs(norms[0] - norms[1]) / np.maximum(norms[1], 1e-30)))
    tried = [_on_lengths(before, lengths, norms, (called, other)), _on_dimensions(plain, at.theirs, before)]
    found: list[Tried] = []
    best = plain
    if mine is not None and before > ROUNDING:
        own, found, best = _searched(at, mine, before, progress, other)
        tried += own
    elif mine is None:
        why = "neither side is a model that can be changed here"
        tried += [Tried(name=name, why_not=why) for name in HYPOTHESES]
    for one in tried[:2]:
        if one.verdict == "explains it" or (one.verdict == "part of it" and not found):
            found.append(one)
    ours, there, again = (_first(part, n_queries) for part in (plain, at.theirs, best))
    by_vectors = [one for one in found if one.name == "dimensions"]
    left = by_vectors[0].after if by_vectors else float(_angles(best, at.theirs).mean())
    return Diagnosis(
        n=len(texts),
        changed=changed,
        before=before,
        worst=float(angles.max()),
        lengths=lengths,
        first=(int((ours != there).sum()), int((again != there).sum())),
        n_queries=n_queries,
        tried=tuple(tried),
        found=tuple(found),
        left=left,
    )


def _sides(reference: Model, candidate: Model) -> tuple[SentenceEncoder | None, Model, str]:
    """The side that is changed, the other, and what the first is called."""
    for one, other, called in ((reference, candidate, "reference"), (candidate, reference, "candidate")):
        if isinstance(one, SentenceEncoder) and hasattr(one.model[0], "tokenizer"):
            return one, other, called
    return None, candidate, ""


def _searched(
    at: _Comparison, mine: SentenceEncoder, before: float, progress: Progress, other: str
) -> tuple[list[Tried], list[Tried], Vectors]:
    """Every hypothesis by itself; what explains most, and what explains most of the rest together with it."""
    variants: dict[str, list[Variant]] = {}
    tried: dict[str, Tried] = {}
    for name, make in HYPOTHESES.items():
        try:
            variants[name] = [_named(way, f"the {other}") for way in make(mine.model)]
        except UnsupportedError as error:
            tried[name] = Tried(name=name, why_not=str(error))
    together: list[Variant] = []
    found: list[Tried] = []
    now, best = before, at.under([])
    for step in range(_MOST):
        candidates: list[tuple[Tried, Variant, Vectors]] = []
        left = {name: own for name, own in variants.items() if name not in {one.name for one in found}}
        with progress.stage("trying", sum(map(len, left.values()))) as tell:
            for name, own in left.items():
                results = []
                for variant in own:
                    vectors = at.under([*together, variant])
                    judged = _judged(name, variant.told, variant.advice, now, _angles(vectors, at.theirs))
                    results.append((judged, variant, vectors))
                    tell(1)
                nearest = min(results, key=lambda one: one[0].after)
                candidates.append(nearest)
                if step == 0:
                    tried[name] = replace(nearest[0], ways=len(own))
        if not candidates:
            break
        one, variant, vectors = min(candidates, key=lambda each: each[0].after)
        if one.verdict == "does not":
            break
        found.append(one)
        together.append(variant)
        now, best = one.after, vectors
        if now <= ROUNDING:
            break
    return [tried[name] for name in HYPOTHESES if name in tried], found, best


def _named(variant: Variant, other: str) -> Variant:
    """The variant, with the other side called by its name."""
    told, advice = (text.replace("the other side", other) for text in (variant.told, variant.advice))
    return replace(variant, told=told, advice=advice)


def _on_lengths(before: float, lengths: float, norms: Sequence[NDArray[Any]], names: Sequence[str]) -> Tried:
    """Whether vectors differ in length alone."""
    if lengths <= _SAME_LENGTH:
        return Tried(name="length", told="vectors are equally long", before=before, after=before)
    told = f"vectors differ in length by {100 * lengths:.1f} %"
    unit = [bool(np.allclose(part, 1, atol=1e-2)) for part in norms]
    if before > ROUNDING and unit[0] == unit[1]:  # other directions come with other lengths
        return Tried(name="length", told=told, before=before, after=before)
    which = "one side" if unit[0] == unit[1] else f"the {names[1 if unit[0] else 0]}"
    return Tried(
        name="length",
        told=f"{told}; {which} does not normalize",
        advice="normalize on both sides, or compare by cosine, for which lengths do not count",
        before=before,
        after=before,
        verdict="explains it" if before <= ROUNDING else "part of it",
    )


def _on_dimensions(plain: Vectors, theirs: Vectors, before: float) -> Tried:
    """Whether dimensions are cut off, or in another order; the order is found on half of the texts."""
    if plain.shape[1] != theirs.shape[1]:
        widths = sorted((plain.shape[1], theirs.shape[1]))
        told = f"{widths[0]} and {widths[1]} dimensions"
        advice = "cut both to the same number of dimensions, and normalize again"
        judged = _judged("dimensions", told, advice, 1.0, _angles(plain, theirs))
        return (
            judged if judged.verdict != "does not" else Tried(name="dimensions", told=told, before=before, after=before)
        )
    if before <= ROUNDING:
        return Tried(name="dimensions", told="in the same order", before=before, after=before)
    half = np.arange(len(plain)) % 2 == 0
    left, right = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-30) for part in (plain, theirs))
    order = linear_sum_assignment(cdist(left[half].T, right[half].T))[1]
    again = np.empty_like(plain)
    again[:, order] = plain
    judged = _judged(
        "dimensions",
        "in another order",
        "put the dimensions of one side in the order of the other",
        float(_angles(plain[~half], theirs[~half]).mean()),
        _angles(again[~half], theirs[~half]),
    )
    return judged if judged.verdict != "does not" else replace(judged, told="no other order comes nearer")
