"""The block `capture` of a study.yaml: the cells that it comes to, and what is said of a mistake in it."""

from pathlib import Path

import pytest

from quantdrift.base.errors import StudyError
from quantdrift.study.plan import cells_of, read_study


def schemes(folder: Path, block: str, more: str = "") -> list[str]:
    (folder / "study.yaml").write_text(f"models: [minilm]\ndata: [Docs]\ncapture: {{{block}}}\n{more}")
    return [str(cell.spec.scheme).replace("-g128", "") for cell in cells_of(read_study(folder / "study.yaml"))]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("", "W3-rtn W4-rtn W3.5-rtn+gap W3.5-rtn+reconstruction W3.5-rtn+random"),
        (
            "criteria: [gap, sqnr], budgets: [3.25, 4.5], quantizers: [hqq]",
            "W3-hqq W4-hqq W5-hqq W3.25-hqq+gap W3.25-hqq+sqnr W4.5-hqq+gap W4.5-hqq+sqnr",
        ),
        (  # what seed and size do not change is measured once
            "criteria: [gap, random, depth], seeds: [0, 2], sizes: [16, 128]",
            "W3-rtn W4-rtn W3.5-rtn+depth W3.5-rtn+random W3.5-rtn+random+seed=2 W3.5-rtn+gap W3.5-rtn+gap+seed=2 "
            "W3.5-rtn+gap+queries=16 W3.5-rtn+gap+queries=16+seed=2",
        ),
        (
            "criteria: [depth], quantizers: [gptq], seeds: [0, 1], documents: 64",
            "W3-gptq+calib=64 W4-gptq+calib=64 W3-gptq+calib=64+seed=1 W4-gptq+calib=64+seed=1 "
            "W3.5-gptq+depth+calib=64 W3.5-gptq+depth+calib=64+seed=1",
        ),
        (
            "criteria: [depth], widths: [2, 8, 4], budgets: [3, 3.5]",
            "W2-rtn W4-rtn W3-rtn+depth+widths=2,4,8 W3.5-rtn+depth+widths=2,4,8",
        ),
        (
            "criteria: [gap, depth], activations: [16, 8], sizes: [8]",
            "W3-rtn W4-rtn W3A8-rtn W4A8-rtn W3.5-rtn+gap+queries=8 W3.5-rtn+depth W3.5A8-rtn+gap+queries=8 "
            "W3.5A8-rtn+depth",
        ),
        (
            "criteria: [depth], widths: [4, 3], granularity: channel",
            "W3-channel-rtn W4-channel-rtn W3.5-channel-rtn+depth",
        ),
    ],
)
def test_every_allocation_stands_between_uniform_cells(tmp_path: Path, block: str, expected: str) -> None:
    assert sorted(schemes(tmp_path, block)) == sorted(expected.split())  # each once


def test_seeds_of_the_study_are_those_of_the_block_and_cells_may_be_left_out(tmp_path: Path) -> None:
    seeded = schemes(tmp_path, "criteria: [random]", "seeds: [0, 7]\n")
    assert seeded == ["W3-rtn", "W4-rtn", "W3.5-rtn+random", "W3.5-rtn+random+seed=7"]
    left = schemes(tmp_path, "criteria: [depth]", "schemes: [W8]\nexclude: [{scheme: W4*}]\n")
    assert left == ["W8-rtn", "W3-rtn", "W3.5-rtn+depth"]


def test_queries_are_held_out_whatever_is_said(tmp_path: Path) -> None:
    schemes(tmp_path, "criteria: [depth]", "settings: {k: 5}\n")
    asked = {cell.settings.model_dump_json(exclude_none=True) for cell in cells_of(read_study(tmp_path / "study.yaml"))}
    assert asked == {'{"k":5,"held_out":{"share":0.75,"seed":0}}'}
    schemes(tmp_path, "criteria: [depth]", "settings: {held_out: {share: 0.5}}\n")
    (cell, *_) = cells_of(read_study(tmp_path / "study.yaml"))
    assert cell.settings.held_out.share == 0.5


@pytest.mark.parametrize(
    ("block", "more", "message"),
    [
        ("criteria: [gap, gapp]", "", "capture: unknown criterion 'gapp'; did you mean gap"),
        ("quantizers: [gtpq]", "", "did you mean gptq"),
        ("budget: [3.5]", "", "capture: unknown key 'budget'; did you mean budgets?"),
        ("budgets: [4]", "", "expected one no whole number, such as 3.5; got 4"),
        ("budgets: [3.5], widths: [4, 8]", "", "between two of the widths [4, 8]"),
        ("budgets: [9.5]", "", "W9"),
        ("sizes: [8, 8]", "", "sizes: expected each once"),
        ("sizes: [0]", "", "capture.sizes.0: input should be greater than or equal to 1"),
        ("granularity: g0", "", "a granularity"),
        ("activations: [9]", "", "A and 4 to 8"),
        ("", "settings: {held_out: {share: 1.5}}\n", "settings.held_out.share: input should be less than 1"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, block: str, more: str, message: str) -> None:
    with pytest.raises(StudyError) as caught:
        schemes(tmp_path, block, more)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
