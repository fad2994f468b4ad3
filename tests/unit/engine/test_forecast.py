"""How long a calibration takes, from runs that were timed; and what is left of a study by what was expected."""

from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift.cli import study
from quantdrift.engine.forecast import Cost, cost_of

RECORD: dict[str, Any] = {
    "spec": "minilm@W4-gptq",
    "data": {"n_documents": 400, "n_queries": 10},
    "quantization": {
        "seconds": 7.0,
        "seconds_in_method": 2.0,
        "layers_kept_from_before": 0,
        "calibration": {"source": "corpus", "n_inputs": 100},
    },
    "times": {"seconds": {"candidate: document embeddings": 8.0}},
}


def test_the_cost_of_a_run_by_hand() -> None:
    """Of 7 seconds 2 are the method's; the other 5 are 2.5 times what encoding 100 of 400 documents takes."""
    assert cost_of(RECORD) == Cost(method=2.0, forward=2.5)


@pytest.mark.parametrize(
    "change",
    [
        {"quantization": {"quantizer": "rtn"}},
        {"quantization": {**RECORD["quantization"], "layers_kept_from_before": 3}},
        {"quantization": {**RECORD["quantization"], "calibration": {"source": "texts.txt", "n_inputs": 100}}},
        {"times": {"seconds": {}}},
        {"times": None},
    ],
)
def test_a_run_that_tells_nothing_of_it(change: dict[str, Any]) -> None:
    assert cost_of({**RECORD, **change}) is None


def cell(name: str) -> Any:
    return SimpleNamespace(name=name, called="m", spec=SimpleNamespace(scheme=name), data=SimpleNamespace(called="d"))


@pytest.mark.parametrize(
    ("expected", "left"),
    [
        ({"a": 10.0, "b": 30.0, "c": 20.0}, ["about 50 s left", "about 20 s left"]),  # as fast as was expected
        ({"a": 1.0, "b": 3.0, "c": 2.0}, ["about 50 s left", "about 20 s left"]),  # ten times as slow
        ({}, ["about 20 s left", "about 20 s left"]),  # nothing is known: cells are alike
    ],
)
def test_what_is_left_weighs_cells_by_what_was_expected_of_them(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, float], left: list[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: now[0])
    told: list[str] = []
    monkeypatch.setattr(study, "note", told.append)
    display = study.Display(3, expected, quiet=False)
    for name, clock in (("a", 0.0), ("b", 10.0), ("c", 40.0)):
        now[0] = clock
        display.announce(cell(name))
    assert "left" not in told[0]
    assert [line.rpartition("; ")[2] for line in told[1:]] == left
