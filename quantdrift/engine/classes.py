"""Labelled inputs by both arms: what they put out, the logits of it, and the evidence.

A classifier is read by its own logits. An embedding model is read by a linear probe, fitted on the
reference's embeddings of the training inputs and then the same for both arms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.cache import arrays_in, kept_file, read_kept
from quantdrift.conformal import softmax_confidence
from quantdrift.datasets.labelled import match_labels
from quantdrift.engine.calibration.sample import Sample, draw_sample
from quantdrift.engine.inputs import Inputs, Vectors
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.engine.search import Encoding, assemble, not_calibrated_on, other_batch_size
from quantdrift.engine.sensitivity.allocate import allocate_for_classes
from quantdrift.engine.store import digest_of, key_of
from quantdrift.errors import DataError, RunError
from quantdrift.evidence import Evidence, Noise
from quantdrift.probe import LinearProbe

# --- Probes that were fitted are kept beside the embeddings, so that no scheme fits one again -----

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


def fitted_probe(embeddings: Vectors, labels: Sequence[str], *, key: str | None, root: Path | None) -> FittedProbe:
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


# --- How classes are read from what a model puts out, the same for both arms ----------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassReading:
    """From what a model puts out to logits.

    Attributes:
        classes: names, by logit.
        logits: from what the model puts out [n_inputs, dim] to float32 [n_inputs, n_classes].
        graph: the same of tensors, [..., dim] to [..., n_classes], for criteria that take
            gradients.
        key: digest of what decides the logits beside the model.
        record: what a run says of it.
        notes: what deserves a word, one sentence each.
        probe: the linear probe that reads, where one does.
    """

    classes: tuple[str, ...]
    logits: Callable[[Vectors], NDArray[np.float32]]
    graph: Callable[[Tensor], Tensor]
    key: str
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    probe: LinearProbe | None = None


def by_logits(classes: tuple[str, ...]) -> ClassReading:
    """What a classifier puts out is read as it is."""
    return ClassReading(
        classes=classes, logits=np.asarray, graph=lambda outputs: outputs, key="logits", record={"reading": "logits"}
    )


def by_linear(probe: LinearProbe, record: Mapping[str, Any], notes: tuple[str, ...] = ()) -> ClassReading:
    """Linear functions of embeddings: a probe, or a head that is left alone.

    Args:
        probe: weight and bias.
        record: what a run says of it.
        notes: what deserves a word.
    """
    weight, bias = torch.from_numpy(probe.weight), torch.from_numpy(probe.bias)
    return ClassReading(
        classes=probe.classes,
        logits=probe.logits,
        graph=lambda outputs: outputs @ weight.to(outputs).T + bias.to(outputs),
        key=probe.digest,
        record=record,
        notes=notes,
        probe=probe,
    )


def by_probe(fitted: FittedProbe) -> ClassReading:
    """A linear probe reads embeddings."""
    notes: tuple[str, ...] = ()
    if not fitted.probe.converged:
        notes = ("the linear probe did not converge; another fit could give other logits",)
    return by_linear(fitted.probe, {"reading": "linear probe", "probe": fitted.describe()}, notes)


# --- From the logits of both arms to evidence: classes are the items that are ranked --------------

DEPTH = 200
"""Ranks kept of either arm."""


def evidence_of_logits(
    reference: NDArray[np.float32],
    candidate: NDArray[np.float32],
    *,
    input_ids: Sequence[str],
    classes: Sequence[str],
    labels: Sequence[str] | None = None,
    noise: Noise | None = None,
    depth: int = DEPTH,
) -> Evidence:
    """Evidence of a classifier: every input ranks all classes by logit.

    Args:
        reference: float32 [n_inputs, n_classes], the reference's logits.
        candidate: float32 [n_inputs, n_classes], the candidate's.
        input_ids: names of the inputs, all different.
        classes: names of the classes, by logit.
        labels: the right class of each input; one that is no class of the model counts as a
            relevant item that is never found.
        noise: the noise floor, where it was measured.
        depth: how many ranks to keep. Epsilon, S and the confidence are over all classes.

    Raises:
        ScoreError: the shapes differ, or a logit is not finite.
    """
    state = score_matrix(reference, candidate, k=depth)
    qrels = None
    if labels is not None:
        qrels = {name: {label: 1} for name, label in zip(input_ids, labels, strict=True)}
    evidence = assemble(state, input_ids=input_ids, item_ids=classes, qrels=qrels, noise=noise)
    if len(classes) < 2:  # noqa: PLR2004 -- one class is sure of itself
        return evidence
    return replace(evidence, confidence=softmax_confidence(candidate))


def noise_of_logits(once: NDArray[np.float32], again: NDArray[np.float32]) -> Noise:
    """The noise floor of two runs of one classifier.

    Args:
        once: float32 [n_inputs, n_classes].
        again: float32 [n_inputs, n_classes], of the same inputs, in another batch size and order.
    """
    return Noise(
        flips=once.argmax(axis=1) != again.argmax(axis=1),
        epsilon=np.abs(once.astype(np.float64) - again).max(axis=1).astype(np.float32),
    )


# --- Labelled inputs by both arms: what they put out, the logits of it, and the evidence ----------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneSide:
    """What a pair puts out for the inputs that are evaluated.

    Attributes:
        reference: float32 [n_inputs, dim], embeddings or logits.
        candidate: likewise.
        again: the reference's once more, in another order and batch size; None if not asked for.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
    """

    reference: Vectors
    candidate: Vectors
    again: Vectors | None
    fingerprint: str
    candidate_fingerprint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledJob(Encoding):
    """The steps of a measurement on labelled inputs.

    Attributes:
        test: the inputs that are evaluated.
        train: the inputs that a probe is fitted on and the candidate is calibrated on.
        calibration: what the candidate is calibrated on instead.
        split: what `test` is called.
        what: the model puts out, for what is shown.
        dataset: name of the data.
    """

    test: Inputs
    train: Inputs | None
    calibration: Inputs | None = None
    split: str = "test"
    what: str = "embeddings"
    dataset: str | None = None

    def check(self) -> None:
        """Refuse what would fail after hours.

        Raises:
            DataError: the candidate is calibrated and there is nothing to calibrate on, or a stored
                allocation was measured on all of the inputs.
        """
        not_calibrated_on(self.pair, self.test.ids, self.dataset)
        if self.pair.needs_calibration and self.calibration is None and self.train is None:
            assert isinstance(self.pair, QuantizedPair)  # no other candidate is calibrated
            raise DataError(
                f"{self.pair.scheme} is calibrated on inputs of the train part, never on those it "
                f"is evaluated on, and {self.dataset} has no train part; add one (train.jsonl, "
                "train/CLASS/, x_train), name a file of texts (+calib=FILE.txt), or use a "
                "data-free scheme (rtn or hqq without A8)"
            )

    def probe(self, labels: Sequence[str]) -> FittedProbe:
        """The probe of the training inputs; the model is in the reference arm.

        Args:
            labels: of the training inputs.

        Raises:
            QuantDriftError: as `vectors` and `fitted_probe`.
        """
        assert self.train is not None  # there are labels of it
        weights = self.pair.fingerprint
        vectors = self.vectors(self.train, "reference", weights, f"train {self.what}")
        key = None
        if self.train.key is not None:
            key = self.key(self.train, self.train.order(), weights, self.settings.batch_size)
        with self.stage("linear probe", "fitting the linear probe", 1) as tell:
            fitted = fitted_probe(vectors, labels, key=key, root=self.store.root)
            tell(1)
        return fitted

    def run(self, reading: ClassReading | None = None) -> OneSide:
        """What both arms put out for the evaluated inputs.

        Args:
            reading: how classes are read; a criterion chooses widths by their gaps.

        Raises:
            ScoreError: a number is not finite.
            RunError: no space to keep them.
            QuantDriftError: the criterion cannot measure this model.
        """
        what, fingerprint = f"{self.split} {self.what}", self.pair.fingerprint
        self.watch(self.test)
        reference = self.vectors(self.test, "reference", fingerprint, what)
        again = self._again(fingerprint) if self.settings.noise_floor else None
        self._choose_widths(reading)
        self.calibrate(self._sample)
        with self.pair.candidate():
            weights = self.pair.candidate_fingerprint()
            candidate = self.vectors(self.test, "candidate", weights, what)
        return OneSide(
            reference=reference,
            candidate=candidate,
            again=again,
            fingerprint=fingerprint,
            candidate_fingerprint=weights,
        )

    def _choose_widths(self, reading: ClassReading | None) -> None:
        """Give the candidate's layers their widths, where a criterion chooses them."""
        pair = self.pair
        if not (isinstance(pair, QuantizedPair) and pair.needs_widths):
            return
        assert reading is not None  # a contrast, which has two, refuses criteria
        start = time.perf_counter()
        allocation = allocate_for_classes(self, reading.graph, reading.key)
        widths = allocation.width_of
        chosen = [widths[layer.name] for layer in pair.layers]
        pair.choose(chosen, by=allocation, for_all_data=False)
        self.seconds["allocation"] = round(time.perf_counter() - start, 3)

    def _again(self, fingerprint: str) -> Vectors:
        order = np.random.default_rng(self.settings.seed).permutation(len(self.test.ids))
        size = other_batch_size(self.settings.batch_size)
        with self.stage("noise floor", "noise floor: all inputs again", len(order)) as tell:
            return self.encoded(self.test, order, fingerprint, size, tell)

    def _sample(self, pair: QuantizedPair) -> Sample:
        size = self.settings.batch_size
        if self.calibration is not None:
            return draw_sample(self.calibration, pair.scheme, size)
        assert self.train is not None  # `check` has looked
        sample = draw_sample(self.train, pair.scheme, size)
        return replace(sample, record={**sample.record, "source": "the train part"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classified:
    """What a measurement on labelled inputs gave.

    Attributes:
        evidence: the per-input record, without inputs that layers were measured on.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        left_out: number of inputs that layers were measured on.
        seconds: time per stage.
        reading: how logits were had.
        notes: what deserves a word, one sentence each.
    """

    evidence: Evidence
    fingerprint: str
    left_out: int
    seconds: Mapping[str, float]
    reading: ClassReading
    notes: tuple[str, ...]
    candidate_fingerprint: str | None = None


def measure_classes(
    job: LabelledJob, side: OneSide, reading: ClassReading, *, labels: Sequence[str] | None
) -> Classified:
    """The evidence of what a pair put out, every input ranking all classes.

    Args:
        job: what it came from.
        side: what both arms put out for the evaluated inputs.
        reading: how classes are read from that.
        labels: of the evaluated inputs.

    Raises:
        ScoreError: shapes differ, or a logit is not finite.
    """
    notes = [*reading.notes]
    if labels is not None:
        labels, note = match_labels(labels, reading.classes, positions=reading.record["reading"] == "logits")
        notes += [note] if note else []
    reference = reading.logits(side.reference)
    noise = None
    if side.again is not None:
        noise = noise_of_logits(reference, reading.logits(side.again))
    evidence = evidence_of_logits(
        reference,
        reading.logits(side.candidate),
        input_ids=job.test.ids,
        classes=reading.classes,
        labels=labels,
        noise=noise,
        depth=job.settings.k,
    )
    rest = not_calibrated_on(job.pair, job.test.ids, job.dataset)
    left_out = len(job.test.ids) - len(rest)
    return Classified(
        evidence=evidence.part(rest) if left_out else evidence,
        fingerprint=side.fingerprint,
        candidate_fingerprint=side.candidate_fingerprint,
        left_out=left_out,
        seconds=dict(job.seconds),
        reading=reading,
        notes=(*notes, *job.notes),
    )
