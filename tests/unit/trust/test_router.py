"""The rule and its threshold, on slices small enough to follow by hand."""

import doctest
import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from quantdrift.base.errors import QuantDriftError, RunError, ScoreError
from quantdrift.base.records import with_checksum
from quantdrift.statistics.conformal import confidence_of, observe
from quantdrift.trust.router import GapRouter, percentile_threshold, recovery_threshold
from support.places import ROOT

# gaps 1, 2, 3, 4; the answers to inputs 0 and 2 change
BEFORE = [[0.0, 0.4], [2.0, 0.0], [0.0, 0.1], [4.0, 0.0]]
AFTER = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]


def test_an_input_is_routed_strictly_below_the_threshold() -> None:
    router = GapRouter(threshold=2.0)
    assert router.routes(AFTER).tolist() == [True, False, False, False]
    assert router.routes(np.array(AFTER)[:, ::-1]).tolist() == [True, False, False, False]
    scores = np.log([[0.5, 0.5], [0.9, 0.1]])
    assert GapRouter(threshold=0.6, score="msp").routes(scores).tolist() == [True, False]
    # minus the entropies: -0.693 and -0.325
    router = GapRouter(threshold=-0.5, score="entropy")
    assert (router.routes(scores).tolist(), router.rule) == ([True, False], "entropy above 0.5 nats")


@pytest.mark.parametrize(("percentile", "routed"), [(0, 0), (10, 1), (25, 1), (34, 2), (50, 2), (75, 3), (100, 4)])
def test_a_percentile_routes_about_that_share_of_its_slice(percentile: int, routed: int) -> None:
    threshold = percentile_threshold(confidence_of(AFTER, "gap"), percentile)
    assert GapRouter(threshold=threshold).routes(AFTER).sum() == routed


@pytest.mark.parametrize(("share", "routed"), [(0.5, 1), (0.51, 3), (1.0, 3)])
def test_the_smallest_threshold_that_gives_back_a_share_of_the_changes(share: float, routed: int) -> None:
    seen = observe((BEFORE, AFTER), "gap")
    threshold = recovery_threshold(seen.confidence, seen.flipped, share)
    assert GapRouter(threshold=threshold).routes(AFTER).sum() == routed
    # nine tenths of ten are nine
    assert recovery_threshold(np.arange(10.0), np.ones(10, dtype=bool), 0.9) == np.nextafter(8, 9)


def test_the_page_on_routing_serves_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    GapRouter(threshold=0.5).save("router.json")
    result = doctest.testfile(str(ROOT / "docs" / "explained" / "trust.md"), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


def test_what_cannot_be_set_is_refused() -> None:
    with pytest.raises(QuantDriftError, match="none of the 4"):
        recovery_threshold(np.arange(4.0), np.zeros(4, dtype=bool), 0.9)
    with pytest.raises(QuantDriftError, match="above 0"):
        recovery_threshold(np.arange(4.0), np.ones(4, dtype=bool), 0)
    with pytest.raises(QuantDriftError, match="0 to 100"):
        percentile_threshold(np.arange(4.0), 101)
    for wrong in ({"threshold": float("nan")}, {"threshold": 1, "score": "entrpy"}):
        with pytest.raises(ValidationError):
            GapRouter(**wrong)
    with pytest.raises(ScoreError, match="batch of one"):
        GapRouter(threshold=1).routes([1.0, 2.0])


def test_a_file_that_is_no_router_of_the_pair_is_refused(tmp_path: Path) -> None:
    """What a file of a threshold is refused for, test_check.py has in full."""
    path = tmp_path / "router.json"
    GapRouter(threshold=1.0).save(path)
    with pytest.raises(RunError, match="quantdrift route RUN"):
        GapRouter.load(path, spec="vit@W4")
    content = json.loads(path.read_text())
    for change in ({"score": "margin"}, {"threshold": True}, {"threshold": None}, {"guarantee": "system"}, {"k": 0}):
        path.write_text(json.dumps(with_checksum({**content, **change})))
        with pytest.raises(RunError, match="damaged"):
            GapRouter.load(path)
