"""What is refused before anything is loaded: without torch, so in a fraction of a second."""

from __future__ import annotations

from quantdrift.allocation.solver import settings_of
from quantdrift.datasets.labelled import ClassificationDataset, Dataset, Kind
from quantdrift.doctor import CALIBRATED
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.errors import UnsupportedError
from quantdrift.models.checkpoint import full_precision
from quantdrift.models.named import resolve
from quantdrift.spec import Scheme, Spec, Versus, chooses, is_endpoint

# --- Which settings (`+KEY=VALUE`) a scheme takes, known without what quantizes it ----------------

_OPTIONS = {
    "rtn": (),
    "adaround": (),
    "awq": ("backend", "grid"),
    "gptq": ("backend", "grid"),
    "gptq_ao": ("backend", "grid"),
    "hqq": ("backend",),
}
"""Settings that a method itself takes; `calib` and `seed` are the calibration's."""
_OF_CRITERIA = ("allocation", "queries", "seed", "solver", "units", "widths")
"""Settings of mixed precision."""
_OF_FILES = ("allocation", "widths")
"""Those that a stored allocation leaves open."""
_OF_MODELS = ("head",)
"""Settings of which layers there are, whatever quantizes them."""


def settings_taken(scheme: Scheme) -> set[str]:
    """Settings that the method and its calibration take."""
    calibrated = scheme.quantizer in CALIBRATED or scheme.activation_bits is not None
    return {*_OPTIONS[scheme.quantizer], *(("calib", "seed") if calibrated else ())}


def refuse_settings(scheme: Scheme) -> None:
    """Refuse a setting that would have no effect."""
    takes = settings_taken(scheme)
    stored = scheme.option("allocation")
    if scheme.criterion is not None:
        takes |= set(_OF_CRITERIA if stored is None else _OF_FILES)
    for key, _ in scheme.options:
        if key in takes or key in _OF_MODELS:
            continue
        if stored is not None and scheme.criterion is not None and key in _OF_CRITERIA:
            raise UnsupportedError(
                f"+{key}= has no effect on {scheme}: its widths are those of {stored}. Leave it "
                "out, or choose widths anew (quantdrift allocate)"
            )
        if key in _OF_CRITERIA and key != "seed":
            raise UnsupportedError(
                f"+{key}= is a setting of mixed precision, and {scheme} has one width; add a "
                f"criterion, e.g. W3.5-{scheme.quantizer}+gap+{key}=..., or leave it out"
            )
        others = f"it takes {', '.join(sorted(takes))}" if takes else "it takes no setting"
        raise UnsupportedError(f"+{key}= has no effect on {scheme.quantizer}: {others}. Leave it out")


# --- What is refused before anything is loaded: without torch, so in a fraction of a second -------


def check_pair(pair: Spec | Versus, dataset: Dataset, *, reranks: bool = False, loaded: bool = False) -> None:
    """Refuse a pair that cannot be measured on data of this kind."""
    classes = isinstance(dataset, ClassificationDataset)
    if isinstance(pair, Versus):
        if classes:
            raise UnsupportedError(
                f'"{pair}" on classification data is not available; expected MODEL@SCHEME there, '
                "or data in BEIR layout for two models"
            )
        if not loaded and not is_endpoint(pair.reference):
            resolve(pair.reference)
        return
    check_spec(pair, loaded=loaded)
    if isinstance(dataset, ClassificationDataset):
        refuse_for_classes(pair, dataset.kind)
    elif reranks:
        refuse_for_reranking(pair.scheme)


def check_spec(spec: Spec, *, loaded: bool = False) -> None:
    """Refuse a spec that no data can be measured with."""
    refuse_settings(spec.scheme)
    if spec.scheme.criterion is not None:
        settings_of(spec.scheme)
    calibration_texts(spec.scheme)
    if not loaded:
        full_precision(spec.model)


def refuse_for_classes(spec: Spec, kind: Kind) -> None:
    """Refuse a scheme that has no meaning for classification."""
    if spec.scheme.query_only:
        raise UnsupportedError(
            f"{spec}: +query quantizes only the query side of a search, and classification has no "
            "index that could stay at full precision; leave +query out"
        )
    if calibration_texts(spec.scheme) is not None and kind == "image":
        raise UnsupportedError(
            f"{spec}: +calib= names a file of texts, and the data are images; leave it out to "
            "calibrate on images of the train part, or give their number"
        )


def refuse_for_reranking(scheme: Scheme) -> None:
    """Refuse a scheme that has no meaning for a reranker."""
    if scheme.query_only:
        raise UnsupportedError(
            f"{scheme}: +query keeps the index at full precision, and a cross-encoder has none: it "
            "reads query and document together. Leave +query out"
        )
    if chooses(scheme):
        raise UnsupportedError(
            f"{scheme}: the criterion {scheme.criterion} chooses the layers' widths on a search "
            "over embeddings or on classes, and a reranker has neither; expected one width for "
            "all layers, such as W4, or an allocation of this model (+allocation=FILE)"
        )
