"""From `MODEL@SCHEME` to a ModelMeta that loads a pair."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from mteb.models.model_meta import ModelMeta
from mteb.models.sentence_transformer_wrapper import (
    CrossEncoderWrapper,
    SentenceTransformerEncoderWrapper,
)
from quantdrift.spec import Spec, parse

from quantdrift.errors import QuantDriftError, UnsupportedError
from quantdrift.models.aliases import EMBEDDED
from quantdrift.models.resolve import ModelSource, resolve
from quantdrift.quantizers import layer_quantizer
from quantdrift_mteb.pairs import make_pair

__all__ = ["pair_meta"]

GetModelMeta = Callable[..., ModelMeta]


def pair_meta(text: str, revision: str | None, get_model_meta: GetModelMeta) -> ModelMeta:
    """The metadata of a pair: the base model's, under a name of its own.

    Args:
        text: a spec.
        revision: of a hub model; None for the registry's or the newest.
        get_model_meta: mteb's own function.

    Returns:
        Metadata whose name is `quantdrift/ORG__MODEL@SCHEME`, so that results of every scheme have
        a folder and a column of their own.

    Raises:
        QuantDriftError: the spec is wrong, or the model is unknown or cannot be paired.
    """
    spec = parse(text)
    layer_quantizer(spec.scheme)
    source = resolve(spec.model)
    base = _base_meta(source, revision, get_model_meta)
    if "API" in base.framework:
        raise UnsupportedError(
            f"{base.name} is served by an API: its weights are not here to be quantized"
        )
    name = str(base.name)
    return base.model_copy(
        update={
            "name": f"quantdrift/{name.replace('/', '__')}@{spec.scheme}",
            "adapted_from": name,
            "loader": _loader(spec, source, base),
            "loader_kwargs": {},
            "superseded_by": None,
        }
    )


def _base_meta(
    source: ModelSource, revision: str | None, get_model_meta: GetModelMeta
) -> ModelMeta:
    if source.kind == "hub":
        try:
            return get_model_meta(source.canonical, revision, fetch_from_hf=True)
        except QuantDriftError:
            raise
        except Exception as error:  # the hub client has many ways to say no
            raise UnsupportedError(
                f"mteb knows no model {source.canonical!r}, and the hub gave none: "
                f"{_first_line(error)}"
            ) from error
    if source.kind == "embedded":
        package = EMBEDDED[source.name.lower()][0]
        distribution = packages_distributions()[package][0]
        known = get_model_meta(source.canonical)
        revision = f"{distribution}-{version(distribution)}"
        return known.model_copy(update={"revision": revision})
    return ModelMeta.create_empty(
        {
            "name": f"local/{source.canonical}",
            "revision": f"local-{_folder_digest(Path(source.location))}",
            "loader": _local_loader(Path(source.location)),
            "framework": ["Sentence Transformers", "PyTorch"],
        }
    )


def _local_loader(folder: Path) -> Any:
    """A cross-encoder says so in its configuration; everything else is an embedder."""
    if (folder / "modules.json").is_file():
        return SentenceTransformerEncoderWrapper
    config = (folder / "config.json").read_text(encoding="utf-8")
    is_classifier = "ForSequenceClassification" in config
    return CrossEncoderWrapper if is_classifier else SentenceTransformerEncoderWrapper


def _folder_digest(folder: Path) -> str:
    """Changes when a file of the folder does, so that results of other weights are not reused."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            digest.update(f"{path.relative_to(folder)}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()


def _loader(spec: Spec, source: ModelSource, base: ModelMeta) -> Callable[..., Any]:
    """What mteb calls to load the pair."""

    def load_quantdrift_pair(
        name: str, revision: str | None = None, device: str | None = None, **kwargs: Any
    ) -> Any:
        if source.kind == "hub":
            model = _loaded(base, lambda: base.load_model(device=device, **kwargs))
        else:
            arguments = {**base.loader_kwargs, **kwargs}
            if device is not None:
                arguments["device"] = device
            loader: Any = base.loader
            model = _loaded(base, lambda: loader(source.location, revision=None, **arguments))
            if source.kind == "embedded":
                model.mteb_model_meta = base
        return make_pair(model, spec, source)

    return load_quantdrift_pair


def _loaded(base: ModelMeta, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        raise UnsupportedError(f"mteb could not load {base.name}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
