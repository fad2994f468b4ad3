"""The kind of a model, from its settings alone; no weights are loaded."""

from pathlib import Path
from typing import Any, Literal

from quantdrift.base.display import first_line, shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import read_json
from quantdrift.kinds.encoder import KINDS, USUAL, EncoderKind, Use
from quantdrift.models.files.named import ModelSource

ClassifierKind = Literal["text", "image"]
"""What a classifier takes."""

_BY_ARCHITECTURE: dict[str, ClassifierKind] = {"ForSequenceClassification": "text", "ForImageClassification": "image"}
_WRITES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_MAX_JSON = 1 << 26
"""Bytes of a model's settings; a list of the weights of the largest models takes a tenth."""


def kind_of(source: ModelSource, use: Use, revision: str | None = None) -> EncoderKind:
    """The kind of a model for a use; where a hub does not answer the usual one, whose loading says so.

    Raises:
        UnsupportedError: a model of its kind is not for this use.
    """
    usual = KINDS[USUAL[use]]
    try:
        actual = next((kind for kind in KINDS.values() if use in kind.uses and kind.is_of(source, revision)), None)
        if actual is None:
            actual = next((kind for kind in KINDS.values() if kind.is_of(source, revision)), usual)
    except UnsupportedError:
        if use == "classes":
            raise
        return usual
    return actual if use in actual.uses else _wanted(source, actual, usual, revision)


def check_kind(source: ModelSource, name: str, revision: str | None = None) -> None:
    """Refuse a model of another kind than that of a name."""
    actual = next((kind for kind in KINDS.values() if kind.is_of(source, revision)), KINDS[name])
    _wanted(source, actual, KINDS[name], revision)


def check_saved(source: ModelSource, revision: str | None = None) -> None:
    """Refuse a model whose candidates `quantdrift quantize` does not write."""
    if not (kind := kind_of(source, "search", revision)).can_save:
        raise UnsupportedError(
            f"{source.name} is {kind.what}; quantize writes models of sentence-transformers, in their own format"
        )


def _wanted(source: ModelSource, kind: EncoderKind, wanted: EncoderKind, revision: str | None) -> EncoderKind:
    if kind is not wanted:
        refuse_language_model(source, revision)
        raise UnsupportedError(f"{source.name} is {kind.what}; these data take {wanted.what}")
    return kind


# --- what a model is ------------------------------------------------------------------------------


def classifier_kind(source: ModelSource, revision: str | None = None) -> ClassifierKind | None:
    """Tell which kind of classifier a model is, which puts out one logit per class; None for any other model.

    A reranker, a sequence classifier of one class, counts too: `load_classifier` says what it is.
    """
    named = " ".join(architectures(source, revision))
    kind = next((kind for part, kind in _BY_ARCHITECTURE.items() if part in named), None)
    config = model_json(source, "config.json", revision)
    if kind is None and isinstance(config.get("architecture"), str):  # timm's own layout
        pretrained = config.get("pretrained_cfg")
        inner = pretrained.get("num_classes") if isinstance(pretrained, dict) else None
        kind = None if config.get("num_classes", inner) == 0 else "image"
    # sentence-transformers keeps its embedding models in files of the same names
    if kind is not None and has_modules(source, revision) and saved_as(source, revision) != "CrossEncoder":
        return None
    return kind


def is_cross_encoder(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model scores two texts together: a CrossEncoder that was saved, or a classifier of one class."""
    labels = model_json(source, "config.json", revision).get("id2label")  # there are none where there are two
    if isinstance(labels, dict) and len(labels) == 1 and classifier_kind(source, revision) == "text":
        return True
    return has_modules(source, revision) and saved_as(source, revision) == "CrossEncoder"


def is_embedding_model(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model is neither of these."""
    return not is_cross_encoder(source, revision) and classifier_kind(source, revision) is None


def is_multi_vector(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model makes a vector for every token: of sentence-transformers, PyLate, or transformers' own."""
    if saved_as(source, revision) in {"MultiVectorEncoder", "ColBERT"}:
        return True
    return is_native_multi_vector(source, revision) and not has_modules(source, revision)


def is_native_multi_vector(source: ModelSource, revision: str | None = None) -> bool:
    """Whether transformers itself makes a vector for every token, as of ColPali."""
    return any(name.endswith("ForRetrieval") for name in architectures(source, revision))


def is_sparse(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model gives terms a weight: what sentence-transformers saved as a SparseEncoder, or is named so."""
    return source.read_as == "sparse:" or saved_as(source, revision) == "SparseEncoder"


def writes_text(source: ModelSource, revision: str | None = None) -> str | None:
    """The class of a language model of which no file says what is read beside its next token; None for any other."""
    writing = [name for name in architectures(source, revision) if name.endswith(_WRITES)]
    return shown(writing[0]) if writing and not has_modules(source, revision) else None


def refuse_language_model(source: ModelSource, revision: str | None = None) -> None:
    """Refuse a model whose head would be left out and whose states would be averaged, which nobody asked for."""
    if kind := writes_text(source, revision):
        raise UnsupportedError(
            f"{source.name} is a {kind}, a language model, and has no modules.json that makes a reranker or an "
            "embedding model of it; expected a folder that CrossEncoder.save_pretrained or "
            "SentenceTransformer.save_pretrained wrote (how: docs/guides/other-models.md, Rerankers), or a newer "
            "revision, which may have one"
        )


# --- what its files say ---------------------------------------------------------------------------


def architectures(source: ModelSource, revision: str | None = None) -> list[str]:
    """The classes of transformers that the config.json of a model names."""
    named = model_json(source, "config.json", revision).get("architectures")
    return [str(name) for name in named] if isinstance(named, list) else []


def saved_as(source: ModelSource, revision: str | None = None) -> str:
    """The class of sentence-transformers that saved a model; empty where none did."""
    return str(model_json(source, "config_sentence_transformers.json", revision).get("model_type") or "")


def has_modules(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model says how tokens become an embedding or a score (modules.json)."""
    return bool(model_json(source, "modules.json", revision))


def model_json(source: ModelSource, file: str, revision: str | None = None) -> dict[str, Any]:
    """Read a JSON file of a model; a list becomes {"": list}, no file an empty dict."""
    on_hub = source.kind == "hub"
    path = _from_hub(source, file, revision) if on_hub else Path(source.location) / file
    if path is None or not (on_hub or path.is_file()):
        return {}
    try:
        content = read_json(path, limit=_MAX_JSON)
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {"": content}


def _from_hub(source: ModelSource, file: str, revision: str | None) -> Path | None:
    """Return the local copy of a file on the hub; None if the model has none of that name."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache  # noqa: PLC0415 -- only for models on the hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError  # noqa: PLC0415 -- as above

    try:
        return Path(hf_hub_download(source.canonical, file, revision=revision))
    except Exception as error:  # the hub's library, and the one below it, have dozens
        unanswered = isinstance(error, LocalEntryNotFoundError)  # which is an EntryNotFoundError, too
        if isinstance(error, EntryNotFoundError) and not unanswered:
            return None
        # what is not here of a model that was downloaded before, it does not have
        kept = unanswered and try_to_load_from_cache(source.canonical, "config.json", revision=revision)
        if file != "config.json" and isinstance(kept, str):
            return None
        raise UnsupportedError(
            f"whether {source.name!r} ({source.canonical}) is a classifier stands in its config.json, "
            f"which cannot be had from the hub: {first_line(error)}{source.otherwise}"
        ) from error
