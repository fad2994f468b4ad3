"""Probes that were fitted are kept beside the embeddings, so that no scheme fits one again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.cache import arrays_in, kept_file, read_kept
from quantdrift.errors import RunError
from quantdrift.measurement.embeddings import digest_of, key_of
from quantdrift.measurement.inputs import Vectors
from quantdrift.probe import LinearProbe

__all__ = ["STRENGTH", "FittedProbe", "fitted_probe"]

STRENGTH = 1.0
"""C of the logistic regression, the inverse of the regularization."""
MOST_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedProbe:
    """A probe, and how well it fits what it was fitted on.

    Attributes:
        probe: the probe.
        train_accuracy: share of the training inputs that it puts in their class.
    """

    probe: LinearProbe
    train_accuracy: float

    def describe(self) -> dict[str, Any]:
        """What a run records of it."""
        return {
            "C": STRENGTH,
            "most_steps": MOST_STEPS,
            "converged": self.probe.converged,
            "train_accuracy": self.train_accuracy,
            "digest": self.probe.digest,
        }


def fitted_probe(
    embeddings: Vectors, labels: Sequence[str], *, key: str | None, root: Path | None
) -> FittedProbe:
    """The probe of some embeddings, fitted unless it is there already.

    Args:
        embeddings: float32 [n_train, dim], of the reference.
        labels: one a row.
        key: what the embeddings are kept under; None keeps no probe of them.
        root: cache folder; None keeps nothing.

    Raises:
        DataError: fewer than two classes.
        MissingExtraError: scikit-learn is not installed.
        RunError: it cannot be kept.
    """
    path = None
    if key is not None and root is not None:
        try:
            library = version("scikit-learn")
        except PackageNotFoundError:  # fitting says what is missing
            library = ""
        name = key_of(
            version=1,
            embeddings=key,
            labels=digest_of(labels),
            strength=STRENGTH,
            most_steps=MOST_STEPS,
            library=library,
        )
        path = root / "probes" / name[:2] / f"{name}.npz"
        if (kept := read_kept(path, _read)) is not None:
            return kept
    probe = LinearProbe.fit(embeddings, labels, strength=STRENGTH, most_steps=MOST_STEPS)
    chosen = probe.logits(embeddings).argmax(axis=1)
    right = np.array(probe.classes)[chosen] == np.array(labels, dtype=str)
    fitted = FittedProbe(probe=probe, train_accuracy=float(right.mean()))
    if path is not None:
        _write(path, fitted)
    return fitted


def _read(content: memoryview) -> FittedProbe:
    arrays = arrays_in(content)
    accuracy = float(arrays["train_accuracy"])
    return FittedProbe(probe=LinearProbe.of(arrays), train_accuracy=accuracy)


def _write(path: Path, fitted: FittedProbe) -> None:
    try:
        with kept_file(path) as partial, partial.open("wb") as file:
            np.savez(file, **fitted.probe.arrays(), train_accuracy=fitted.train_accuracy)
    except OSError as error:
        raise RunError(
            f"the probe cannot be kept in {path.parent}: {error}. Free some space, set "
            "QUANTDRIFT_CACHE to a folder on another disk, or use --no-cache"
        ) from error
