"""The capture of a study by hand: pooled over points, paired over queries; what it is not defined for."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap

from quantdrift.base.errors import StudyError
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.show.tables import write_table
from quantdrift.study.folder import StudyFolder, StudyRecord
from quantdrift.study.plan import Cell
from quantdrift_paper.capture import METRICS, Captured, Contest, columns_of, read_capture, rows_of
from quantdrift_paper.tables import Source
from support.command_line import cli
from support.comparison_samples import N, evidence_of, flipped, scores
from support.places import ROOT
from support.study_samples import planned

FLIP = parse_metric("flip@1")
Flips = Mapping[str, Mapping[str, int | range]]
"""Data and bits with criterion, "W3.5+gap", to how many of the 60 queries flip, the first ones, or which."""
MUCH = {"W3": 48, "W4": 18, "W3.5+gap": 24, "W3.5+random": 42}
LITTLE = {"W3": 12, "W4": 6, "W3.5+gap": 18, "W3.5+random": 6}


def study_of(
    folder: Path, flips: Flips, allocation: Mapping[str, Any] = {}, kind: Mapping[str, str] = {}, **block: Any
) -> StudyFolder:
    """A finished capture study in which so many queries flip by every quantizer; cells without a number are open."""

    def finished(cell: Cell) -> Any:
        scheme, data = cell.spec.scheme, cell.data.called
        name = f"W{scheme.weight_bits:g}" + ("" if scheme.activation_bits is None else f"A{scheme.activation_bits}")
        name += "" if scheme.criterion is None else f"+{scheme.criterion}"
        rows = flips[data].get(name)
        if rows is None:
            return None
        candidate = flipped(scores(), range(rows) if isinstance(rows, int) else rows)
        seed = str(scheme.option("seed", "0"))
        chosen = {"allocation": allocation.get(f"{scheme.criterion} {seed}") or allocation.get(seed)}
        data_of = {"name": data, "fingerprint": data, **kind}
        return evidence_of(scores(), candidate), {"data": data_of, "quantization": chosen}

    capture = {"criteria": ["gap", "random"], **block}
    return planned(folder, {"models": ["m"], "data": [*flips], "capture": capture}, finished)


def captures(study: StudyFolder, metric: str = "flip@1", **how: Any) -> dict[str, Captured]:
    captured = read_capture([study], [parse_metric(metric)]).captures(parse_metric(metric), **{"by": (), **how})
    return {share.criterion: share for share in captured}


def contest(study: StudyFolder) -> Contest:
    (result,) = read_capture([study], [FLIP]).contests(FLIP)
    return result


def test_capture_is_the_sum_of_gains_over_the_sum_of_headrooms(tmp_path: Path) -> None:
    study = study_of(tmp_path, {"a": MUCH, "b": LITTLE})
    captured = captures(study)
    # gains of gap 0.8 - 0.4 and 0.2 - 0.3, headrooms 0.5 and 0.1; the mean of its ratios would be (0.8 - 1) / 2
    assert captured["gap"].ratio.value == pytest.approx(0.3 / 0.6)
    assert captured["random"].ratio.value == pytest.approx((0.1 + 0.1) / 0.6)
    assert (captured["gap"].low, captured["gap"].value, captured["gap"].high) == pytest.approx((0.5, 0.35, 0.2))
    assert [captured[name].best_in for name in ("gap", "random")] == [1, 1]
    by_data = read_capture([study], [FLIP]).captures(FLIP, by=("data",))
    assert [(share.of["data"], share.criterion, share.ratio.value) for share in by_data] == [
        ("a", "gap", pytest.approx(0.8)),
        ("a", "random", pytest.approx(0.2)),
        ("b", "gap", pytest.approx(-1.0)),
        ("b", "random", pytest.approx(1.0)),
    ]
    between = contest(study)
    assert between.difference.value == pytest.approx(1 / 2 - 1 / 3)
    assert (between.ahead, between.behind, between.difference.n) == (1, 1, 2)


def test_the_page_on_the_paper_takes_the_same_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "measured" / "paper")
    measure = importlib.import_module("measure")
    draws = {seed: {"widths": {"a": 3, "b": width}} for seed, width in (("0", 3), ("1", 4))}
    study_of(tmp_path / "s", {"a": MUCH}, draws, seeds=[0, 1], criteria=["gap+solver=greedy", "random"])
    row = measure.measured(tmp_path, "s", "gap/rtn/3.5 capture(flip@1) | random/rtn/3.5 capture(flip@1)")
    assert (row["n"], float(row["first"]), float(row["second"])) == (str(N), pytest.approx(0.8), pytest.approx(0.2))
    row = measure.measured(tmp_path, "s", "gap agreement() | 0.5")
    assert (row["n"], row["first"], row["difference"]) == ("2", "0.5", "0")


def test_quantized_activations_are_in_the_uniform_widths_too(tmp_path: Path) -> None:
    """What they change at any width is nothing that an allocation could keep."""
    with_a8 = {"W3A8": 54, "W4A8": 30, "W3.5A8+gap": 36, "W3.5A8+random": 48}
    study = study_of(tmp_path, {"a": {**MUCH, **with_a8}}, activations=[16, 8])
    shares = {
        (row.of["activations"], row.criterion): row.ratio.value for row in read_capture([study], [FLIP]).captures(FLIP)
    }
    assert shares == pytest.approx({(16, "gap"): 0.8, (16, "random"): 0.2, (8, "gap"): 0.75, (8, "random"): 0.25})


@pytest.mark.parametrize("metric", METRICS)
def test_of_a_metric_that_is_better_when_high_it_is_the_same_share(tmp_path: Path, metric: str) -> None:
    """In these runs the reference's first answer is the right one, so a flip loses it."""
    captured = captures(study_of(tmp_path, {"a": MUCH}), metric)
    assert {name: share.ratio.value for name, share in captured.items()} == pytest.approx({"gap": 0.8, "random": 0.2})
    assert [captured[name].best_in for name in ("gap", "random")] == [1, 0]


