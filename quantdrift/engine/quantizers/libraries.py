"""The libraries that do a method: whether one is there, which version, and what a scheme asks."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from quantdrift.engine.quantizers.base import Moments
from quantdrift.errors import DataError, MissingExtraError, UnsupportedError, nearest
from quantdrift.spec import Scheme

# --- libraries ------------------------------------------------------------------------------------

GRIDS = ("paper", "library")
"""Values of `+grid=`: the grid that the paper defines, or the library's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A package that quantizes, known without importing it.

    Attributes:
        backend: its name in a scheme, `+backend=`.
        module: what is imported.
        distribution: what is installed.
        extra: the quantdrift extra that brings it.
    """

    backend: str
    module: str
    distribution: str
    extra: str

    def is_installed(self) -> bool:
        """Whether the module can be found; nothing is imported."""
        return importlib.util.find_spec(self.module) is not None

    def require(self, *, needed_for: str) -> None:
        """Raise MissingExtraError, which names the extra, if it is not installed."""
        if not self.is_installed():
            raise MissingExtraError(self.distribution, self.extra, needed_for=needed_for)

    def version(self) -> str:
        """The installed version; "unknown" for a module without metadata."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"


def setting(scheme: Scheme, key: str, known: Sequence[str]) -> str | None:
    """The value of a setting, None if the scheme leaves it out.

    Raises:
        UnsupportedError: it is none of `known`; names them.
    """
    value = scheme.option(key)
    if value is None or value in known:
        return value
    close = nearest(value, known, n=1)
    meant = f"; did you mean +{key}={close[0]}?" if close else ""
    takes = " or ".join(f"+{key}={one}" for one in known)
    raise UnsupportedError(f"{scheme.quantizer} takes {takes}, got +{key}={value}{meant}")


def calibrated(moments: Moments | None, *, method: str) -> Moments:
    """The moments, which a calibrated method cannot do without.

    Libraries divide by the number of tokens, or fall back to plain rounding without a word.

    Raises:
        DataError: no token reached the layer, or the moments are not finite.
    """
    if moments is None or moments.n_tokens == 0:
        raise DataError(
            f"{method} needs the inputs of the layer, and no calibration token reached it; "
            "calibrate on more or other documents, or use rtn or hqq for this layer"
        )
    if not bool(moments.second.isfinite().all() and moments.mean_abs.isfinite().all()):
        raise DataError(
            f"{method} needs finite second moments of the layer's input, got infinities or NaN; "
            "run the reference in float32 or bfloat16, whose activations do not overflow"
        )
    return moments


# --- quiet imports --------------------------------------------------------------------------------

GPTQMODEL = Library(backend="gptqmodel", module="gptqmodel", distribution="gptqmodel", extra="gptq")
AUTO_GPTQ = Library(backend="auto-gptq", module="auto_gptq", distribution="auto-gptq", extra="auto-gptq")
AUTOAWQ = Library(backend="autoawq", module="awq", distribution="autoawq", extra="awq")
ENVIRONMENT = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_MODULES_CACHE",
    "TRANSFORMERS_CACHE",
    "CUDA_DEVICE_ORDER",
    "PYTORCH_ALLOC_CONF",
    "ROCR_VISIBLE_DEVICES",
)
"""What gptqmodel and the packages it brings set or delete when they are imported."""


@functools.cache
def import_gptqmodel() -> tuple[ModuleType, logging.Logger]:
    """The part of gptqmodel that solves, and its log.

    Its import writes a banner, and sets caches, device order and the log level of the process, all
    undone here. It also adds to PreTrainedModel what old checkpoints need; that stays, since it
    changes no attribute that a model has, and gptqmodel needs it where it loads a checkpoint.
    """
    for name in ("transformers", "datasets"):  # they read the caches' places when imported
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    environment = {name: os.environ.get(name) for name in ENVIRONMENT}
    level, handlers = logging.root.level, logging.root.handlers[:]
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):
            log: logging.Logger = importlib.import_module("logbar").LogBar.shared()
            with silenced(log):
                return importlib.import_module("gptqmodel.quantization"), log
    except Exception as error:
        raise _broken(GPTQMODEL, error) from error
    finally:
        logging.disable(disabled)
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def silenced(log: logging.Logger) -> Iterator[None]:
    """Keep a library's log to itself for a while."""
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@functools.cache
def import_auto_gptq() -> ModuleType:
    """The folder of auto-gptq that solves, without the package around it.

    The package asks transformers for names that are gone since 5; the folder uses none of them.
    """
    package = importlib.util.find_spec(AUTO_GPTQ.module)
    if package is None or not package.submodule_search_locations:
        raise _broken(AUTO_GPTQ, ImportError("the package has no folder"))
    folder = os.path.join(package.submodule_search_locations[0], "quantization")
    name = "_quantdrift_auto_gptq"  # relative imports inside the folder need a package
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot read {folder}")  # noqa: TRY301 -- reported like any failure
        library = importlib.util.module_from_spec(spec)
        sys.modules[name] = library
        spec.loader.exec_module(library)
    except Exception as error:
        sys.modules.pop(name, None)
        raise _broken(AUTO_GPTQ, error) from error
    finally:  # its import turns them off for the whole process
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
    sys.modules[f"{name}.gptq"].torch = _TorchAnywhere()  # type: ignore[attr-defined]  # its import
    return library


class _TorchAnywhere:
    """torch for one module, which waits for a GPU where there is none: its name alone changes."""

    cuda = SimpleNamespace(synchronize=lambda: None, empty_cache=torch.cuda.empty_cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@functools.cache
def import_autoawq() -> ModuleType:
    """The module of autoawq that searches and rounds.

    The package says farewell in a warning, and sets a filter that shows every deprecation first, so
    that ignoring does not help; recording does, and takes the filter back afterwards.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            library = importlib.import_module("awq.quantize.quantizer")
    except Exception as error:
        raise _broken(AUTOAWQ, error) from error
    for one in caught:
        if not issubclass(one.category, DeprecationWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return library


def _broken(library: Library, error: Exception) -> UnsupportedError:
    return UnsupportedError(
        f"{library.distribution} {library.version()} is installed but cannot be imported "
        f"({type(error).__name__}: {error}); install a version that fits the installed torch and "
        "transformers, or another quantizer or +backend="
    )
