"""A study as a file: nothing is lost, what is no study is refused, and so is a grid of nonsense."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_samples import cell, corpus, flips

from quantdrift.errors import DataError, QuantDriftError, RunError
from quantdrift.study.allocation.agreement import between_seeds, rank_correlation
from quantdrift.study.allocation.capture import COSTS, capture
from quantdrift.study.allocation.cells import CorpusCells
from quantdrift.study.allocation.plan import AllocationPlan, Draw
from quantdrift.study.allocation.pooling import at_budgets, pooled
from quantdrift.study.allocation.record import (
    AllocationStudy,
    check_place,
    read_study,
    write_study,
)

PLAN = AllocationPlan(criteria=("gap", "random"), budgets=(3.25, 3.5), seeds=(0, 7), sizes=(4,))


def measured(name: str = "hymns", *, fingerprint: str = "beef", labels: bool = True) -> CorpusCells:
    cells = [
        cell(
            flips(8, 1 + number),
            criterion,
            budget=budget,
            seed=seed,
            n_queries=4,
            widths=(3, 4) if criterion == "gap" or seed else (4, 3),
            scores=(1 / 3, 2e-17) if criterion == "gap" else (0.25, 1.0),
            counted=[query != seed for query in range(8)],
        )
        for number, (criterion, budget, seed) in enumerate(
            (criterion, budget, seed)
            for criterion in PLAN.criteria
            for budget in PLAN.budgets
            for seed in PLAN.seeds
        )
    ]
    relevant = [set(range(query % 3)) for query in range(8)] if labels else None
    return corpus(
        cells,
        low=flips(8, 6),
        high=flips(8, 1),
        name=name,
        relevant=relevant,
        fingerprint=fingerprint,
    )


STUDY = AllocationStudy(
    model="minilm", plan=PLAN, corpora=(measured(), measured("o", labels=False))
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_study(tmp_path / "made" / "study.json", STUDY)
    return tmp_path / "made" / "study.json"


def test_what_was_written_is_read_again(file: Path) -> None:
    found = read_study(file)
    assert (found.model, found.plan) == ("minilm", PLAN)
    for cost in COSTS:
        assert capture(found.corpora, PLAN.criteria, cost) == capture(
            STUDY.corpora, PLAN.criteria, cost
        )
    for name in PLAN.criteria:
        assert between_seeds(found.corpora, name) == between_seeds(STUDY.corpora, name)
        assert rank_correlation(found.corpora, "gap", name) == rank_correlation(
            STUDY.corpora, "gap", name
        )
    for ours, theirs in zip(found.corpora, STUDY.corpora, strict=True):
        for part in ("corpus", "fingerprint", "query_ids", "layers", "relevant"):
            assert getattr(ours, part) == getattr(theirs, part)
        for one, other in zip(ours.cells, theirs.cells, strict=True):
            assert one.scores.tolist() == other.scores.tolist()  # to the last bit
            assert one.counted.tolist() == other.counted.tolist()
    again = file.with_name("again.json")
    write_study(again, found)
    assert again.read_bytes() == file.read_bytes()


def test_a_cell_is_a_line(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if '"criterion"' in line]
    assert len(lines) == 16
    assert json.loads(lines[3].rstrip(","))["not_counted"] == [7]


def damage(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.pop("model"), "is damaged: KeyError.*'model'.*; measure it again"),
        (lambda c: c.update(corpora=[]), "no corpus"),
        (lambda c: c.update(plan=None), "damaged"),
        (lambda c: c["plan"].update(more=1), "damaged.*'more'"),
        (lambda c: c["plan"].update(budgets=[3.5, 4.5]), "damaged.*got 3.5, 4.5.*measure it again"),
        (lambda c: c["plan"].update(criteria=["gap", "luck"]), "damaged: unknown criterion 'luck'"),
        (lambda c: c["plan"].update(seeds=[0]), "the cells of hymns are not those of its grid"),
        (lambda c: c["corpora"][1]["cells"].pop(), "the cells of o are not those of its grid"),
        (lambda c: c["corpora"][0]["cells"][0].update(not_counted=[8]), "IndexError.*measure it"),
        (lambda c: c["corpora"][0]["cells"][0].update(first=[10**30] * 8), "OverflowError"),
        (lambda c: c["corpora"][0]["cells"][0]["first"].pop(), "in hymns, lists differ in length"),
        (lambda c: c["corpora"][0]["cells"][0]["widths"].pop(), "lists differ in length"),
        (lambda c: c["corpora"][0]["low"]["rtn"].pop(), "lists differ in length"),
        (lambda c: c["corpora"][0]["high"].pop("rtn"), "damaged: KeyError"),
        (lambda c: c["corpora"][0]["relevant"].pop(), "lists differ in length"),
        (lambda c: c["corpora"][0]["reference"].__setitem__(0, "x"), "damaged: ValueError"),
    ],
)
def test_a_damaged_study_is_refused(
    file: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    damage(file, change)
    with pytest.raises(DataError, match=said) as refused:
        read_study(file)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "\xff", '{"format": "quantdrift-alloc'])
def test_what_is_not_json_is_refused(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="expected a file that quantdrift study allocation wrote"):
        read_study(file)


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": "quantdrift-allocation"}'])
def test_json_of_another_kind_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(DataError, match="is no study of allocations; expected a file that"):
        read_study(file)


def test_another_version_is_refused(file: Path) -> None:
    damage(file, lambda content: content.update(version=2))
    with pytest.raises(DataError, match="of version 2; this quantdrift reads version 1"):
        read_study(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "none.json", tmp_path):
        with pytest.raises(DataError, match="expected a file that quantdrift study allocation"):
            read_study(place)


def test_only_a_study_is_replaced(file: Path, tmp_path: Path) -> None:
    check_place(file)
    check_place(tmp_path / "new" / "study.json")
    (tmp_path / "notes.json").write_text('{"format": "mine"}')
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.json", tmp_path / "notes.txt"):
        with pytest.raises(RunError, match=r"not a study of allocations.*Choose another place"):
            check_place(place)


def test_studies_of_one_model_and_grid_are_pooled() -> None:
    other = AllocationStudy(model="minilm", plan=PLAN, corpora=(measured("c"),))
    plan, corpora = pooled([STUDY, other])
    assert (plan, [part.corpus for part in corpora]) == (PLAN, ["hymns", "o", "c"])
    fewer = AllocationStudy(model="m", plan=replace(PLAN, held_out=9), corpora=(measured("c"),))
    assert pooled([STUDY, fewer])[0] == PLAN  # corpora are of different sizes anyway
    for wrong, said in (
        (AllocationStudy(model="m", plan=AllocationPlan(), corpora=()), "different grids"),
        (
            AllocationStudy(model="m", plan=PLAN, corpora=[measured("c", fingerprint="cafe")]),
            "different models",
        ),
        (AllocationStudy(model="m", plan=PLAN, corpora=[measured("o")]), "got hymns, o, o"),
    ):
        with pytest.raises(QuantDriftError, match=said):
            pooled([STUDY, wrong])


def test_a_part_of_the_budgets_is_a_study_of_its_own() -> None:
    part = at_budgets(STUDY, (3.5,))
    assert part.plan == replace(PLAN, budgets=(3.5,))
    assert capture(part.corpora, PLAN.criteria) == capture(
        STUDY.corpora, PLAN.criteria, chosen=lambda _, cell: cell.budget == 3.5
    )
    assert len(STUDY.corpora[0].cells) == 2 * len(part.corpora[0].cells) == 8
    assert pooled([at_budgets(STUDY, (3.5, 3.25))])[0].budgets == (3.5, 3.25)
    with pytest.raises(QuantDriftError, match=r"of hymns, o has no budget 3.75, only 3.25, 3.5"):
        at_budgets(STUDY, (3.5, 3.75))


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"budgets": (3.0, 4.5)}, "share of the benefit of one more bit.*got 3, 4.5"),
        ({"budgets": (3.5, 4.5)}, "between the same two whole numbers.*got 3.5, 4.5"),
        ({"budgets": (4.0,)}, "got 4"),
        ({"budgets": (1.5,)}, "from 2 to 8, e.g. 3.25,3.5,3.75; got 1.5"),
        ({"budgets": (8.5,)}, "from 2 to 8, e.g. 3.25,3.5,3.75; got 8.5"),
        ({"budgets": (3.5, 3.25, 3.5)}, "one or more budgets, each once; got 3.5, 3.25, 3.5"),
        ({"criteria": ("gap", "sqnr", "gap")}, "criteria, each once; got gap, sqnr, gap"),
        ({"criteria": ()}, "one or more criteria, each once; got none"),
        ({"criteria": ("gap", "gpa")}, r"unknown criterion 'gpa'; did you mean gap\?"),
        ({"criteria": ("gap+query",)}, "unknown criterion 'gap.query'"),
        ({"criteria": ("",)}, r"unknown criterion ''.*\(one of gap, "),
        ({"quantizers": ("rtn", "gtpq")}, r"unknown quantizer 'gtpq'; did you mean gptq\?"),
        ({"quantizers": ("rtn+query",)}, "unknown quantizer"),
        ({"quantizers": ()}, "one or more quantizers"),
        ({"solver": "magic"}, r"unknown solver 'magic' \(one of knapsack, greedy\)"),
        ({"seeds": ()}, "one or more seeds"),
        ({"sizes": (8, 8)}, "sizes, each once; got 8, 8"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid: dict[str, Any], said: str) -> None:
    with pytest.raises(QuantDriftError, match=said):
        AllocationPlan(**grid)


def test_a_grid_is_its_schemes() -> None:
    assert (PLAN.low, PLAN.high) == (3, 4)
    assert PLAN.draws() == [Draw(0, 4), Draw(7, 4)]
    schemes = [(name, budget, draw.seed) for name, budget, draw, _ in PLAN.schemes()]
    assert len(set(schemes)) == len(schemes) == 8
    scheme = PLAN.scheme("random", 3.25, Draw(7, 4))
    assert str(scheme) == "W3.25-g128-rtn+random+queries=4+seed=7+solver=knapsack"
    assert PLAN.rounding("gptq").widths == (3, 4)
    assert AllocationPlan(budgets=(7.5,)).high == 8
