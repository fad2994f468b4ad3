"""Why do two runtimes of one model give different embeddings? Causes are tried by encoding a few texts again.

One side is a sentence-transformers model that can be changed; the other stays as it is, whatever runs it. A cause
changes the first in one way (other pooling, a prompt, no [CLS], fewer tokens) and looks whether the difference goes
away. What no cause explains is what quantization, a number type or kernels did.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.display import note
from quantdrift.base.progress import Progress
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.candidate.pair import Model
from quantdrift.features.canary.record import moved, units
from quantdrift.models.server import EndpointEncoder
from quantdrift.models.server_client import OneInputError
from quantdrift.models.weights import restoring

Vectors = NDArray[np.float32]
Floats = NDArray[np.float64]
Verdict = Literal["explains it", "part of it", "does not"]
Variant = tuple[str, str, Callable[[], object]]
"""One way in which the first side could differ: what it is, what to do about it, and what changes the model so."""

ROUNDING = 1e-6
"""1 - cosine that float32 in other batches and libraries comes to; MiniLM differs by 1e-12 to 1e-7."""
_PART = 0.25
"""Share of the difference that has to go away for a part of an explanation."""
_MOST = 3
"""Causes that are put together."""
_SAME_LENGTH = 1e-3
"""Relative difference of two lengths that rounding can make; bfloat16 makes up to 4e-3 of single numbers."""
_PROMPTS = (("query: ", "passage: "), ("search_query: ", "search_document: "))
"""Prompts for queries and documents that widely used models were trained with."""
_LENGTHS = (16, 32, 64, 128, 256, 384, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of a cause: of its variants the one that comes nearest.

    Attributes:
        name: of it.
        told: the variant.
        advice: what to do if it is so.
        after: mean 1 - cosine with it.
        verdict: how much of the difference it explains.
    """

    name: str
    told: str
    advice: str
    after: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        n: texts that were encoded.
        changed: the side that was changed: "reference" or "candidate"; "" if none could be.
        before: mean 1 - cosine of both sides.
        worst: largest one.
        tried: every cause by itself.
        found: what explains the difference together, the largest part first.
        left: mean 1 - cosine that is left then.
    """

    n: int
    changed: str
    before: float
    worst: float
    tried: tuple[Tried, ...]
    found: tuple[Tried, ...]
    left: float


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


def _encoded(model: Model, texts: dict[str, list[str]], batch_size: int) -> Vectors:
    """The embeddings of queries and documents, float32 [n_texts, dim]."""
    return np.concatenate([model.encode(part, role, batch_size) for role, part in texts.items()]).astype(np.float32)


@contextmanager
def _undone(model: Any) -> Iterator[None]:
    """Inside, a sentence-transformers model may be changed; its tokenizer is put back as well."""
    backend, limit = getattr(model.tokenizer, "backend_tokenizer", None), model.max_seq_length
    parts = {name: getattr(backend, name) for name in ("post_processor", "normalizer") if backend is not None}
    with restoring(model):
        try:
            yield
        finally:
            model.max_seq_length = limit  # the tokenizer has it
            for name, part in parts.items():
                setattr(backend, name, part)


# --- the causes: what may differ, of a model and of what the other side is called ------------------


def _prompts(model: Any, other: str) -> Iterator[Variant]:
    def asked(query: str, document: str) -> Callable[[], object]:
        return partial(setattr, model, "prompts", {"query": query, "document": document})

    prompts = (model.prompts.get("query") or "", model.prompts.get("document") or "")
    if any(prompts):
        advice = f"send the model's prompts: {prompts[0]!r} before queries and {prompts[1]!r} before documents"
        yield f"{other} has no prompts", advice, asked("", "")
        yield "prompts of the other role", "swap the prompts", asked(prompts[1], prompts[0])
    for query, document in _PROMPTS:
        if (query, document) != prompts:
            told = f"{other} puts {query!r} and {document!r} before texts"
            yield told, "let both sides use the same prompts", asked(query, document)


def _pooling(model: Any, other: str) -> Iterator[Variant]:
    for pooling in [part for part in model if hasattr(part, "pooling_mode")][:1]:
        advice = f"set {other}'s pooling to {pooling.pooling_mode} (llama.cpp: --pooling)"
        for mode in ("mean", "cls", "lasttoken", "max"):
            if mode != pooling.pooling_mode:
                yield f"{other} pools by {mode}", advice, partial(setattr, pooling, "pooling_mode", mode)


def _special_tokens(model: Any, other: str) -> Iterator[Variant]:
    from tokenizers.processors import TemplateProcessing  # noqa: PLC0415 -- a part of transformers

    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # no fast one, whose special tokens could be changed
        return
    around, plain = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    at = around.index(plain[0])
    first, last = map(tokenizer.convert_ids_to_tokens, (around[:at], around[at + len(plain) :]))
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
            yield told, advice, partial(setattr, backend, "post_processor", processor)


def _truncation(model: Any, other: str) -> Iterator[Variant]:
    limit = model.max_seq_length or 0
    # more than a model's positions cannot be encoded
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    most = getattr(config, "max_position_embeddings", limit)
    advice = f"set {other}'s limit to {limit} tokens"
    for length in dict.fromkeys([limit - 1, limit - 2, limit + 1, limit + 2, *_LENGTHS] if limit else []):
        if 2 < length <= most and length != limit:  # noqa: PLR2004 -- special tokens
            told = f"{other} cuts texts at {length} tokens, this one at {limit}"
            yield told, advice, partial(setattr, model, "max_seq_length", length)


def _case(model: Any, other: str) -> Iterator[Variant]:
    from tokenizers.normalizers import Lowercase, Sequence  # noqa: PLC0415 -- a part of transformers

    if backend := getattr(model.tokenizer, "backend_tokenizer", None):
        own = [] if backend.normalizer is None else [backend.normalizer]
        lower = partial(setattr, backend, "normalizer", Sequence([Lowercase(), *own]))
        yield f"{other} lower-cases texts", "let both sides lower-case, as the model's tokenizer says", lower


def _modules(model: Any, other: str) -> Iterator[Variant]:
    dense = [name for name, part in model.named_children() if type(part).__name__ == "Dense"]

    def without() -> None:
        for name in dense:
            del model._modules[name]

    if dense:
        advice = f"{other} lacks the Dense module of the model; use a runtime that has it"
        yield f"{other} has no Dense module", advice, without


CAUSES: dict[str, Callable[[Any, str], Iterator[Variant]]] = {
    "prompt": _prompts,
    "pooling": _pooling,
    "special tokens": _special_tokens,
    "truncation": _truncation,
    "case": _case,
    "modules": _modules,
}

# --- comparing ------------------------------------------------------------------------------------


def _moved(mine: Vectors, theirs: Vectors) -> tuple[Floats, Floats]:
    """1 - cosine of every text, and by what lengths differ; of the dimensions that both have."""
    width = min(mine.shape[1], theirs.shape[1])
    _, turned, ratios = moved(theirs[:, :width], mine[:, :width])
    return turned, np.abs(ratios - 1)


def _verdict(before: float, after: float) -> Verdict:
    if after <= ROUNDING < before:
        return "explains it"
    return "part of it" if after <= (1 - _PART) * before else "does not"


def diagnose(
    reference: Model, candidate: Model, texts: dict[str, list[str]], *, batch_size: int, progress: Progress
) -> Diagnosis:
    """Try every cause by itself, and then what explains most together.

    Args:
        reference: one side.
        candidate: the other; of two that can be changed, the reference is.
        texts: queries and documents, by their role.
        batch_size: inputs per forward pass or request.
        progress: where progress is shown.
    """
    for side in (reference, candidate):
        if isinstance(side, EndpointEncoder):
            texts = taken(side, texts)
    changed, mine, unchanged = _sides(reference, candidate)
    theirs = _encoded(unchanged, texts, batch_size)
    plain = _encoded(mine or reference, texts, batch_size)
    angles, lengths = _moved(plain, theirs)
    before = left = float(angles.mean())
    by_vectors = list(_on_vectors(plain, theirs, before, float(lengths.mean())))
    nearest, found = dict[str, Tried](), list[Tried]()
    together, variants = list[Callable[[], object]](), list[tuple[str, Variant]]()
    if mine is not None:
        other = "the reference" if changed == "candidate" else "the candidate"
        variants = [(name, variant) for name, make in CAUSES.items() for variant in make(mine.model, other)]
    while mine is not None and variants and left > ROUNDING and len(found) < _MOST:
        results = []
        with progress.stage("trying", len(variants)) as tell:
            for name, (told, advice, change) in variants:
                with _undone(mine.model):
                    for alter in (*together, change):
                        alter()
                    vectors = _encoded(mine, texts, batch_size)
                after = float(_moved(vectors, theirs)[0].mean())
                judged = Tried(name=name, told=told, advice=advice, after=after, verdict=_verdict(left, after))
                results.append((judged, change))
                tell(1)
        results.sort(key=lambda result: result[0].after)
        if not found:
            nearest = {judged.name: judged for judged, _ in reversed(results)}
        cause, change = results[0]
        if cause.verdict == "does not":
            break
        found.append(cause)
        together.append(change)
        left = cause.after
        variants = [variant for variant in variants if variant[0] != cause.name]
    enough = {"explains it"} if found else {"explains it", "part of it"}
    found += [cause for cause in by_vectors if cause.verdict in enough]
    return Diagnosis(
        n=len(plain),
        changed=changed,
        before=before,
        worst=float(angles.max()),
        tried=(*by_vectors, *(nearest[name] for name in CAUSES if name in nearest)),
        found=tuple(found),
        left=left,
    )


def _sides(reference: Model, candidate: Model) -> tuple[str, SentenceEncoder | None, Model]:
    """What the side that is changed is called, that side, and the other."""
    for name, side, other in (("reference", reference, candidate), ("candidate", candidate, reference)):
        if isinstance(side, SentenceEncoder) and hasattr(side.model[0], "tokenizer"):
            return name, side, other
    return "", None, candidate


def _on_vectors(mine: Vectors, theirs: Vectors, before: float, lengths: float) -> Iterator[Tried]:
    """What is read off the vectors: other lengths, of one side that does not normalize, and fewer dimensions."""
    widths = sorted((mine.shape[1], theirs.shape[1]))
    if lengths > _SAME_LENGTH:
        # of two sides that are alike in this, other directions come with other lengths
        one = len({bool(np.allclose(units(part)[1], 1, atol=1e-2)) for part in (mine, theirs)}) > 1
        yield Tried(
            name="length",
            told=f"vectors differ in length by {100 * lengths:.1f} %{'; one side does not normalize' if one else ''}",
            advice="normalize on both sides, or compare by cosine, for which lengths do not count",
            after=before,
            verdict="explains it" if before <= ROUNDING else "part of it" if one else "does not",
        )
    if widths[0] != widths[1]:
        yield Tried(
            name="dimensions",
            told=f"{widths[0]} and {widths[1]} dimensions",
            advice="cut both to the same number of dimensions, and normalize again",
            after=before,
            verdict=_verdict(1.0, before),
        )
