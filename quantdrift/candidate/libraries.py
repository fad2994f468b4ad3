"""The libraries that do a method: which version, what a scheme asks, and how one is imported."""

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
    """Describe a package that quantizes, for a record: name, version ("unknown" without metadata) and grid."""
    return {"backend": package.name, "version": version_of(package.name) or "unknown", "grid": grid}


def unexpected(package: Package, wanted: str, got: str) -> UnsupportedError:
    """The error of a library whose answer is none that its method has."""
    return UnsupportedError(
        f"expected {wanted} from {package.name}, got {got}; version {version_of(package.name)} does not do what "
        "quantdrift asks of it: install one that its extra has"
    )


def importing(package: Package) -> AbstractContextManager[None]:
    """Inside, whatever goes wrong is an UnsupportedError: the package is there, and cannot be used."""
    return in_one_line(
        f"{package.name} {version_of(package.name)} is installed but cannot be imported",
        "; install a version that fits the installed torch and transformers, or choose another quantizer",
    )


def calibrated(moments: Moments | None, *, method: str) -> Moments:
    """The moments, which a calibrated method cannot do without."""
    assert moments is not None  # a layer without them is rounded to nearest
    if not bool(moments.second.isfinite().all() and moments.mean_abs.isfinite().all()):
        raise DataError(
            f"{method} needs finite second moments of the layer's input, got infinities or NaN; "
            "run the reference in float32 or bfloat16, whose activations do not overflow"
        )
    return moments


# --- imports that leave the process as it was -----------------------------------------------------

_ENVIRONMENT = (
    *("HF_HOME", "HF_HUB_CACHE", "HF_MODULES_CACHE", "TRANSFORMERS_CACHE"),
    *("CUDA_DEVICE_ORDER", "PYTORCH_ALLOC_CONF", "ROCR_VISIBLE_DEVICES"),
)
"""What gptqmodel and the packages it brings set or delete when they are imported."""


@contextmanager
def silenced(log: logging.Logger) -> Iterator[None]:
    """Keep a library's log to itself for a while."""
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, neither in the log nor as Python knows them; its filters are as before afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(record=True):
            yield
    finally:
        logging.disable(before)


@functools.cache
def import_gptqmodel() -> tuple[ModuleType, logging.Logger]:
    """The part of gptqmodel that solves, and its log.

    Its import writes a banner, and sets caches, device order and the log level of the process, all undone here. It
    also adds to PreTrainedModel what old checkpoints need; that stays, since it changes no attribute that a model
    has, and gptqmodel needs it where it loads a checkpoint.
    """
    for name in ("transformers", "datasets"):  # they read the caches' places when imported
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    root, environment = logging.root, {name: os.environ.get(name) for name in _ENVIRONMENT}
    level, handlers = root.level, root.handlers[:]
    try:
        with quiet(), importing(GPTQMODEL), redirect_stdout(io.StringIO()):
            log: logging.Logger = importlib.import_module("logbar").LogBar.shared()
            with silenced(log):
                return importlib.import_module("gptqmodel.quantization"), log
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@functools.cache
def import_autoawq() -> ModuleType:
    """The module of autoawq that searches and rounds.

    The package says farewell in a warning, and sets a filter that shows every deprecation first, so that ignoring
    does not help; recording does, and takes the filter back afterwards.
    """
    with importing(AUTOAWQ), quiet():
        return importlib.import_module("awq.quantize.quantizer")