def test_the_intervals_are_those_of_an_ordinary_paired_bootstrap(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(N)
    limits = {"W3": 0.2, "W4": 0.8, "W3.5+gap": 0.5, "W3.5+random": 0.35}
    flips = {name: hard + rng.normal(0, 0.2, N) > limit for name, limit in limits.items()}
    study = study_of(tmp_path, {"a": {name: np.flatnonzero(rows).tolist() for name, rows in flips.items()}})
    low, high, gap, drawn = (rows.astype(float) for rows in (flips["W3"], flips["W4"], *list(flips.values())[2:]))
    for estimate, gain in ((captures(study)["gap"].ratio, low - gap), (contest(study).difference, drawn - gap)):
        expected = bootstrap(
            (gain, low - high),
            lambda gained, other, axis: gained.mean(axis=axis) / other.mean(axis=axis),
            paired=True,
            method="percentile",
            rng=np.random.default_rng(7),
        ).confidence_interval
        assert estimate.value == pytest.approx(gain.sum() / (low - high).sum())
        assert (estimate.low, estimate.high) == pytest.approx(tuple(expected), abs=0.03)


def test_a_query_is_one_draw_however_many_cells_it_is_in(tmp_path: Path) -> None:
    """Six queries flip by one criterion only: 2 of 64 signs are as extreme, with one quantizer or three."""
    flips = {"a": {"W3": 48, "W4": 18, "W3.5+gap": 24, "W3.5+random": 30}}
    plain = contest(study_of(tmp_path / "1", flips))
    three = contest(study_of(tmp_path / "3", flips, quantizers=["rtn", "hqq", "gptq"]))
    assert plain.p == plain.p_holm == three.p == pytest.approx(2 / 64)
    assert (three.difference.value, three.difference.n) == (pytest.approx(6 / 30), 3)
    assert (three.difference.low, three.difference.high) == pytest.approx((plain.difference.low, plain.difference.high))


def test_without_headroom_there_is_no_capture_and_little_of_it_has_no_interval(tmp_path: Path) -> None:
    none = captures(study_of(tmp_path / "none", {"a": {**MUCH, "W4": 48}}))["gap"].ratio
    assert (none.value, none.reason) == (None, "the high width does no better than the low one")
    little = captures(study_of(tmp_path / "little", {"a": {**MUCH, "W3": 2, "W4": 1, "W3.5+gap": 1}}))["gap"].ratio
    assert (little.value, little.low) == (1.0, None)  # a third of the samples lack that query


def test_what_is_not_done_is_left_out_of_what_is_pooled_and_compared(tmp_path: Path) -> None:
    study = study_of(tmp_path, {"a": MUCH, "b": {"W3": 12, "W4": 6, "W3.5+gap": 6}, "c": {"W3": 12, "W3.5+gap": 0}})
    capture = read_capture([study], [FLIP])
    assert capture.missing == 1 + 2
    assert {share.criterion: share.ratio.n for share in capture.captures(FLIP, by=())} == {"gap": 2, "random": 1}
    assert contest(study).difference.value == pytest.approx(0.8 - 0.2)


def test_widths_are_compared_between_draws_of_other_queries(tmp_path: Path) -> None:
    def drawn(digest: str, *widths: int) -> dict[str, Any]:
        return {"data_digest": digest, "widths": dict(zip("wxyz", widths, strict=True))}

    draws = {"0": drawn("x", 3, 3, 4, 4), "1": drawn("y", 3, 4, 4, 4), "2": drawn("y", 3, 4, 4, 4)}
    (agreement,) = read_capture([study_of(tmp_path, {"a": MUCH}, draws, seeds=[0, 1, 2])], [FLIP]).agreements()
    # seeds 1 and 2 drew the same queries, as all there are were asked for
    assert (agreement.criterion, agreement.model, agreement.n_pairs, agreement.share) == ("gap", "m", 2, 0.75)


def test_rows_say_captures_and_differences(tmp_path: Path) -> None:
    capture = read_capture([study_of(tmp_path, {"a": MUCH, "b": LITTLE})], [FLIP])
    rows = rows_of(capture, [FLIP])
    pooled = [row for row in rows if row["data"] is None and row["quantizer"] is None]
    assert [(row["criterion"], row["against"], row["capture"]) for row in pooled] == [
        ("gap", None, pytest.approx(1 / 2)),
        ("random", None, pytest.approx(1 / 3)),
        ("gap", "random", pytest.approx(1 / 6)),
    ]
    assert {row["data"] for row in rows} == {None, "a", "b"}
    write_table(columns_of(rows), rows, tmp_path / "t.csv")
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1 + len(rows)


def test_what_has_no_capture_is_refused(tmp_path: Path) -> None:
    study = study_of(tmp_path, {"a": MUCH})
    with pytest.raises(MetricError, match="not separation"):
        read_capture([study], [parse_metric("separation")])
    with pytest.raises(StudyError, match="no block `capture`"):
        read_capture([StudyFolder(path=study.path, record=StudyRecord(cells=study.cells))], [FLIP])


PAPERS = "gap_exact+solver=greedy"


def test_the_claim_of_the_paper_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift_paper.tables.write_pictures", lambda figures, place, form: [])
    for name, flips, words in (("yes", 20, "HOLDS here: +46.7 ("), ("no", 36, "is NOT seen here: -6.7 (")):
        of = {"W3": 48, "W4": 18, "W3.5+gap_exact": flips, "W3.5+reconstruction": 34}
        study = study_of(tmp_path / name, {"a": of}, criteria=[PAPERS, "reconstruction"])
        for command in (("tables", study.path, "-o", tmp_path / "tex"), ("capture", study.path)):
            first = cli(*command)[1].strip().splitlines()[0]
            assert first.startswith("The paper's claim")
            assert words in " ".join(cli(*command)[1].split()), command


def test_studies_are_joined(tmp_path: Path) -> None:
    """Points of two studies of the same corpora are one capture; the run of a pair that both have counts once."""
    one = study_of(tmp_path / "1", {"a": MUCH})
    two = study_of(
        tmp_path / "2", {"a": {**MUCH, "W3.5+depth": 30}, "b": {**LITTLE, "W3.5+depth": 9}}, criteria=["depth"]
    )
    capture = read_capture([one, two], [FLIP])
    shares = {found.criterion: found.ratio.value for found in capture.captures(FLIP, by=())}
    assert shares == pytest.approx({"gap": 24 / 30, "random": 6 / 30, "depth": (18 + 3) / 36})
    assert len(Source(folders=[one, two]).cells) == 3 + 1 + 1 + 3  # W3 and W4 of the corpus a are there twice
