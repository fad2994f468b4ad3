"""What decides embeddings beside weights and inputs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from torch import Tensor

__all__ = ["runtime_of"]


def runtime_of(weight: Tensor) -> dict[str, str]:
    """Libraries, device and dtype of a model.

    Args:
        weight: one of its weights.
    """
    names = ("torch", "transformers", "sentence-transformers")
    installed = {name: _version(name) for name in names}
    return {**installed, "device": weight.device.type, "dtype": str(weight.dtype)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
