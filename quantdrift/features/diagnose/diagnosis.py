"""Why do two runtimes of one model give different embeddings? Hypotheses are tried by encoding a few texts again.

One side is a sentence-transformers model that can be changed; the other stays as it is, whatever runs it. A hypothesis
changes the first in one way (other pooling, a prompt, no [CLS], fewer tokens) and looks whether the difference goes
away. What no hypothesis explains is what quantization, a number type or kernels did.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.display import note
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.engine.encoders.sentence import SentenceEncoder
from quantdrift.engine.encoders.server import EndpointEncoder
from quantdrift.engine.encoders.server_client import OneInputError
from quantdrift.engine.pair import Model
from quantdrift.engine.weights import restoring

Vectors = NDArray[np.float32]
Floats = NDArray[np.float64]
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
        text: changes every text; str leaves it as it is.
    """

    told: str
    advice: str
    change: Callable[[], object] | None = None
    text: Callable[[str], str] = str


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
        shortest: the shortest beginning of the text that differs most, of which the embeddings differ; empty if none.
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
    shortest: str


def chosen_texts(dataset: RetrievalDataset, n: int) -> dict[str, list[str]]:
    """Queries and documents from the shortest to the longest, one longer than any limit, and some in capitals."""

    def spread(texts: Sequence[str], many: int) -> list[str]:
        ordered = sorted({text for text in texts if text.strip()}, key=lambda text: (len(text), text))
        places = np.unique(np.linspace(0, len(ordered) - 1, min(many, len(ordered))).astype(int)) if ordered else []
        return [ordered[place] for place in places]

    queries = spread(dataset.queries, max(2, n // 3))
    documents = spread(dataset.documents, max(4, n - len(queries) - 4))
    if not queries or not documents:
        raise UnsupportedError(f"{dataset.name} has no text to encode; expected queries and documents")
    capitals = [text.upper() for text in documents[:: max(1, len(documents) // 3)]][:3]
    return {"query": queries, "document": [*documents, *capitals, " ".join(documents[-2:] * 4)]}


def taken(server: Model, texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """The texts that a server takes; llama.cpp refuses what others cut, and that is told."""

    def takes(text: str, role: str) -> bool:
        try:
            server.encode([text], role, 1)
        except OneInputError as error:
            note(f"a text of {len(text):,} characters is left out: {error.reason}")
            return False
        return True

    return {role: [text for text in part if takes(text, role)] for role, part in texts.items()}


def _encoded(model: Model, texts: dict[str, list[str]], batch_size: int, change: Callable[[str], str] = str) -> Vectors:
    """The embeddings of queries and documents, float32 [n_texts, dim]."""
    parts = [model.encode([change(text) for text in part], role, batch_size) for role, part in texts.items()]
    return np.concatenate(parts).astype(np.float32)


@contextmanager
def _undone(model: Any) -> Iterator[None]:
    """Inside, a sentence-transformers model may be changed; its tokenizer is put back as well."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    processor, limit = getattr(backend, "post_processor", None), model.max_seq_length
    with restoring(model):
        try:
            yield
        finally:
            model.max_seq_length = limit  # the tokenizer has it
            if backend is not None:
                backend.post_processor = processor


# --- the hypotheses: what may differ, of a model and of what the other side is called -------------


def _prompts(model: Any, other: str) -> Iterator[Variant]:
    def asked(query: str, document: str) -> Callable[[], object]:
        return partial(setattr, model, "prompts", {"query": query, "document": document})

    prompts = (model.prompts.get("query") or "", model.prompts.get("document") or "")
    if any(prompts):
        advice = f"send the model's prompts: {prompts[0]!r} before queries and {prompts[1]!r} before documents"
        yield Variant(told=f"{other} has no prompts", advice=advice, change=asked("", ""))
        swapped = asked(prompts[1], prompts[0])
        yield Variant(told="prompts of the other role", advice="swap the prompts", change=swapped)
    for query, document in _PROMPTS:
        if (query, document) != prompts:
            told = f"{other} puts {query!r} and {document!r} before texts"
            yield Variant(told=told, advice="let both sides use the same prompts", change=asked(query, document))


def _pooling(model: Any, other: str) -> Iterator[Variant]:
    pooling = next((part for part in model if hasattr(part, "pooling_mode")), None)
    if pooling is None:
        raise UnsupportedError("the model has no pooling of sentence-transformers")
    advice = f"set {other}'s pooling to {pooling.pooling_mode} (llama.cpp: --pooling)"
    for mode in ("mean", "cls", "lasttoken", "max"):
        if mode != pooling.pooling_mode:
            change = partial(setattr, pooling, "pooling_mode", mode)
            yield Variant(told=f"{other} pools by {mode}", advice=advice, change=change)


def _special_tokens(model: Any, other: str) -> Iterator[Variant]:
    from tokenizers.processors import TemplateProcessing  # noqa: PLC0415 -- a part of transformers

    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedError("the tokenizer is not a fast one, whose special tokens can be changed")
    around, plain = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    at = around.index(plain[0])
    first, last = (
        list(map(str, tokenizer.convert_ids_to_tokens(ids))) for ids in (around[:at], around[at + len(plain) :])
    )
    of_model = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.cls_token, tokenizer.sep_token)
    names = [name for name in of_model if name]
    templates = {
        f"{other} lacks {' and '.join([*first, *last])}": ([], []),
        f"{other} lacks {' '.join(first)} before": ([], last),
        f"{other} lacks {' '.join(last)} behind": (first, []),
        **{f"{other} has another {name} behind": (first, [*last, name]) for name in names},
        **{f"{other} has another {name} before": ([name, *first], last) for name in names},
    }
    advice = f"let {other} add {' '.join([*first, 'TEXT', *last])}, as the model was trained with"
    for told, (before, after) in templates.items():
        if (before, after) != (first, last):
            special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in dict.fromkeys([*before, *after])]
            template = " ".join([*before, "$A", *after])
            processor = TemplateProcessing(single=template, pair=f"{template} $B", special_tokens=special)
            yield Variant(told=told, advice=advice, change=partial(setattr, backend, "post_processor", processor))


def _truncation(model: Any, other: str) -> Iterator[Variant]:
    limit = model.max_seq_length
    if not limit:
        raise UnsupportedError("the model has no length limit")
    # more than a model's positions cannot be encoded
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    most = getattr(config, "max_position_embeddings", limit)
    advice = f"set {other}'s limit to {limit} tokens"
    for length in dict.fromkeys([limit - 1, limit - 2, limit + 1, limit + 2, *_LENGTHS]):
        if 2 < length <= most and length != limit:  # noqa: PLR2004 -- special tokens
            told = f"{other} cuts texts at {length} tokens, this one at {limit}"
            yield Variant(told=told, advice=advice, change=partial(setattr, model, "max_seq_length", length))


def _case(model: Any, other: str) -> Iterator[Variant]:
    del model
    advice = "let both sides lower-case, as the model's tokenizer says"
    yield Variant(told=f"{other} lower-cases texts", advice=advice, text=str.lower)


def _modules(model: Any, other: str) -> Iterator[Variant]:
    dense = [name for name, part in model.named_children() if type(part).__name__ == "Dense"]
    if not dense:
        raise UnsupportedError("the model has no Dense module that could be missing")

    def without() -> None:
        for name in dense:
            del model._modules[name]

    advice = f"{other} lacks the Dense module of the model; use a runtime that has it"
    yield Variant(told=f"{other} has no Dense module", advice=advice, change=without)


HYPOTHESES: dict[str, Callable[[Any, str], Iterator[Variant]]] = {
    "prompt": _prompts,
    "pooling": _pooling,
    "special tokens": _special_tokens,
    "truncation": _truncation,
    "case": _case,
    "modules": _modules,
}

# --- comparing ------------------------------------------------------------------------------------


def _angles(mine: Vectors, theirs: Vectors) -> Floats:
    """1 - cosine of every text; of vectors of different lengths, of the dimensions that both have."""
    width = min(mine.shape[1], theirs.shape[1])
    cosines = (_unit(mine[:, :width]) * _unit(theirs[:, :width])).sum(axis=1)
    return np.asarray(1 - cosines).clip(min=0)


def _unit(vectors: Vectors) -> Floats:
    wide = vectors.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-30))


def _first(vectors: Vectors, n_queries: int) -> NDArray[np.int64]:
    unit = _unit(vectors)
    return np.asarray((unit[:n_queries] @ unit[n_queries:].T).argmax(axis=1))


def _judged(name: str, told: str, advice: str, before: float, angles: Floats) -> Tried:
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
    for side in (reference, candidate):
        if isinstance(side, EndpointEncoder):
            texts = taken(side, texts)
    n_queries = len(texts["query"])
    changed, mine, unchanged = _sides(reference, candidate)
    other = "the reference" if changed == "candidate" else "the candidate"
    with progress.stage("encoding with both", 2) as tell:
        theirs = _encoded(unchanged, texts, batch_size)
        tell(1)
        plain = best = _encoded(mine or reference, texts, batch_size)
        tell(1)
    angles = _angles(plain, theirs)
    before = float(angles.mean())
    lengths, on_lengths = _on_lengths(plain, theirs, before, f"the {changed or 'reference'}", other)
    tried, found = [on_lengths, _on_dimensions(plain, theirs, before)], list[Tried]()
    if mine is None:
        why = "neither side is a model that can be changed here"
        tried += [Tried(name=name, why_not=why) for name in HYPOTHESES]
    elif before > ROUNDING:

        def under(variants: Sequence[Variant]) -> tuple[Vectors, Floats]:
            """What the changed side makes of the texts under some variants, and 1 - cosine of each."""
            with _undone(mine.model):
                for variant in variants:
                    if variant.change is not None:
                        variant.change()
                vectors = _encoded(mine, texts, batch_size, lambda text: reduce(_changed, variants, text))
            return vectors, _angles(vectors, theirs)

        by_change, found, best = _searched(mine.model, other, under, before, progress)
        tried += by_change
    for by_vectors in tried[:2]:
        if by_vectors.verdict == "explains it" or (by_vectors.verdict == "part of it" and not found):
            found.append(by_vectors)
    changes = [int((_first(part, n_queries) != _first(theirs, n_queries)).sum()) for part in (plain, best)]
    role, text = [(role, text) for role, part in texts.items() for text in part][int(angles.argmax())]
    cut = next((cause.after for cause in found if cause.name == "dimensions"), None)
    return Diagnosis(
        n=len(plain),
        changed=changed,
        before=before,
        worst=float(angles.max()),
        lengths=lengths,
        first=(changes[0], changes[1]),
        n_queries=n_queries,
        tried=tuple(tried),
        found=tuple(found),
        left=float(_angles(best, theirs).mean()) if cut is None else cut,
        shortest=_shortest((mine or reference, unchanged), text, role) if before > ROUNDING else "",
    )


def _sides(reference: Model, candidate: Model) -> tuple[str, SentenceEncoder | None, Model]:
    """What the side that is changed is called, that side, and the other."""
    for name, side, other in (("reference", reference, candidate), ("candidate", candidate, reference)):
        if isinstance(side, SentenceEncoder) and hasattr(side.model[0], "tokenizer"):
            return name, side, other
    return "", None, candidate


def _changed(text: str, variant: Variant) -> str:
    return variant.text(text)


def _searched(
    model: Any,
    other: str,
    under: Callable[[Sequence[Variant]], tuple[Vectors, Floats]],
    before: float,
    progress: Progress,
) -> tuple[list[Tried], list[Tried], Vectors]:
    """Every hypothesis by itself; what explains most, and what explains most of the rest together with it."""
    variants: dict[str, list[Variant]] = {}
    tried: dict[str, Tried] = {}
    for name, make in HYPOTHESES.items():
        try:
            variants[name] = list(make(model, other))
        except UnsupportedError as error:
            tried[name] = Tried(name=name, why_not=str(error))
    together: list[Variant] = []
    found: list[Tried] = []
    best, _ = under([])
    while variants and len(found) < _MOST and (not found or found[-1].after > ROUNDING):
        now = found[-1].after if found else before
        nearest: dict[str, tuple[Tried, Variant, Vectors]] = {}
        with progress.stage("trying", sum(map(len, variants.values()))) as tell:
            for name, every in variants.items():
                for variant in every:
                    vectors, angles = under([*together, variant])
                    judged = _judged(name, variant.told, variant.advice, now, angles)
                    if name not in nearest or judged.after < nearest[name][0].after:
                        nearest[name] = replace(judged, ways=0 if found else len(every)), variant, vectors
                    tell(1)
        if not found:
            tried |= {name: judged for name, (judged, _, _) in nearest.items()}
        cause, variant, vectors = min(nearest.values(), key=lambda result: result[0].after)
        if cause.verdict == "does not":
            break
        found.append(replace(cause, ways=0))
        together.append(variant)
        best = vectors
        del variants[cause.name]
    return [tried[name] for name in HYPOTHESES if name in tried], found, best


def _on_lengths(plain: Vectors, theirs: Vectors, before: float, name: str, other: str) -> tuple[float, Tried]:
    """By how much vectors differ in length, and whether that is all."""
    width = min(plain.shape[1], theirs.shape[1])
    norms = [np.linalg.norm(part[:, :width], axis=1) for part in (plain, theirs)]
    lengths = float(np.mean(np.abs(norms[0] - norms[1]) / np.maximum(norms[1], 1e-30)))
    alike = Tried(name="length", told="vectors are equally long", before=before, after=before)
    if lengths <= _SAME_LENGTH:
        return lengths, alike
    told = f"vectors differ in length by {100 * lengths:.1f} %"
    unit = [bool(np.allclose(part, 1, atol=1e-2)) for part in norms]
    if before > ROUNDING and unit[0] == unit[1]:  # other directions come with other lengths
        return lengths, replace(alike, told=told)
    which = "one side" if unit[0] == unit[1] else other if unit[0] else name
    return lengths, replace(
        alike,
        told=f"{told}; {which} does not normalize",
        advice="normalize on both sides, or compare by cosine, for which lengths do not count",
        verdict="explains it" if before <= ROUNDING else "part of it",
    )


def _on_dimensions(plain: Vectors, theirs: Vectors, before: float) -> Tried:
    """Whether dimensions are cut off."""
    same = Tried(name="dimensions", told="as many", before=before, after=before)
    if plain.shape[1] != theirs.shape[1]:
        widths = sorted((plain.shape[1], theirs.shape[1]))
        told = f"{widths[0]} and {widths[1]} dimensions"
        advice = "cut both to the same number of dimensions, and normalize again"
        judged = _judged("dimensions", told, advice, 1.0, _angles(plain, theirs))
        return judged if judged.verdict != "does not" else replace(same, told=told)
    return same


def _shortest(sides: Sequence[Model], text: str, role: str) -> str:
    """Return the shortest beginning of a text, in words, that both sides embed differently; empty if there is none.

    Found by bisection: what differs at a length is taken to differ at every longer one, as behind a limit.
    """
    words = text.split()
    low, high = 0, len(words) + 1
    while high - low > 1:
        middle = (low + high) // 2
        one, other = (_encoded(side, {role: [" ".join(words[:middle])]}, 1) for side in sides)
        low, high = (low, middle) if _angles(one, other)[0] > ROUNDING else (middle, high)
    return "" if high > len(words) else " ".join(words[:high])
