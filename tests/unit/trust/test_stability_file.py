"""A stability check as a file: what is written comes back, what is not ours is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.conformal import StabilityError
from quantdrift.errors import RunError
from quantdrift.identity import Identity
from quantdrift.records import sealed
from quantdrift.trust.check import StabilityCheck

RNG = np.random.default_rng(0)
REFERENCE = RNG.normal(size=(40, 5))
CANDIDATE = REFERENCE + RNG.normal(size=(40, 5)) * 0.3
RECORD = {
    "spec": "minilm@W4-g128-rtn",
    "model": {"fingerprint": "weights"},
    "data": {"name": "corpus", "fingerprint": "texts", "split": "test"},
}


def check(**changes: Any) -> StabilityCheck:
    options: dict[str, Any] = {"alpha": 0.1, "on": RECORD, **changes}
    return StabilityCheck.calibrate((REFERENCE, CANDIDATE), **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "check.json"


@pytest.mark.parametrize("statistic", ["S", "2epsilon", "gap", "msp", "entropy"])
def test_a_check_comes_back(path: Path, statistic: Any) -> None:
    one = check(statistic=statistic)
    one.save(path)
    other = StabilityCheck.load(path, spec="minilm@W4", model_fingerprint="weights")
    assert other == one
    np.testing.assert_array_equal(other.accepts(CANDIDATE), one.accepts(CANDIDATE))


def test_an_infinite_threshold_is_null_with_a_reason(path: Path) -> None:
    few = check(alpha=0.001)
    few.save(path)
    content = json.loads(path.read_text())
    assert (content["threshold"], content["accepts"]) == (None, "nothing")
    assert "999 calibration inputs" in content["reason"]
    assert StabilityCheck.load(path) == few
    none = StabilityCheck.calibrate((REFERENCE, REFERENCE), alpha=0.1, statistic="gap")
    none.save(path)
    assert json.loads(path.read_text())["accepts"] == "everything"
    assert StabilityCheck.load(path) == none


def test_another_pair_is_refused(path: Path) -> None:
    check().save(path)
    with pytest.raises(StabilityError, match=r"check\.json is for another pair .*minilm@W4-g128-rtn"):
        StabilityCheck.load(path, spec="minilm@W3")
    with pytest.raises(StabilityError, match=r"reference model: .*others now"):
        StabilityCheck.load(path, spec="minilm@W4", model_fingerprint="others")
    check(on=None).save(path)
    for asked in ({"spec": "minilm@W4"}, {"model_fingerprint": "weights"}):
        with pytest.raises(StabilityError, match=r"pair: none that is told .* quantdrift certify"):
            StabilityCheck.load(path, **asked)
    check(on=None, spec="minilm@W4").save(path)
    assert StabilityCheck.load(path, spec="minilm@W4", model_fingerprint="not known then")


def test_a_server_can_refuse_other_quantized_weights_and_other_scores(path: Path) -> None:
    model = {"fingerprint": "weights", "candidate_fingerprint": "low"}
    settings = {"reading": "self-retrieval", "similarity": "cosine", "dtype": "torch.float32"}
    record = {**RECORD, "model": model, "settings": settings}
    check(on=record).save(path)
    assert json.loads(path.read_text())["origin"]["dtype"] == "torch.float32"
    assert StabilityCheck.load(path, candidate_fingerprint="low", on=record) == check(on=record)
    with pytest.raises(StabilityError, match=r"quantized weights: .* \(digest low .*, odd now\)"):
        StabilityCheck.load(path, candidate_fingerprint="odd")
    with pytest.raises(StabilityError, match=r"scores: self-retrieval by cosine .* logits now"):
        StabilityCheck.load(path, on={**record, "settings": {"reading": "logits"}})
    check().save(path)  # what the check does not know is not compared
    assert StabilityCheck.load(path, candidate_fingerprint="odd", on=record)


def test_something_else_is_neither_read_nor_replaced(path: Path) -> None:
    with pytest.raises(StabilityError, match="quantdrift certify RUN"):
        StabilityCheck.load(path)
    path.write_text('{"format": "quantdrift-run"}')
    with pytest.raises(StabilityError, match="expected a stability check"):
        StabilityCheck.load(path)
    with pytest.raises(RunError, match="not a stability check"):
        check().save(path)
    path.write_text('{"format"')
    with pytest.raises(StabilityError, match="is damaged"):
        StabilityCheck.load(path)
    path.write_text("[]")
    with pytest.raises(StabilityError, match="expected a stability check"):
        StabilityCheck.load(path)


def test_another_version_is_refused(path: Path) -> None:
    check().save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format_version": 1}))
    with pytest.raises(StabilityError, match="format version 1; this quantdrift reads version 2"):
        StabilityCheck.load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("statistic", "T"),
        ("statistic", ["S"]),
        ("alpha", 1.0),
        ("alpha", "0.1"),
        ("alpha", True),
        ("threshold", float("nan")),
        ("threshold", None),
        ("threshold", "0.5"),
        ("n_calibration", 5),  # too few for the level, yet the threshold is finite
        ("n_calibration", 40.0),
        ("n_calibration", -1),
        ("n_flipped", 41),
        ("n_items_min", 6),
        ("expected_coverage", 1.5),
        ("sample", []),
        ("sample", None),
        ("sample", [2.0, 1.0] * 20),
        ("sample", [float("inf")] * 40),
        ("origin", None),
        ("origin", {"spec": "minilm@W4"}),
        ("origin", {**Identity().to_json(), "spec": 4}),
        ("origin", {**Identity().to_json(), "more": None}),
        ("version", None),
    ],
)
def test_what_is_damaged_is_refused(path: Path, name: str, value: Any) -> None:
    check().save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, name: value}))
    with pytest.raises(StabilityError, match="is damaged"):
        StabilityCheck.load(path)
    with suppress(ValueError):  # NaN has no seal
        path.write_text(json.dumps(sealed({**content, name: value})))
        with pytest.raises(StabilityError, match=r"is damaged(?!.*was changed)"):
            StabilityCheck.load(path)
    del content[name]
    path.write_text(json.dumps(sealed(content)))
    with pytest.raises(StabilityError, match=f"'{name}' is missing"):
        StabilityCheck.load(path)


def test_a_threshold_that_was_changed_is_refused(path: Path) -> None:
    one = check()
    one.save(path)
    text = path.read_text()
    shown = f'"threshold": {one.threshold}'
    assert shown in text
    path.write_text(text.replace(shown, f'"threshold": {one.threshold / 2}'))
    with pytest.raises(StabilityError, match="was changed since"):
        StabilityCheck.load(path)


def test_the_sample_does_not_fill_a_thousand_lines(path: Path) -> None:
    check().save(path)
    assert len(path.read_text().splitlines()) <= 30
