"""Labelled inputs by both arms: what they put out, the logits of it, and the evidence.

A classifier is read by its own logits. An embedding model is read by a linear probe, fitted on the
reference's embeddings of the training inputs and then the same for both arms.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantdrift.allocation.for_classes import allocate_for_classes
from quantdrift.calibration.sample import Sample, draw_sample
from quantdrift.errors import DataError
from quantdrift.evidence import Evidence
from quantdrift.measurement.class_labels import match_labels
from quantdrift.measurement.class_readings import ClassReading
from quantdrift.measurement.encoding import Encoding
from quantdrift.measurement.from_logits import evidence_of_logits, noise_of_logits
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.measurement.noise import other_batch_size
from quantdrift.measurement.probes import FittedProbe, fitted_probe
from quantdrift.measurement.retrieval import not_calibrated_on
from quantdrift.pair import QuantizedPair

__all__ = [
    "Classified",
    "LabelledJob",
    "OneSide",
    "measure_classes",
]


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
        labels, note = match_labels(
            labels, reading.classes, positions=reading.record["reading"] == "logits"
        )
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
