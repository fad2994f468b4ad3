"""Refusals before anything is loaded: they need no torch, so they take a fraction of a second."""

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import refuse_missing
from quantdrift.builtin.weights import CHOICE
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.data.images import Kind
from quantdrift.data.labelled import ClassificationDataset, Dataset
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES
from quantdrift.models.files.checkpoint import full_precision_source
from quantdrift.models.files.model_files import format_of
from quantdrift.models.files.named import resolve
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import Spec, Versus, calibrates, chooses, is_endpoint, known_options, options_of, parse

# --- options (`+KEY=VALUE`) of a scheme --------------------------------------------------------


def refuse_settings(scheme: Scheme) -> None:
    """Refuse an option that would have no effect."""
    there = [stage for stage in STAGES.values() if stage.in_(scheme)]
    for stage in there:
        if (problem := stage.check(scheme)) is not None:
            raise UnsupportedError(f"{problem}; got {scheme}")
    takes = {"head", "layers", *QUANTIZERS[scheme.quantizer].options}
    others = [
        stage for name, stage in STAGES.items() if name != "weights" and (stage.kind != "layers" or stage in there)
    ]
    takes |= {key for stage in others for key in stage.options}
    takes |= {"calib", "seed"} if calibrates(scheme) else set()
    takes |= {"seed"} if chooses(scheme) or any(stage.uses_seed for stage in there) else set()
    stored = scheme.option("allocation")
    if scheme.criterion is not None:
        takes |= {*CHOICE} if stored is None else {"allocation", "widths"}
    for key, _ in scheme.options:
        if key not in takes:
            why = "" if stored is None else f", whose widths are those of {stored}"
            add = " or add a criterion (+gap)," if key in CHOICE and not scheme.criterion else ""
            raise UnsupportedError(
                f"+{key}= has no effect on {scheme}{why}, which takes {', '.join(sorted(takes))};{add} leave it out"
            )
    backend, packages = scheme.option("backend"), [package.name for package in QUANTIZERS[scheme.quantizer].packages]
    if backend is not None and backend not in packages:
        raise UnsupportedError(f"{backend} does no {scheme.quantizer}; expected +backend={' or '.join(packages)}")


def refuse_missing_library(scheme: Scheme) -> None:
    """Refuse a scheme whose quantizer needs a package that is not installed."""
    packages, backend = QUANTIZERS[scheme.quantizer].packages, scheme.option("backend")
    named = [package for package in packages if package.name == backend]
    refuse_missing(named or packages[:1], needed_for=str(scheme))


# --- pairs, specs and data ------------------------------------------------------------------------


def check_pair(pair: Spec | Versus, dataset: Dataset, *, reranks: bool = False, loaded: bool = False) -> None:
    """Refuse a pair that cannot be measured on these data."""
    classes = isinstance(dataset, ClassificationDataset)
    if isinstance(dataset, RetrievalDataset) and "image" in dataset.kinds:
        if reranks:
            raise UnsupportedError(f"a cross-encoder reads texts, and {dataset.name} has images; leave --shortlist out")
        if isinstance(pair, Versus) and pair.on_server:
            raise UnsupportedError(f'"{pair}": a server is sent texts alone, and {dataset.name} has images')
    if isinstance(pair, Versus) and (classes or reranks) and (loaded or pair.on_server):
        where = "in memory" if loaded else "on a server"
        what = "with a shortlist takes two rerankers" if reranks else "on classification data takes two classifiers"
        raise UnsupportedError(
            f'"{pair}" {what} by name (folders, an ONNX file, the hub), not models {where}; expected these, '
            f"MODEL@SCHEME, or {'no shortlist' if reranks else 'data in BEIR layout'}"
        )
    check_named(pair, loaded=loaded)
    if isinstance(pair, Versus):
        return
    if isinstance(dataset, ClassificationDataset):
        refuse_for_classes(pair, dataset.kind)
    elif reranks:
        refuse_for_reranking(pair.scheme)


def check_named(pair: Spec | Versus, *, loaded: bool = False) -> None:
    """Refuse a pair that cannot be measured on any data, before data are read."""
    if isinstance(pair, Spec):
        check_spec(pair, loaded=loaded)
        return
    for name in () if loaded else (pair.reference, pair.candidate):
        if not is_endpoint(name) and format_of(name) is None:
            resolve(name)


def check_spec(spec: Spec, *, loaded: bool = False) -> None:
    """Refuse a spec that cannot be measured on any data."""
    refuse_settings(spec.scheme)
    refuse_missing_library(spec.scheme)
    calibration_texts(spec.scheme)
    for stage in STAGES.values():
        if stage.in_(spec.scheme):
            stage.refuse(spec.scheme)
    if not loaded:
        full_precision_source(spec.model)


def read_candidate(text: str, *, has_data: bool) -> Spec:
    """Read a spec whose candidate is a model that can be made, with or without data to calibrate on."""
    spec = parse(text)
    if spec.scheme.query_only or options_of(spec.scheme, "vectors"):
        raise UnsupportedError(f"{spec}: expected a candidate that is a model; leave what is stored and +query out")
    check_spec(spec)
    refuse_uncalibrated(spec, has_data=has_data)
    return spec


def refuse_uncalibrated(spec: Spec, *, has_data: bool) -> None:
    """Refuse a calibrated scheme if there is nothing to calibrate on."""
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
    """Refuse options about batches if a harness forms the batches."""
    if wrong := [key for key, _ in scheme.options if known_options()[key].sets_batches]:
        raise UnsupportedError(f"{scheme}: +{wrong[0]}= is for quantdrift run: {why}; leave it out")


def refuse_in_batches(pair: Spec | Versus, *, searches: bool) -> None:
    """Refuse a pair whose inputs are not answered one after another, so that stopping early would spare little."""
    spared = pair.on_server if isinstance(pair, Versus) else pair.scheme.query_only
    scheme = pair.scheme if isinstance(pair, Spec) else None
    problems = {
        "its index is made of all documents": scheme is not None and options_of(scheme, "vectors"),
        "the candidate, too, encodes all documents": searches and not spared,
        "its criterion looks at all inputs (quantdrift allocate does so before)": scheme is not None
        and chooses(scheme),
    }
    if problem := next((problem for problem, wrong in problems.items() if wrong), None):
        raise UnsupportedError(
            f"{pair}: {problem}, so that stopping early spares little. Leave --sequential out; it is for classes, for "
            "rerankers, for models on servers, and for searches with the query side alone quantized (+query)"
        )


def refuse_deployment(scheme: Scheme, why: str) -> None:
    """Refuse options about stored embeddings and indexes where a model has none."""
    if wrong := options_of(scheme, "vectors"):
        raise UnsupportedError(f"{scheme}: {', '.join(wrong)} is of searches over embeddings, and {why}; leave it out")


def refuse_for_reranking(scheme: Scheme) -> None:
    """Refuse a scheme that has no meaning for a reranker."""
    refuse_deployment(scheme, "a cross-encoder makes no embeddings")
    if scheme.query_only or chooses(scheme):
        what = "+query" if scheme.query_only else f"the criterion {scheme.criterion}"
        raise UnsupportedError(
            f"{scheme}: {what} needs embeddings of queries and documents, and a cross-encoder reads both together; "
            "expected one width for all layers, such as W4, or an allocation of this model (+allocation=FILE)"
        )
