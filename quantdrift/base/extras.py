"""The extra of quantdrift that brings a module which is not installed."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import MappingProxyType

from quantdrift.base.display import shown
from quantdrift.base.errors import MissingExtraError, UnsupportedError
from quantdrift.base.registry import Package

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "models": (
            *("torch", "transformers", "tokenizers", "sentence_transformers", "safetensors"),
            *("huggingface_hub", "filelock", "tqdm", "sklearn"),
        ),
        "mteb": ("mteb", "datasets"),
        "beir": ("beir", "pytrec_eval"),
        "lm-eval": ("lm_eval",),
        "openai": ("httpx",),
        "gptq": ("gptqmodel",),
        "autoawq": ("awq",),
        "bitsandbytes": ("bitsandbytes", "accelerate"),
        "onnx": ("onnx", "onnxruntime"),
        "images": ("PIL",),
        "open-clip": ("open_clip", "torchvision"),
        "report": ("vl_convert",),
        "xlsx": ("openpyxl",),
        "compressed-tensors": ("compressed_tensors",),
        **{name: (name,) for name in ("hqq", "optimum", "torchao", "gguf", "timm", "pandas", "pytest")},
    }
)
"""Each extra of quantdrift, and the modules that it installs."""
_PACKAGES = {
    "vl_convert": "vl-convert-python",
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "open_clip": "open_clip_torch",
    "awq": "autoawq",
}
"""The package of a module, where their names differ by more than a hyphen."""


@cache  # reading a package's metadata takes 10 ms, and every run asks dozens of times
def version_of(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def refuse_missing(packages: Iterable[Package], *, needed_for: str) -> None:
    """Raise an error with the extra to install if a package is missing; none of them is imported."""
    for package in packages:
        if find_spec(package.module) is None:
            raise MissingExtraError(package.name, package.extra, needed_for=needed_for)


@contextmanager
def extras_named(*, needed_for: str, extra: str | None = None, packages: Iterable[Package] = ()) -> Iterator[None]:
    """Turn a missing module inside the block into an error that names the extra, that of `packages` first."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        known = {package.module: package for package in packages}
        brings = next((name for name, modules in EXTRAS.items() if module in modules), None)
        if module in known:
            package, brings = known[module].name, known[module].extra
        elif brings is None:
            raise
        else:
            package = _PACKAGES.get(module, module.replace("_", "-"))
        # the package is installed, but has no such module
        if "." in str(error.name) and sys.modules.get(module) is not None:
            raise UnsupportedError(
                f"{needed_for} names {shown(str(error.name))}, which {package} {version_of(package)} does not have; "
                "expected a module of it, or another version"
            ) from error
        raise MissingExtraError(package, extra or brings, needed_for=needed_for) from error
