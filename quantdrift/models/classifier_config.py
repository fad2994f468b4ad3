"""Whether a model is a classifier, from its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from quantdrift.errors import UnsupportedError
from quantdrift.models.named import ModelSource
from quantdrift.records import read_json

ClassifierKind = Literal["text", "image", "audio", "timm"]
"""What a classifier takes; "timm" is an image classifier that timm loads."""

_BY_ARCHITECTURE: dict[str, ClassifierKind] = {
    "ForSequenceClassification": "text",
    "ForImageClassification": "image",
    "ForAudioClassification": "audio",
}
_ST_CONFIG = "config_sentence_transformers.json"
_MAX_JSON = 1 << 26
"""Bytes of a model's settings; a list of the weights of the largest models takes a tenth."""


def is_classifier(source: ModelSource) -> bool:
    """Whether a model puts out one logit per class; no weights are loaded.

    A reranker, a sequence classifier of one class, counts too: `load_classifier` says what it is.

    Args:
        source: where it lies.

    Raises:
        UnsupportedError: the hub cannot be reached, has no such model, or a config.json is broken.
    """
    return classifier_kind(source) is not None


def classifier_kind(source: ModelSource, revision: str | None = None) -> ClassifierKind | None:
    """Which kind of classifier a model is; None for any other model.

    Args:
        source: where it lies.
        revision: of a hub model.

    Raises:
        UnsupportedError: as for `is_classifier`.
    """
    config = model_json(source, "config.json", revision)
    kind = _kind_of(config)
    if kind is None:
        return None
    # sentence-transformers keeps its embedding models in files of the same names
    if model_json(source, "modules.json", revision):
        said = model_json(source, _ST_CONFIG, revision).get("model_type")
        return kind if said == "CrossEncoder" else None
    return kind


def is_cross_encoder(source: ModelSource, revision: str | None = None) -> bool:
    """Whether a model scores two texts together; no weights are loaded.

    It is what sentence-transformers saved as a CrossEncoder, or a sequence classifier of one class.

    Args:
        source: where it lies.
        revision: of a hub model.

    Raises:
        UnsupportedError: as for `is_classifier`.
    """
    if classifier_kind(source, revision) == "text":
        config = model_json(source, "config.json", revision)
        # transformers writes no labels where there are two
        labels = config.get("id2label")
        if isinstance(labels, dict) and len(labels) == 1:
            return True
    if not model_json(source, "modules.json", revision):
        return False
    return bool(model_json(source, _ST_CONFIG, revision).get("model_type") == "CrossEncoder")


def _kind_of(config: Mapping[str, Any]) -> ClassifierKind | None:
    # first, as transformers writes both for a model of timm
    architectures = config.get("architectures")
    for name in architectures if isinstance(architectures, list) else ():
        for part, kind in _BY_ARCHITECTURE.items():
            if part in str(name):
                return kind
    if isinstance(config.get("architecture"), str):  # timm's own layout
        known = config.get("pretrained_cfg")
        inner = known.get("num_classes") if isinstance(known, dict) else None
        n_classes = config.get("num_classes", inner)
        return None if n_classes == 0 else "timm"
    return None


def model_json(source: ModelSource, file: str, revision: str | None = None) -> dict[str, Any]:
    """What a JSON file of a model says; a list becomes {"": list}, no file an empty dict.

    Args:
        source: where the model lies.
        file: path in its folder.
        revision: of a hub model.

    Raises:
        UnsupportedError: it is damaged, or the hub cannot be reached.
    """
    path = Path(source.location) / file
    if source.kind == "hub":
        found = _from_hub(source, file, revision)
        if found is None:
            return {}
        path = found
    elif not path.is_file():
        return {}
    try:
        content = read_json(path, limit=_MAX_JSON)
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {"": content}


def _from_hub(source: ModelSource, file: str, revision: str | None) -> Path | None:
    """Where the hub's file lies here; None if the model has none of that name."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 -- only for models on the hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError  # noqa: PLC0415 -- as above

    try:
        return Path(hf_hub_download(source.canonical, file, revision=revision))
    except LocalEntryNotFoundError as error:  # the hub did not answer; also an EntryNotFoundError
        if file != "config.json" and _is_kept(source, revision):
            return None
        raise _unreachable(source, error) from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreachable(source, error) from error


def _is_kept(source: ModelSource, revision: str | None) -> bool:
    """Whether a hub model was downloaded before, so that what is not here it does not have."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 -- only for models on the hub

    found = try_to_load_from_cache(source.canonical, "config.json", revision=revision)
    return isinstance(found, str)


def _unreachable(source: ModelSource, error: Exception) -> UnsupportedError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UnsupportedError(
        f"whether {source.name!r} ({source.canonical}) is a classifier stands in its config.json, "
        f"which cannot be had from the hub: {first}"
    )
