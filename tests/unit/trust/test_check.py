"""The stability check on examples small enough to do by hand, and as a file that a server trusts."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import RunError, ScoreError
from quantdrift.base.records import with_checksum
from quantdrift.runs.identity import Identity
from quantdrift.statistics.conformal import ExchangeabilityWarning, StabilityError, Statistic
from quantdrift.trust.check import StabilityCheck
from support.comparison_samples import evidence_of, scores

INF = math.inf
RNG = np.random.default_rng(0)
REFERENCE = RNG.normal(size=(40, 5))
CANDIDATE = REFERENCE + RNG.normal(size=(40, 5)) * 0.3
RUN = {
    "spec": "minilm@W4-g128-rtn",
    "model": {"fingerprint": "weights"},
    "data": {"name": "corpus", "fingerprint": "texts", "split": "test"},
}


def check(**changes: Any) -> StabilityCheck:
    options: dict[str, Any] = {"alpha": 0.1, "guarantee": "joint", "on": RUN, **changes}
    return StabilityCheck.calibrate((REFERENCE, CANDIDATE), **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "check.json"


def test_an_exact_copy_is_accepted_ties_included() -> None:
    tied = np.ones((20, 4))
    calibrated = StabilityCheck.calibrate((tied, tied), alpha=0.1, guarantee="joint")
    assert (calibrated.threshold, calibrated.expected_coverage) == (0, 1)
    assert calibrated.accepts(tied).all()


def test_a_flip_at_a_tie_is_not_let_through() -> None:
    """All inputs flip with gap = S; were the threshold S itself, all would be accepted."""
    reference, candidate = np.tile([5.0, 5.0, 0.0], (9, 1)), np.tile([4.0, 6.0, 1.0], (9, 1))
    assert not StabilityCheck.calibrate((reference, candidate), alpha=0.1, guarantee="joint").accepts(candidate).any()


def test_a_confidence_must_exceed_its_threshold() -> None:
    reference = np.tile([2.0, 0.0], (9, 1))
    candidate = reference.copy()
    candidate[0] = [0.0, 1.0]
    calibrated = StabilityCheck.calibrate((reference, candidate), alpha=0.1, guarantee="joint", statistic="gap")
    assert (calibrated.threshold, calibrated.n_flipped) == (1, 1)
    served = [1, np.nextafter(1, 2), np.nan, INF, -INF]
    assert calibrated.accepts_confidence(served).tolist() == [False, True, False, False, False]
    everything = StabilityCheck.calibrate((reference, reference), alpha=0.1, guarantee="joint", statistic="gap")
    assert everything.threshold == -INF
    assert everything.accepts([[1.0, 1.0]]).all()
    assert "everything is accepted" in everything.rule


@pytest.mark.parametrize("name", ["msp", "entropy"])
def test_msp_and_entropy_look_at_all_items(name: Statistic) -> None:
    calibrated = check(statistic=name, alpha=0.2)
    accepted = calibrated.accepts(CANDIDATE)
    assert 0 < accepted.mean() == calibrated.expected_coverage < 1
    with pytest.raises(ScoreError, match="5 to 5 items; got 3"):
        calibrated.accepts(CANDIDATE[:, :3])
    with pytest.raises(RunError, match="similarities"):
        StabilityCheck.calibrate(evidence_of(scores(), scores()), statistic=name)


def test_served_inputs_that_differ_are_warned_of() -> None:
    whole = np.random.default_rng(0).normal(size=(400, 6))
    calibrated = StabilityCheck.calibrate((whole[:200], whole[:200]), alpha=0.1)
    same = calibrated.resembles(whole[200:])
    assert same.alike
    # of a set the order does not matter, of a stream it does
    rising = np.sort(calibrated.confidence(whole[200:]))
    assert calibrated.resembles_confidence(rising).alike
    assert not calibrated.watch().add(rising).alike
    with pytest.warns(ExchangeabilityWarning, match="Calibrate again"):
        other = calibrated.resembles(whole[200:] * 0.2)
    assert not other.alike
    assert other.p_value < 1e-3


def test_another_pair_other_weights_and_other_scores_are_refused(path: Path) -> None:
    model = {"fingerprint": "weights", "candidate_fingerprint": "low"}
    settings = {"reading": "self-retrieval", "similarity": "cosine", "dtype": "torch.float32"}
    record = {**RUN, "model": model, "settings": settings}
    check(on=record).save(path)
    assert json.loads(path.read_text())["origin"]["dtype"] == "torch.float32"
    assert StabilityCheck.load(path, candidate_fingerprint="low", on=record) == check(on=record)
    for asked, message in (
        ({"spec": "minilm@W3"}, r"check\.json is for another pair .*minilm@W4-g128-rtn"),
        ({"spec": "minilm@W4", "model_fingerprint": "others"}, "reference model: .*others now"),
        ({"candidate_fingerprint": "odd"}, r"quantized weights: .* \(digest low .*, odd now\)"),
        ({"on": {**record, "settings": {"reading": "logits"}}}, "scores: self-retrieval by cosine .* logits now"),
    ):
        with pytest.raises(StabilityError, match=message):
            StabilityCheck.load(path, **asked)  # type: ignore[arg-type]  # of several options
    check().save(path)  # what the check does not know is not compared
    assert StabilityCheck.load(path, candidate_fingerprint="odd", on=record)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format_version", 2),
        ("statistic", "T"),
        ("alpha", 1.0),
        ("n_calibration", 0),
        ("sample", []),
        ("sample", [0.5] * 1_001),
        ("origin", {**Identity().to_json(), "spec": 4}),
        ("more", 1),
    ],
)
def test_what_is_damaged_or_was_changed_is_refused(path: Path, name: str, value: Any) -> None:
    check().save(path)
    content = json.loads(path.read_text())
    for changed in ({**content, name: value}, with_checksum({**content, name: value})):
        path.write_text(json.dumps(changed))
        with pytest.raises(StabilityError, match=r"is damaged|format version 2"):
            StabilityCheck.load(path)
