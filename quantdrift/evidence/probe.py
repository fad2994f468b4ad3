"""A linear probe: logistic regression on frozen embeddings, which turns an encoder into a classifier.

It is fitted once, on the reference's embeddings of the training inputs, and reads both arms, so that the arms differ
only in the encoder. Source: paper, table of the contrast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.cache import arrays_in
from quantdrift.base.errors import DataError, RunError, ScoreError
from quantdrift.base.extras import extras_named
from quantdrift.base.records import read_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearProbe:
    """A fitted probe, logits = embeddings @ weight.T + bias.

    Attributes:
        classes: sorted names of the classes, one for each logit.
        weight: float64 [n_classes, dim].
        bias: float64 [n_classes].
        converged: whether the solver converged.
    """

    classes: tuple[str, ...]
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    converged: bool = True

    @classmethod
    def fit(
        cls, embeddings: NDArray[np.floating], labels: Sequence[str], *, strength: float = 1.0, most_steps: int = 1000
    ) -> LinearProbe:
        """Fit scikit-learn's multinomial logistic regression; deterministic.

        For two classes the logits are symmetric, -z/2 and z/2 for the decision value z, as in a multinomial fit.
        """
        if len(embeddings) != len(labels):
            raise DataError(f"expected one label for every embedding; got {len(labels)} and {len(embeddings)}")
        if len(set(labels)) < 2:  # noqa: PLR2004 -- nothing to tell apart otherwise
            raise DataError(f"a probe tells classes apart; expected at least two, got {sorted(set(labels))}")
        with extras_named(needed_for="fitting a linear probe"):
            from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 -- takes a second
        model = LogisticRegression(C=strength, max_iter=most_steps)
        model.fit(np.asarray(embeddings, dtype=np.float64), np.asarray(labels, dtype=str))
        weight, bias = model.coef_, model.intercept_
        if len(weight) == 1:
            weight, bias = (np.concatenate([-part, part]) / 2 for part in (weight, bias))
        return cls(
            classes=tuple(str(name) for name in model.classes_),
            # the cache does not keep sklearn's memory order, on which the last digits of products depend
            weight=np.ascontiguousarray(weight, dtype=np.float64),
            bias=np.asarray(bias, dtype=np.float64),
            converged=int(np.max(model.n_iter_)) < most_steps,
        )

    def save(self, path: Path) -> None:
        """Write the probe as an .npz file, replacing an earlier file."""
        classes, converged = np.array(self.classes, dtype=str), np.array(self.converged)
        with path.open("wb") as file:
            np.savez(file, classes=classes, weight=self.weight, bias=self.bias, converged=converged)

    @classmethod
    def load(cls, path: Path | str, *, digest: str | None = None) -> LinearProbe:
        """Read a probe that `save` wrote, such as the one in a run folder."""
        try:
            return cls.of(memoryview(read_bytes(Path(path), digest=digest)))
        except (OSError, ValueError, KeyError) as error:
            raise RunError(
                "expected a linear probe, as in the folder of a run on classification data (RUN/probe.npz); "
                f"{path} cannot be read: {error}"
            ) from error

    @classmethod
    def of(cls, content: memoryview) -> LinearProbe:
        """Read a probe from the content of a file that `save` wrote."""
        arrays = arrays_in(content)
        classes, weight, bias = (arrays[name] for name in ("classes", "weight", "bias"))
        kinds = [part.dtype.kind for part in (classes, weight, bias)]
        if kinds != ["U", "f", "f"] or classes.ndim != 1 or arrays["converged"].size != 1:
            raise ValueError("the arrays in it are of other kinds")
        if weight.ndim != 2 or len(weight) != len(classes) or bias.shape != classes.shape:  # noqa: PLR2004 -- a matrix
            raise ValueError("the arrays in it are of other shapes")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError("a weight in it is not finite")
        return cls(classes=tuple(classes.tolist()), weight=weight, bias=bias, converged=bool(arrays["converged"]))

    @property
    def digest(self) -> str:
        """A digest of weight, bias and class names, 40 hex digits."""
        digest = hashlib.blake2b(digest_size=20)
        for part in (self.weight, self.bias):
            digest.update(part.astype("<f8").tobytes())
        digest.update("\0".join(self.classes).encode())
        return digest.hexdigest()

    def logits(self, embeddings: NDArray[np.floating]) -> NDArray[np.float32]:
        """The logits of embeddings, float32 [n_inputs, n_classes]."""
        if embeddings.ndim != 2 or embeddings.shape[1] != self.weight.shape[1]:  # noqa: PLR2004 -- a matrix
            raise ScoreError(
                f"expected embeddings of shape [n_inputs, {self.weight.shape[1]}], as the probe "
                f"was fitted on; got {embeddings.shape}"
            )
        products = np.asarray(embeddings, dtype=np.float64) @ self.weight.T
        return (products + self.bias).astype(np.float32)
