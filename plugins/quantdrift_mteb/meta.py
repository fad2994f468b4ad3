"""Makes a ModelMeta that loads a pair from `MODEL@SCHEME`."""

from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions, version
from typing import Any

from mteb.models import CrossEncoderWrapper, MultiVectorWrapper, SentenceTransformerEncoderWrapper, SparseEncoderWrapper
from mteb.models.model_meta import ModelMeta

from quantdrift.asking.ask import files_of, stamp_of
from quantdrift.base.display import in_one_line
from quantdrift.base.errors import UnsupportedError
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.candidate.pair import methods_of
from quantdrift.metrics.keys import harness_metrics
from quantdrift.models.files.checkpoint import full_precision_source
from quantdrift.models.files.kinds import is_cross_encoder, is_multi_vector, is_sparse, model_json
from quantdrift.models.files.named import ModelSource
from quantdrift.models.files.packaged import PACKAGED
from quantdrift.models.layers import modules_of
from quantdrift.models.loading import Reads, loading, try_text
from quantdrift.models.vetting import refuse_unsaid_pooling
from quantdrift.spec.grammar import Spec
from quantdrift_mteb.pairs import make_pair

KINDS: Mapping[str, tuple[Any, str, Callable[[ModelSource], bool]]] = {
    "SentenceTransformer": (SentenceTransformerEncoderWrapper, "dense", lambda _: True),
    "CrossEncoder": (CrossEncoderWrapper, "cross-encoder", is_cross_encoder),
    "MultiVectorEncoder": (MultiVectorWrapper, "late-interaction", is_multi_vector),
    "SparseEncoder": (SparseEncoderWrapper, "sparse", is_sparse),
}
"""Class of sentence-transformers to mteb's loader, mteb's word for it, and a test of folders; the last fit counts."""
GetModelMeta = Callable[..., ModelMeta]


class PairMeta(ModelMeta):
    """Metadata of a pair; requirements are checked when the model is loaded."""

    def _check_requirements(self) -> None:
        # mteb's check names the pair and ends in a traceback; that of the base model counts
        return


def pair_meta(
    spec: Spec,
    revision: str | None,
    get_model_meta: GetModelMeta,
    *,
    experiment_kwargs: Mapping[str, Any] | None = None,
) -> ModelMeta:
    """Return the base model's metadata under the pair's name."""
    methods_of(spec.scheme)
    harness_metrics()  # a misspelt name is refused now, not after hours
    calibration_texts(spec.scheme)  # likewise
    source = full_precision_source(spec.model)
    base = _base_meta(source, revision, get_model_meta)
    name, digests = str(base.name), [digest[:12] for digest in files_of(spec).values()]
    fields = {
        **dict(base),
        "name": f"quantdrift/{name.replace('/', '__')}@{spec.scheme}",
        "adapted_from": name,
        "loader": _loader(spec, source, base),
        "loader_kwargs": {},
        # mteb reuses a result of the same name and revision, whatever the files hold now
        "revision": "-".join([str(base.revision), *digests]) if digests else base.revision,
        "superseded_by": None,
        "experiment_kwargs": base.experiment_kwargs if experiment_kwargs is None else experiment_kwargs,
    }
    return PairMeta.model_construct(**fields)


def _base_meta(source: ModelSource, revision: str | None, get_model_meta: GetModelMeta) -> ModelMeta:
    if source.kind == "hub":
        return _hub_meta(source.canonical, revision, get_model_meta)
    if revision is not None:
        raise UnsupportedError(
            f"{source.name} is the folder {source.location}, which has no revision {revision!r}; leave it out"
        )
    if source.kind == "local":
        return local_meta(source)
    packaged = PACKAGED[source.name.rpartition(":")[2].lower()]
    distribution = packages_distributions()[packaged.packages[0]][0]
    revision = f"{distribution}-{version(distribution)}"
    return get_model_meta(source.canonical).model_copy(update={"revision": revision})


def _hub_meta(name: str, revision: str | None, get_model_meta: GetModelMeta) -> ModelMeta:
    with in_one_line(f"mteb has no model {name!r} of this revision, nor the hub"):
        meta = get_model_meta(name, revision, fetch_from_hf=True)
    if meta.loader is None:
        raise UnsupportedError(f"neither mteb nor the hub has a model {name!r} that can be loaded")
    if "API" in meta.framework or meta.open_weights is False:
        raise UnsupportedError(f"{name} is served by an API, or not open: its weights are not here to be quantized")
    return meta


def _loader(spec: Spec, source: ModelSource, base: ModelMeta) -> Callable[..., Any]:
    """Return the function that mteb calls to load the pair."""

    def load_quantdrift_pair(name: str, revision: str | None = None, device: str | None = None, **kwargs: Any) -> Any:
        asked = {**base.loader_kwargs, **kwargs}
        trusted = bool(asked.get("trust_remote_code"))
        reads: Reads = "states" if {"dense", "late-interaction"} & {*base.model_type} else "head"
        kind = next((name for name, (_, said, _) in KINDS.items() if said in base.model_type), "SentenceTransformer")
        with loading(source, reads=reads, revision=base.revision, trusted=trusted, kind=kind) as loaded:
            if source.kind == "local" and kind in {"SentenceTransformer", "SparseEncoder"}:
                refuse_unsaid_pooling(source)
            if source.kind == "hub":
                model = base.load_model(device=device, **kwargs)
            else:
                if device is not None:
                    asked["device"] = device
                loader: Any = base.loader
                model = loader(source.location, revision=None, **asked)
                # as load_model does; loading arguments tell embeddings apart
                model.mteb_model_meta = base.model_copy(update={"loader_kwargs": asked})
            for module in modules_of(model):
                if hasattr(module, "modalities"):  # of sentence-transformers
                    loaded.notes += try_text(module, source.name)
        return make_pair(model, spec, source, notes=loaded.notes)

    return load_quantdrift_pair


# --- metadata of a model folder --------------------------------------------------------------------


def local_meta(source: ModelSource) -> ModelMeta:
    """Return metadata of a model in a folder; its loader takes the folder."""
    loader, said = [(loader, said) for loader, said, is_one in KINDS.values() if is_one(source)][-1]
    return ModelMeta.create_empty(
        {
            "name": f"local/{source.canonical}",
            # changes with the files, so that results of other weights are not reused
            "revision": f"local-{stamp_of(source.location)[:12]}",
            "loader": loader,
            "framework": ["Sentence Transformers", "PyTorch"],
            "model_type": [said],
            "modalities": ["text", "image"] if "vision_config" in model_json(source, "config.json") else ["text"],
        }
    )
