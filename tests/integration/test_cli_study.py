"""`quantdrift study allocation` and `study show`, as a user types them, on a tiny model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_command_line import N_QUERIES, Run, corpora, one_thread, place, quantdrift

from quantdrift.allocation.first_answers import FirstAnswers
from quantdrift.allocation.gradients import one_pass
from quantdrift.statistics import Estimate
from quantdrift.study.allocation.agreement import between_seeds, rank_correlation, with_size
from quantdrift.study.allocation.capture import capture
from quantdrift.study.allocation.cells import CorpusCells
from quantdrift.study.allocation.record import read_study

__all__ = ["corpora", "one_thread", "place", "quantdrift"]  # fixtures

NAMES = ("gap", "random")
GRID = ("--criteria", "gap,random", "--budgets", "3.25,3.5", "--group", "64")
A, B = ("--data", "ROOT/a"), ("--data", "ROOT/b")


@pytest.fixture
def own_cache(quantdrift: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing that another test measured is there."""
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one entry with every time that a model answers."""
    times: list[int] = []
    now = FirstAnswers.now

    def counted(self: FirstAnswers, tell: Callable[[int], None]) -> Any:
        found = now(self, tell)
        times.append(len(found))
        return found

    monkeypatch.setattr(FirstAnswers, "now", counted)
    return times


def row(shown: str, start: str, after: str) -> list[str]:
    """What stands in the first line that starts with a word, of those after another."""
    lines = shown.partition(after)[2].splitlines()
    return re.split(r"\s{2,}", next(line for line in lines if line.startswith(start)).strip())


def ratio(estimate: Estimate, sign: str = "") -> str:
    value, low, high = (f"{v:{sign}.2f}" for v in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"


def widths_of(corpus: CorpusCells) -> set[tuple[int, ...]]:
    """Everything that a model has to answer with on a corpus, by one quantizer."""
    n_layers = len(corpus.layers)
    return {(3,) * n_layers, (4,) * n_layers} | {tuple(c.widths.tolist()) for c in corpus.cells}


def test_tables(quantdrift: Run) -> None:
    shown = quantdrift("study", "allocation", "TINY", *A, *B, *GRID)
    found = read_study(Path("allocation-study.json")).corpora
    assert "tiny, g64: answers among the first 20 documents of each query" in shown
    for corpus in found:
        arms = (corpus.low["rtn"], corpus.high["rtn"])
        rates = [f"{100 * np.mean(first != corpus.reference):.1f} %" for first in arms]
        name = corpus.corpus
        assert row(shown, f"{name} ", "other first, W4 rtn") == [name, str(N_QUERIES), *rates]
    gap, random = capture(found, NAMES)
    assert random.difference is not None
    assert row(shown, "gap", "pooled over 4 cells") == [
        *("gap", ratio(gap.ratio), f"{gap.first_in} of 4")
    ]
    assert row(shown, "random", "gap is ahead by") == [
        *("random", ratio(random.ratio), ratio(random.difference, "+"), f"{random.first_in} of 4")
    ]
    for axis, values, of in (
        ("budget", (3.25, 3.5), lambda _, cell: cell.budget),
        ("corpus", ("a", "b"), lambda name, _: name),
    ):
        parts = [
            capture(found, NAMES, chosen=lambda c, cell, v=v, of=of: of(c, cell) == v)
            for v in values
        ]
        assert row(shown, "criterion", f"by {axis}:") == ["criterion", *map(str, values)]
        for number, name in enumerate(NAMES):
            expected = [f"{part[number].ratio.value:.2f}" for part in parts]
            assert row(shown, name, f"by {axis}:") == [name, *expected]
    alike = rank_correlation(found, *NAMES)
    assert row(shown, "random", "Spearman with gap") == ["random", f"{alike:.2f}"]
    for absent in ("by quantizer", "by queries", "two seeds", "recall@1"):
        assert absent not in shown
    assert shown.rstrip().endswith("study: allocation-study.json")


def test_json_is_what_the_file_says(quantdrift: Run, place: Path) -> None:
    args = ("study", "allocation", "TINY", *A, *B, *GRID, "-o", "made/study.json")
    found = json.loads(quantdrift(*args, "--json"))
    study = read_study(Path("made/study.json"))
    assert (found["model"], found["corpora"]) == (str(place / "tiny"), ["a", "b"])
    assert set(found["capture"]) == {"flip@1"}
    for shown, part in zip(found["capture"]["flip@1"], capture(study.corpora, NAMES), strict=True):
        assert shown["ratio"] == part.ratio.to_json()
        assert shown["difference"] == (part.difference and part.difference.to_json())
        assert (shown["best_in"], shown["n_cells"]) == (part.first_in, 4)
    assert found["spearman"]["gap"] == pytest.approx(1)
    assert found["same_width_between_seeds"] == {"gap": None, "random": None}


def test_the_file_holds_no_text_of_the_corpus(quantdrift: Run, place: Path) -> None:
    quantdrift("study", "allocation", "TINY", *A, *GRID)
    written = Path("allocation-study.json").read_text()
    for name in ("queries", "corpus"):
        for line in (place / f"a/{name}.jsonl").read_text().splitlines():
            assert json.loads(line)["text"] not in written
    assert '"q0"' in written


def test_seeds_and_sizes_show_how_much_widths_depend_on_the_draw(quantdrift: Run) -> None:
    draws = ("--seeds", "0,1", "--sizes", "4,8")
    shown = quantdrift("study", "allocation", "TINY", *A, *GRID, *draws)
    found = read_study(Path("allocation-study.json")).corpora
    assert len(found[0].cells) == 2 * 2 * 2 * 2
    for name in NAMES:
        shares = (between_seeds(found, name), with_size(found, name, 4, 8))
        expected = [f"{value:.2f}" for value in (rank_correlation(found, "gap", name), *shares)]
        assert row(shown, name, "get the same width") == [name, *expected]
    assert "same width, two seeds" in shown
    assert "4 as with 8" in shown
    assert with_size(found, "random", 4, 8) == 1  # it looks at no queries
    assert between_seeds(found, "random") != 1
    assert len(row(shown, "gap", "by queries:")) == 3
    # the queries of each draw do not count in its cells, whoever looked at them
    counts = {(c.n_queries, int(c.counted.sum())) for c in found[0].cells}
    assert counts == {(4, N_QUERIES - 4), (8, N_QUERIES - 8)}


@pytest.mark.usefixtures("own_cache")
def test_the_second_time_nothing_is_measured(
    quantdrift: Run, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("study", "allocation", "TINY", *A, *GRID)
    first = quantdrift(*args)
    assert len(answered) == len(widths_of(read_study(Path("allocation-study.json")).corpora[0]))
    written = Path("allocation-study.json").read_bytes()
    answered.clear()
    with monkeypatch.context() as patched:
        patched.setattr(one_pass, "BackwardPasses", lambda *_: pytest.fail("measured again"))
        assert quantdrift(*args) == first
    assert not answered
    assert Path("allocation-study.json").read_bytes() == written
    assert quantdrift(*args, "--no-cache") == first
    assert answered


@pytest.mark.usefixtures("own_cache")
def test_a_larger_grid_measures_what_is_new(quantdrift: Run, answered: list[int]) -> None:
    quantdrift("study", "allocation", "TINY", *A, *GRID, "-o", "small.json")
    before = widths_of(read_study(Path("small.json")).corpora[0])
    answered.clear()
    larger = ("--criteria", "random,gap,depth", "--budgets", "3.5,3.25,3.75", "--seeds", "0,3")
    quantdrift("study", "allocation", "TINY", *A, "--group", "64", *larger, "-o", "large.json")
    new = widths_of(read_study(Path("large.json")).corpora[0]) - before
    assert 0 < len(new) == len(answered)


@pytest.mark.usefixtures("own_cache")
def test_after_ctrl_c_the_same_command_goes_on_where_it_was(
    quantdrift: Run, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("study", "allocation", "TINY", *A, *GRID)
    now = FirstAnswers.now

    def pressed(self: FirstAnswers, tell: Callable[[int], None]) -> Any:
        if len(answered) == 3:
            raise KeyboardInterrupt
        return now(self, tell)

    with monkeypatch.context() as patched:
        patched.setattr(FirstAnswers, "now", pressed)
        said = quantdrift(*args, code=130)
    assert "was not written; what was answered is kept, and the same command goes on" in said
    assert len(answered) == 3
    quantdrift(*args)
    assert len(answered) == len(widths_of(read_study(Path("allocation-study.json")).corpora[0]))


def test_what_is_kept_and_damaged_is_measured_again(
    quantdrift: Run, answered: list[int], own_cache: Path
) -> None:
    args = ("study", "allocation", "TINY", *A, *GRID)
    first = quantdrift(*args)
    n_answers = len(answered)
    for file in own_cache.glob("sensitivities/*/*/*.npy"):
        file.write_bytes(file.read_bytes()[:-3])
    assert quantdrift(*args) == first
    assert len(answered) == 2 * n_answers
