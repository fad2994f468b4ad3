"""What is refused before anything is loaded: without torch, so in a fraction of a second."""

from __future__ import annotations

from quantdrift.base.errors import UnsupportedError, nearest
from quantdrift.base.extras import extras_named
from quantdrift.checkpoints.checkpoint import full_precision
from quantdrift.checkpoints.named import resolve
from quantdrift.data.images import Kind
from quantdrift.data.labelled import ClassificationDataset, Dataset
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.quantizers import QUANTIZERS
from quantdrift.spec.grammar import (
    CODED,
    DEPLOYMENT_KEYS,
    SEARCH_KEYS,
    Scheme,
    Spec,
    Versus,
    calibrates,
    chooses,
    is_endpoint,
)

# --- Which settings (`+KEY=VALUE`) a scheme takes, known without what quantizes it ----------------

_OF_CRITERIA = ("allocation", "queries", "seed", "solver", "units", "widths")
"""Settings of mixed precision."""
_OF_FILES = ("allocation", "widths")
"""Those that a stored allocation leaves open."""
_OF_MODELS = ("head", "table")
"""Settings of what is quantized beside the layers, and of which there are, whatever quantizes them."""


_INDEXES = ("HNSW32", "IVF64,Flat", "IVF64,PQ16", "PQ16", "SQ8", "RaBitQ", "Flat", "OPQ16,PQ16", "usearch")
_DIM = 20_160
"""Dimensions that every usual number of parts divides."""


def refuse_settings(scheme: Scheme) -> None:
    """Refuse a setting that would have no effect."""
    takes = {*QUANTIZERS[scheme.quantizer].options, *_OF_MODELS, *DEPLOYMENT_KEYS} - {"search"}
    if scheme.option("index") is not None:
        takes |= {"search", "seed"}
    elif scheme.option("rescore") is not None and scheme.option("emb") not in CODED:
        raise UnsupportedError(
            f"+rescore= looks again at what codes have found; expected it beside +index= or +emb={', '.join(CODED)}; "
            f"got {scheme}"
        )
    if scheme.activation_bits is not None:
        takes.add("act")
    if calibrates(scheme):
        takes |= {"calib", "seed"}
    stored = scheme.option("allocation")
    if scheme.criterion is not None:
        takes |= set(_OF_CRITERIA if stored is None else _OF_FILES)
    for key, _ in scheme.options:
        if key not in takes:
            why = "" if stored is None else f", whose widths are those of {stored}"
            add = "" if key not in _OF_CRITERIA or key == "seed" or scheme.criterion else " or add a criterion (+gap),"
            raise UnsupportedError(
                f"+{key}= has no effect on {scheme}{why}, which takes {', '.join(sorted(takes))};{add} leave it out"
            )


# --- What is refused before anything is loaded: without torch, so in a fraction of a second -------


def check_pair(pair: Spec | Versus, dataset: Dataset, *, reranks: bool = False, loaded: bool = False) -> None:
    """Refuse a pair that cannot be measured on data of this kind."""
    classes = isinstance(dataset, ClassificationDataset)
    if isinstance(dataset, RetrievalDataset) and "image" in dataset.kinds:
        if reranks:
            raise UnsupportedError(f"a cross-encoder reads texts, and {dataset.name} has images; leave --shortlist out")
        if isinstance(pair, Versus) and pair.on_server:
            raise UnsupportedError(f'"{pair}": a server is sent texts alone, and {dataset.name} has images')
    if isinstance(pair, Versus):
        if classes and (loaded or pair.on_server):
            where = "in memory" if loaded else "on a server"
            raise UnsupportedError(
                f'"{pair}" on classification data takes two classifiers by name (folders, an ONNX file, the hub), not '
                f"models {where}; expected these, MODEL@SCHEME, or data in BEIR layout"
            )
        for name in () if loaded else (pair.reference, pair.candidate):
            if not is_endpoint(name) and not name.lower().endswith((".gguf", ".onnx")):
                resolve(name)
        return
    check_spec(pair, loaded=loaded)
    if isinstance(dataset, ClassificationDataset):
        refuse_for_classes(pair, dataset.kind)
    elif reranks:
        refuse_for_reranking(pair.scheme)


def check_spec(spec: Spec, *, loaded: bool = False) -> None:
    """Refuse a spec that no data can be measured with."""
    refuse_settings(spec.scheme)
    calibration_texts(spec.scheme)
    if (index := spec.scheme.option("index")) is not None:
        refuse_index(index)
    if not loaded:
        full_precision(spec.model)


def refuse_index(name: str) -> None:
    """Refuse an index that faiss' index_factory cannot read, whatever the documents."""
    if name.lower().startswith("usearch"):
        return
    with extras_named(needed_for=f"+index={name}"):
        import faiss  # noqa: PLC0415 -- an optional extra
    try:
        faiss.index_factory(_DIM, name)
    except RuntimeError as error:
        if "could not parse" not in str(error):
            return  # it depends on the documents, and is told when they are there
        near = nearest(name, _INDEXES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected such as {', '.join(_INDEXES[:4])}"
        raise UnsupportedError(f"+index={name} is no index that faiss can make; {hint}") from error


def refuse_uncalibrated(spec: Spec, *, has_data: bool) -> None:
    """Refuse a scheme that is calibrated, where there is nothing to calibrate on."""
    if calibrates(spec.scheme) and not has_data and calibration_texts(spec.scheme) is None:
        raise UnsupportedError(
            f"{spec.scheme.quantizer} is calibrated on documents, and none were given; expected "
            "--data FOLDER, --task NAME, or a file of texts in the scheme (+calib=texts.txt)"
        )


def refuse_for_classes(spec: Spec, kind: Kind) -> None:
    """Refuse a scheme that has no meaning for classification."""
    refuse_deployment(spec.scheme, "classification data have no index")
    if spec.scheme.query_only:
        raise UnsupportedError(
            f"{spec}: +query quantizes the query side of a search alone, and classification has none; leave +query out"
        )
    if calibration_texts(spec.scheme) is not None and kind == "image":
        raise UnsupportedError(
            f"{spec}: +calib= names a file of texts, and the data are images; leave it out to "
            "calibrate on images of the train part, or give their number"
        )


def refuse_batches(scheme: Scheme, why: str) -> None:
    """Refuse what says how texts are put together, where somebody else does that."""
    if wrong := [key for key, _ in scheme.options if key in {"batch", "padding"}]:
        raise UnsupportedError(f"{scheme}: +{wrong[0]}= is for quantdrift run: {why}; leave it out")


def refuse_deployment(scheme: Scheme, why: str) -> None:
    """Refuse stored embeddings and indexes where there are none."""
    if wrong := [key for key, _ in scheme.options if key in SEARCH_KEYS]:
        without = ", ".join(f"+{key}=" for key in wrong)
        raise UnsupportedError(f"{scheme}: {without} is of searches over embeddings, and {why}; leave it out")


def refuse_for_reranking(scheme: Scheme) -> None:
    """Refuse a scheme that has no meaning for a reranker."""
    refuse_deployment(scheme, "a cross-encoder makes no embeddings")
    if scheme.query_only or chooses(scheme):
        what = "+query" if scheme.query_only else f"the criterion {scheme.criterion}"
        raise UnsupportedError(
            f"{scheme}: {what} needs embeddings of queries and documents, and a cross-encoder reads both together; "
            "expected one width for all layers, such as W4, or an allocation of this model (+allocation=FILE)"
        )
