"""The linear probe against scikit-learn's own decision function."""

from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import DataError, RunError, ScoreError
from quantdrift.evidence.probe import LinearProbe

linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")


def blobs(n_classes: int, seed: int = 0) -> tuple[Any, list[str]]:
    """Points around one centre a class; names sort otherwise than numbers do."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, 5))
    of = np.arange(60) % n_classes
    points = (centres[of] + rng.normal(size=(60, 5))).astype(np.float32)
    return points, [f"{9 - number} kind" for number in of]


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_logits_are_those_of_scikit_learn(n_classes: int) -> None:
    points, labels = blobs(n_classes)
    model = linear.LogisticRegression(C=0.5, max_iter=1000).fit(points.astype(float), labels)
    probe = LinearProbe.fit(points, labels, strength=0.5)
    assert probe.converged
    assert list(probe.classes) == list(model.classes_) == sorted(set(labels))
    wanted, logits = model.decision_function(points.astype(float)), probe.logits(points)
    if n_classes == 2:  # of two classes they are symmetric, and differ by the decision value
        wanted = np.stack([-wanted / 2, wanted / 2], axis=1)
    assert np.allclose(logits, wanted, atol=1e-5)


def test_what_cannot_be_fitted_or_read_is_refused() -> None:
    points, labels = blobs(3)
    with pytest.raises(DataError, match="at least two, got"):
        LinearProbe.fit(points, ["a"] * 60)
    with pytest.raises(DataError, match="one label for every embedding; got 59 and 60"):
        LinearProbe.fit(points, labels[1:])
    with pytest.raises(ScoreError, match=r"\[n_inputs, 5\]"):
        LinearProbe.fit(points, labels).logits(points[:, :4])


def test_a_probe_is_written_and_read(tmp_path: Any) -> None:
    points, labels = blobs(3)
    probe = LinearProbe.fit(points, labels)
    probe.save(tmp_path / "probe.npz")
    again = LinearProbe.load(tmp_path / "probe.npz")
    assert (again.classes, again.digest) == (probe.classes, probe.digest)
    assert np.array_equal(again.logits(points), probe.logits(points))
    (tmp_path / "other.npz").write_bytes(b"no arrays")
    for name in ("none.npz", "other.npz"):
        with pytest.raises(RunError, match="expected a linear probe"):
            LinearProbe.load(tmp_path / name)
