"""Metrics of other packages: loaded last, refused where their keys could be those of others, named where they fail."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from quantdrift.base.errors import UnknownNameError
from quantdrift.metrics import BUILT_IN, FAMILIES, MetricError, default_metrics, headline_metrics, measure, parse_metric
from quantdrift.metrics.keys import key_of
from quantdrift.runs.words import headlines
from quantdrift.show.tables import metric_grid
from quantdrift.statistics.estimates import Estimate
from support.packages import install
from support.small_evidence import evidence_of

HEAD = "import numpy as np\nfrom quantdrift.metrics import metric\n"
HALF = "\ndef {name}(evidence, cutoff, arm):\n    'Half of it.'\n    return {values}\n"
Installed = Callable[[Mapping[str, tuple[str, str]]], None]
TWO = evidence_of(np.array([[3.0, 1.0], [3.0, 1.0]]), np.array([[3.0, 1.0], [1.0, 3.0]]), k=2)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Install metrics by name: what the decorator is given beside the name, and what the function returns."""

    def forget() -> None:
        for part in ("_others", "points", "_entries"):
            vars(FAMILIES).pop(part, None)
        FAMILIES.broken.clear()
        for module in [module for module in sys.modules if module.startswith("of_")]:
            del sys.modules[module]

    def made(metrics: Mapping[str, tuple[str, str]]) -> None:
        points = {name: f"of_{name}:{name}" for name in metrics}
        files = {
            f"of_{name}.py": HEAD + f"@metric({name!r}, {fields})" + HALF.format(name=name, values=values)
            for name, (fields, values) in metrics.items()
        }
        install(tmp_path, "halves", files, {"quantdrift.metrics": points}, version="0.3")
        monkeypatch.syspath_prepend(tmp_path)
        forget()

    yield made
    monkeypatch.undo()
    forget()


LOWER = "direction='lower'"


def test_one_is_used_as_those_that_are_built_in_are_and_is_loaded_when_it_is_needed(installed: Installed) -> None:
    installed({"half": (f"{LOWER}, headline=True, cutoffs=(1, 2)", "[0, 1]")})
    flip = parse_metric("flip@1")
    assert "_entries" not in vars(FAMILIES)  # to look up one of ours loads none of theirs
    assert [str(metric) for metric in default_metrics()][-2:] == ["half@1", "half@2"]
    assert [str(metric) for metric in headline_metrics()][-1] == "half@2"
    assert FAMILIES.versions(*FAMILIES.values()) == {"halves": "0.3"}
    half = parse_metric("half@2")
    assert (half(TWO).value, half(TWO).n, key_of(half)) == (0.5, 2, "drift_half_at_2")
    assert half.family.summary == "half of it"
    stored = {str(metric): {"value": 0.5, "n": 2} for metric in (flip, half, parse_metric("ndcg@10"))}
    shown = headlines({"data": {"kind": "classification"}, "metrics": stored})
    assert [*shown] == ["flip@1", "half@2"]
    assert (parse_metric("half@2:gap=1..")(TWO).n, next(iter(measure(TWO)))) == (2, str(flip))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("flip", LOWER),
        ("Half", LOWER),
        ("half_2", LOWER),
        ("change_half", LOWER),
        ("half_low", LOWER),
        ("n_inputs", LOWER),
        ("half", "direction='down'"),
        ("half", ""),
        ("half", f"{LOWER}, kind='no kind'"),
        ("half", f"{LOWER}, cutoffs=[1]"),
        ("half", f"{LOWER}, cutoffs=(1.5,)"),
        ("half", f"{LOWER}, low=2"),
        ("half", f"{LOWER}, unit='pounds'"),
    ],
)
def test_one_that_could_be_taken_for_another(installed: Installed, name: str, fields: str) -> None:
    before = dict(BUILT_IN)
    installed({name: (fields, "[0, 1]")})
    assert dict(FAMILIES) == before == BUILT_IN
    assert list(FAMILIES.broken) == [name]
    if name == "half":
        with pytest.raises(UnknownNameError, match="quantdrift doctor"):
            parse_metric("half@1")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("np.zeros(3)", "expected 2 values"),
        ("[0, 2]", "from 0 to 1"),
        ("[0, 0.5]", "from 0 to 1"),
        ("evidence.no_such_field", "no attribute 'no_such_field'"),
        ("__import__('no_such_module')", "No module named"),
        ("exit(3)", "SystemExit"),
    ],
)
def test_one_that_fails_is_named_with_its_package_and_ends_no_run(installed: Installed, values: str, why: str) -> None:
    installed({"half": (LOWER, values)})
    with pytest.raises(MetricError, match=r"'half' of quantdrift\.metrics.* halves 0\.3") as told:
        measure(TWO, ["half"])
    assert why in str(told.value)
    estimates = measure(TWO)
    assert estimates["flip@1"].value == 0.5
    assert (estimates["half"].value, estimates["half"].reason) == (None, str(told.value))


def test_a_run_of_another_installation_is_shown_without_the_package() -> None:
    estimates = {"flip@1": Estimate(value=0.5, n=2), "half@2": Estimate(value=0.25, n=2)}
    grid = metric_grid(estimates)
    assert [row[:3:2] for row in grid.rows] == [["flip@1", ""], ["half@2", grid.rows[1][2]]]
    assert "no package that is installed" in grid.rows[1][2]
