"""Whether a model is a classifier, a cross-encoder or neither, from its config.json alone."""

from pathlib import Path
from typing import Any, Literal

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import read_json
from quantdrift.checkpoints.named import ModelSource, first_line

ClassifierKind = Literal["text", "image"]
"""What a classifier takes."""

_BY_ARCHITECTURE: dict[str, ClassifierKind] = {"ForSequenceClassification": "text", "ForImageClassification": "image"}
_WRITES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_MAX_JSON = 1 << 26
"""Bytes of a model's settings; a list of the weights of the largest models takes a tenth."""


def is_classifier(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model puts out one logit per class; no weights are loaded.

    A reranker, a sequence classifier of one class, counts too: `load_classifier` says what it is.
    """
    return classifier_kind(source, revision) is not None


def classifier_kind(source: ModelSource, revision: str | None = None) -> ClassifierKind | None:
    """Tell which kind of classifier a model is; None for any other model."""
    config = model_json(source, "config.json", revision)
    architectures = config.get("architectures")
    named = " ".join(map(str, architectures if isinstance(architectures, list) else ()))
    kind = next((kind for part, kind in _BY_ARCHITECTURE.items() if part in named), None)
    if kind is None and isinstance(config.get("architecture"), str):  # timm's own layout
        pretrained = config.get("pretrained_cfg")
        inner = pretrained.get("num_classes") if isinstance(pretrained, dict) else None
        kind = None if config.get("num_classes", inner) == 0 else "image"
    # sentence-transformers keeps its embedding models in files of the same names
    if kind is not None and model_json(source, "modules.json", revision) and not _saved_as_cross(source, revision):
        return None
    return kind


def is_cross_encoder(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model scores two texts together; no weights are loaded.

    It is what sentence-transformers saved as a CrossEncoder, or a sequence classifier of one class.
    """
    if classifier_kind(source, revision) == "text":
        labels = model_json(source, "config.json", revision).get("id2label")  # there are none where there are two
        if isinstance(labels, dict) and len(labels) == 1:
            return True
    return bool(model_json(source, "modules.json", revision)) and _saved_as_cross(source, revision)


def is_embedding_model(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model is neither of these."""
    return not is_cross_encoder(source, revision) and not is_classifier(source, revision)


def writes_text(source: ModelSource, revision: str | None = None) -> str | None:
    """The class of a language model of which no file says what is read beside its next token; None for any other."""
    named = model_json(source, "config.json", revision).get("architectures")
    writing = [str(name) for name in named if str(name).endswith(_WRITES)] if isinstance(named, list) else []
    return shown(writing[0]) if writing and not model_json(source, "modules.json", revision) else None


def refuse_language_model(source: ModelSource, revision: str | None = None) -> None:
    """Refuse a model whose head would be left out and whose states would be averaged, which nobody asked for."""
    if kind := writes_text(source, revision):
        raise UnsupportedError(
            f"{source.name} is a {kind}, a language model, and has no modules.json that makes a reranker or an "
            "embedding model of it; expected a folder that CrossEncoder.save_pretrained or "
            "SentenceTransformer.save_pretrained wrote (how: docs/guides/other-models.md, Rerankers), or a newer "
            "revision, which may have one"
        )


def is_multi_vector(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model makes a vector for every token: of sentence-transformers, PyLate, or transformers' own."""
    if _saved_as(source, revision) in {"MultiVectorEncoder", "ColBERT"}:
        return True
    named = model_json(source, "config.json", revision).get("architectures")
    architectures = [str(name) for name in named] if isinstance(named, list) else []
    late = any(name.endswith("ForRetrieval") for name in architectures)
    return late and not model_json(source, "modules.json", revision)


def is_sparse(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model gives terms a weight: what sentence-transformers saved as a SparseEncoder, or is named so."""
    return source.read_as == "sparse:" or _saved_as(source, revision) == "SparseEncoder"


def _saved_as_cross(source: ModelSource, revision: str | None) -> bool:
    return _saved_as(source, revision) == "CrossEncoder"


def _saved_as(source: ModelSource, revision: str | None) -> str:
    """The class of sentence-transformers that saved a model; empty where none did."""
    return str(model_json(source, "config_sentence_transformers.json", revision).get("model_type") or "")


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
