"""The kind of a model, found in its settings without loading weights."""

from pathlib import Path
from typing import Any, Literal

from quantdrift.base.display import first_line, shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import read_json
from quantdrift.kinds.encoder import KINDS, USUAL, EncoderKind, Use
from quantdrift.models.files.named import ModelSource, is_open_clip

ClassifierKind = Literal["text", "image"]
"""The inputs that a classifier takes."""

_BY_ARCHITECTURE: dict[str, ClassifierKind] = {"ForSequenceClassification": "text", "ForImageClassification": "image"}
_WRITES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_MAX_JSON = 1 << 26
"""Most bytes of a settings file; the list of weights of the largest models has a tenth."""


def kind_of(source: ModelSource, use: Use, revision: str | None = None) -> EncoderKind:
    """Return the kind of a model for a use; if the hub does not answer, the usual kind, whose loading then fails.

    Raises:
        UnsupportedError: the kind of the model does not fit this use.
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
    """Refuse a model that is not of the kind with this name."""
    actual = next((kind for kind in KINDS.values() if kind.is_of(source, revision)), KINDS[name])
    _wanted(source, actual, KINDS[name], revision)


def check_saved(source: ModelSource, revision: str | None = None) -> None:
    """Refuse a model of a kind that `quantdrift quantize` does not write."""
    if not (kind := kind_of(source, "search", revision)).can_save:
        raise UnsupportedError(
            f"{source.name} is {kind.what}; quantize writes models of sentence-transformers, in their own format"
        )


def _wanted(source: ModelSource, kind: EncoderKind, wanted: EncoderKind, revision: str | None) -> EncoderKind:
    if kind is not wanted:
        refuse_language_model(source, revision)
        raise UnsupportedError(f"{source.name} is {kind.what}; these data take {wanted.what}")
    return kind


# --- kinds of models ------------------------------------------------------------------------------


def classifier_kind(source: ModelSource, revision: str | None = None) -> ClassifierKind | None:
    """Return the inputs of a classifier, a model with one logit per class; None for any other model.

    A reranker is a classifier with one class and counts, too; `load_classifier` refuses it.
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
    """Say whether a model scores two texts together: a saved CrossEncoder, or a classifier of one class."""
    labels = model_json(source, "config.json", revision).get("id2label")  # files leave them out if there are two
    if isinstance(labels, dict) and len(labels) == 1 and classifier_kind(source, revision) == "text":
        return True
    return has_modules(source, revision) and saved_as(source, revision) == "CrossEncoder"


def is_embedding_model(source: ModelSource, revision: str | None = None) -> bool:
    """Say whether a model is neither a classifier nor a cross-encoder."""
    return not is_cross_encoder(source, revision) and classifier_kind(source, revision) is None


def is_multi_vector(source: ModelSource, revision: str | None = None) -> bool:
    """Say whether a model of sentence-transformers or PyLate makes a vector for every token."""
    return saved_as(source, revision) in {"MultiVectorEncoder", "ColBERT"}


def is_sparse(source: ModelSource, revision: str | None = None) -> bool:
    """Say whether a model gives weights to terms: a saved SparseEncoder, or a name with "sparse:"."""
    return source.read_as == "sparse:" or saved_as(source, revision) == "SparseEncoder"


def writes_text(source: ModelSource, revision: str | None = None) -> str | None:
    """Return the class of a language model without modules.json, which only predicts tokens; None for other models."""
    writing = [name for name in architectures(source, revision) if name.endswith(_WRITES)]
    return shown(writing[0]) if writing and not has_modules(source, revision) else None


def refuse_language_model(source: ModelSource, revision: str | None = None) -> None:
    """Refuse a language model without modules.json, as averaging its states would be a guess."""
    if kind := writes_text(source, revision):
        raise UnsupportedError(
            f"{source.name} is a {kind}, a language model, and has no modules.json that makes a reranker or an "
            "embedding model of it; expected a folder that CrossEncoder.save_pretrained or "
            "SentenceTransformer.save_pretrained wrote (how: docs/guides/other-models.md, Rerankers), or a newer "
            "revision, which may have one"
        )


# --- settings files -------------------------------------------------------------------------------


def architectures(source: ModelSource, revision: str | None = None) -> list[str]:
    """Return the classes of transformers that the config.json of a model names."""
    named = model_json(source, "config.json", revision).get("architectures")
    return [str(name) for name in named] if isinstance(named, list) else []


def saved_as(source: ModelSource, revision: str | None = None) -> str:
    """Return the class of sentence-transformers that saved a model; empty if none did."""
    return str(model_json(source, "config_sentence_transformers.json", revision).get("model_type") or "")


def has_modules(source: ModelSource, revision: str | None = None) -> bool:
    """Say whether a model has a modules.json, which says how tokens become an embedding or a score."""
    return bool(model_json(source, "modules.json", revision))


def model_json(source: ModelSource, file: str, revision: str | None = None) -> dict[str, Any]:
    """Read a JSON file of a model; a list becomes {"": list}, and a missing file an empty dict."""
    on_hub = source.kind == "hub"
    path = _from_hub(source, file, revision) if on_hub else Path(source.location) / file
    if path is None or not (on_hub or path.is_file()):
        return {}
    try:
        content = read_json(path, limit=_MAX_JSON)
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {"": content}


def on_disk(source: ModelSource, file: str, revision: str | None = None) -> Path | None:
    """Return the place of a model's file if it is on this machine; nothing is downloaded."""
    if source.kind != "hub":
        path = Path(source.location) / file
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 -- only for the hub

    kept = try_to_load_from_cache(source.canonical, file, revision=revision)
    return Path(kept) if isinstance(kept, str) else None


def refuse_unreachable(source: ModelSource, revision: str | None) -> None:
    """Refuse a model of the hub whose settings cannot be read, before the libraries that load models are imported."""
    if source.kind == "hub" and not is_open_clip(source, revision):
        has_modules(source, revision)


def _from_hub(source: ModelSource, file: str, revision: str | None) -> Path | None:
    """Return the local copy of a file on the hub; None if the model has none of that name."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache  # noqa: PLC0415 -- only for the hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError  # noqa: PLC0415 -- as above

    try:
        return Path(hf_hub_download(source.canonical, file, revision=revision))
    except Exception as error:  # the libraries of the hub raise dozens of kinds
        unanswered = isinstance(error, LocalEntryNotFoundError)  # a subclass of EntryNotFoundError
        if isinstance(error, EntryNotFoundError) and not unanswered:
            return None
        # of a model that was downloaded before, a file that is not here does not exist
        kept = unanswered and try_to_load_from_cache(source.canonical, "config.json", revision=revision)
        if file != "config.json" and isinstance(kept, str):
            return None
        offline = "HF_HUB_OFFLINE is set, and it was not downloaded before"
        why = offline if unanswered and constants.HF_HUB_OFFLINE else first_line(error).rstrip(".")
        raise UnsupportedError(
            f"the {file} of {source.shown} cannot be read from the hub: {why}{source.otherwise}"
        ) from error
