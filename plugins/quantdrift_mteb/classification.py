"""Classification in mteb: a probe fitted on the reference reads both arms.

mteb itself fits a new classifier to each arm's embeddings, several times. What differs between the
arms is then the encoder and the classifiers. Here the classifier is frozen: one linear probe,
fitted on the reference's embeddings of all training inputs that mteb's own experiments drew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.classes import evidence_of_logits
from quantdrift.engine.pair import Arm
from quantdrift.engine.store import digest_of
from quantdrift.errors import DataError
from quantdrift.probe import LinearProbe
from quantdrift_mteb.watching import Compared, Heard, Where, as_vectors


@dataclass(slots=True)
class _Fold:
    """Test inputs, and the training inputs of every experiment that was tested on them.

    Without cross-validation there is one, with it one per fold.

    Attributes:
        tests: embeddings of the test inputs, as mteb holds them.
        labels: of the test inputs.
        rows: embeddings of the training inputs, by their bytes and label.
    """

    tests: Any
    labels: list[str]
    rows: dict[tuple[bytes, str], NDArray[np.float32]] = field(default_factory=dict)

    def add(self, embeddings: NDArray[np.float32], labels: list[str]) -> None:
        """Add training inputs; those that experiments share are taken once."""
        for row, label in zip(embeddings, labels, strict=True):
            key = (row.tobytes(), label)
            if key not in self.rows:
                self.rows[key] = row.copy()

    def probe(self) -> LinearProbe:
        """Fitted on the training inputs."""
        return LinearProbe.fit(np.stack(list(self.rows.values())), [label for _, label in self.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What the reference leaves: the probes, and its own logits.

    Attributes:
        probes: one per fold.
        labels: of the test inputs, by fold.
        logits: likewise, float32 [n_inputs, n_classes].
        n_train: distinct training inputs that probes were fitted on.
    """

    probes: list[LinearProbe]
    labels: list[list[str]]
    logits: list[NDArray[np.float32]]
    n_train: int


class ProbeListener:
    """Listens to mteb's experiments, each of which gets training and test embeddings."""

    method = "_run_experiment"
    holder: type | None = None

    def __init__(self, label_column: str) -> None:
        self.label_column = label_column

    def hear(self, heard: Heard, so_far: list[_Fold], arm: Arm) -> None:
        """Note an experiment; those on the same test inputs belong together."""
        given = heard.arguments
        tests = given["test_embeddings"]
        if not so_far or so_far[-1].tests is not tests:
            so_far.append(_Fold(tests, self._labels(given["eval_split"])))
        if arm == "reference":
            embeddings = as_vectors(given["train_embeddings"])
            so_far[-1].add(embeddings, self._labels(given["train_split"]))

    def reference(self, so_far: list[_Fold], where: Where) -> _Read:
        """Fit the probes and read the test inputs."""
        probes = [fold.probe() for fold in so_far]
        if any(probe.classes != probes[0].classes for probe in probes):
            raise DataError("the folds of its cross-validation do not all hold the same classes")
        return _Read(
            probes=probes,
            labels=[fold.labels for fold in so_far],
            logits=list(_logits(probes, so_far)),
            n_train=len({key for fold in so_far for key in fold.rows}),
        )

    def candidate(self, so_far: list[_Fold], where: Where, kept: _Read) -> dict[Where, Compared]:
        """Read the candidate's test inputs with the same probes."""
        if [fold.labels for fold in so_far] != kept.labels:
            raise DataError("the two arms were tested on different inputs")
        classes = kept.probes[0].classes
        evidence = evidence_of_logits(
            np.concatenate(kept.logits),
            np.concatenate(list(_logits(kept.probes, so_far))),
            input_ids=list(_names(where[0], kept.labels)),
            classes=classes,
            labels=[label for labels in kept.labels for label in labels],
        )
        compared = Compared(
            evidence=evidence,
            keys={"drift_probe_n_train": kept.n_train},
            reading={
                "reading": "linear probe",
                "probe": {
                    "folds": len(so_far),
                    "n_train": kept.n_train,
                    "converged": all(probe.converged for probe in kept.probes),
                    "digest": digest_of(probe.digest for probe in kept.probes),
                },
            },
            n_items=len(classes),
        )
        return {where: compared}

    def _labels(self, dataset: Any) -> list[str]:
        return [str(label) for label in dataset[self.label_column]]


def _logits(probes: list[LinearProbe], folds: list[_Fold]) -> Iterator[NDArray[np.float32]]:
    for probe, fold in zip(probes, folds, strict=True):
        yield probe.logits(as_vectors(fold.tests))


def _names(split: str, labels: list[list[str]]) -> Iterator[str]:
    """`test-17`: the split and the position in it; `test-2-17` in the third fold."""
    for number, part in enumerate(labels):
        stem = split if len(labels) == 1 else f"{split}-{number}"
        for position in range(len(part)):
            yield f"{stem}-{position}"
