"""The libraries that quantize: their versions, errors and imports."""

import functools
import importlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from types import ModuleType

from quantdrift.base.display import in_one_line
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.base.registry import Package
from quantdrift.candidate.quantized import Moments
from quantdrift.kinds.quantizer import QUANTIZERS

GPTQMODEL, AUTOAWQ, HQQ = (QUANTIZERS.packages[name] for name in ("gptqmodel", "autoawq", "hqq"))


def described(package: Package, *, grid: str) -> dict[str, str]:
    """Describe a package that quantizes for a record: name, version ("unknown" without metadata) and grid."""
    return {"backend": package.name, "version": version_of(package.name) or "unknown", "grid": grid}


def unexpected(package: Package, wanted: str, got: str) -> UnsupportedError:
    """Return the error for an unexpected result of a library."""
    return UnsupportedError(
        f"expected {wanted} from {package.name}, got {got}; version {version_of(package.name)} does not do what "
        "quantdrift asks of it: install one that its extra has"
    )


def importing(package: Package) -> AbstractContextManager[None]:
    """Turn any error of an import into an UnsupportedError: the package is installed but cannot be used."""
    return in_one_line(
        f"{package.name} {version_of(package.name)} is installed but cannot be imported",
        "; install a version that fits the installed torch and transformers, or choose another quantizer",
    )


def calibrated(moments: Moments | None, *, method: str) -> Moments:
    """Return the moments, which a calibrated method needs; DataError if they are not finite."""
    assert moments is not None  # a layer without moments is rounded to nearest
    if not bool(moments.second.isfinite().all() and moments.mean_abs.isfinite().all()):
        raise DataError(
            f"{method} needs finite second moments of the layer's input, got infinities or NaN; "
            "run the reference in float32 or bfloat16, whose activations do not overflow"
        )
    return moments


# --- imports that leave the process as it was -----------------------------------------------------


@contextmanager
def silenced(log: logging.Logger) -> Iterator[None]:
    """Silence a library's log inside."""
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings inside, both of the log and of Python, and restore the filters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(record=True):
            yield
    finally:
        logging.disable(before)


@functools.cache
def import_gptqmodel() -> tuple[ModuleType, logging.Logger]:
    """Import the module of gptqmodel that quantizes, and its log.

    The import prints a banner and sets caches, device order and the log level of the process; all this is undone. It
    also adds attributes to PreTrainedModel, which stay, as gptqmodel needs them to load old checkpoints.
    """
    for name in ("transformers", "datasets"):  # they read the places of caches when they are imported
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    root, environment = logging.root, dict(os.environ)
    level, handlers = root.level, root.handlers[:]
    try:
        with quiet(), importing(GPTQMODEL), redirect_stdout(io.StringIO()):
            log: logging.Logger = importlib.import_module("logbar").LogBar.shared()
            with silenced(log):
                return importlib.import_module("gptqmodel.quantization"), log
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


@functools.cache
def import_autoawq() -> ModuleType:
    """Import the module of autoawq that searches and rounds.

    The package warns that it is deprecated, and sets a filter that shows all deprecations, so ignoring them does not
    help; recording does, and restores the filter.
    """
    with importing(AUTOAWQ), quiet():
        return importlib.import_module("awq.quantize.quantizer")
