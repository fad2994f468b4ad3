"""Names and keys of metrics, and metrics of other packages."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from quantdrift.base.errors import UnknownNameError
from quantdrift.metrics import BUILT_IN, FAMILIES, MetricError, default_metrics, measure, parse_metric
from quantdrift.metrics.base import Slice
from quantdrift.metrics.keys import VARIABLE, drift_keys, harness_metrics, key_of
from quantdrift.show.run import figure_grid
from quantdrift.show.tables import metric_grid
from quantdrift.statistics.estimates import Estimate
from support.packages import install
from support.small_evidence import CANDIDATE, QRELS, REFERENCE, THREE, evidence_of


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("gold_lost@3", "gold_lost@3"),
        ("candidate.ndcg@5", "ndcg@5"),
        (" mrr@100 ", "mrr@100"),
        ("coverage@0.1", "coverage@0.10"),
        ("violation@0.000001", "violation@0.000001"),
        ("flip@1:separation=0.05..0.1", "flip@1:separation=0.05..0.1"),
        ("harm:contenders=5.0..10", "harm:contenders=5..10"),
        ("change.ndcg@10:reference.ndcg@10=0..0.5", "change.ndcg@10:reference.ndcg@10=0..0.5"),
        ("relative.mrr@3", "relative.mrr@3"),
        ("flip@1:candidate_gap=-1..2", "flip@1:candidate_gap=-1..2"),
    ],
)
def test_other_cut_offs_slices_and_spellings(text: str, canonical: str) -> None:
    metric = parse_metric(text)
    assert (str(metric), parse_metric(canonical)) == (canonical, metric)
    assert hash(parse_metric(canonical)) == hash(metric)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("flop@1", "flip@1"),
        ("gold-lost@5", "gold_lost@5"),
        ("reference.ndgc@10", "reference.ndcg@10"),
        ("ndcg@0", "ndcg@10"),
        ("EPSILON", "epsilon"),
        *((text, None) for text in ("", "@", "@10", "ndcg@-1", "ndcg 10", "🐍", "coverage@0.0", "coverage@0.1e2")),
    ],
)
def test_a_wrong_name_gets_the_nearest(text: str, meant: str | None) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_metric(text)
    assert meant is None or caught.value.suggestions[0] == meant
    assert f"unknown metric {text!r}" + ("" if meant is None else f"; did you mean {meant}") in str(caught.value)
    assert "quantdrift list metrics" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ndcg", "'ndcg' takes a cut-off, a whole number, as in ndcg@10; got none"),
        ("separation@1", "'separation' takes no cut-off; got @1"),
        ("flip@5", "as in flip@1 and no other; got @5"),  # a flip is of the first item
        ("coverage@10", "a level above 0 and below 1 .*, as in coverage@0.10; got @10"),
        ("gold_lost@0.5", "a whole number, as in gold_lost@1; got @0.50"),
        ("flip@1:separation=..1", "expected a slice such as flip@1:separation="),
        ("flip@1:separation=1..1", "a finite lower end below its upper end; got 1..1"),
        ("flip@1:relative.ndcg@10=0..1", "got relative.ndcg@10"),
        ("flip@1:ndcg=0..1", "'ndcg' takes a cut-off"),
        ("separation_quantile@100", "a percentile from 1 to 99"),
        ("reference.flip@1", "'flip' compares the two arms; it has no 'reference.' form"),
    ],
)
def test_a_form_that_a_metric_does_not_have(text: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        parse_metric(text)
    with pytest.raises(MetricError, match="every input"):
        Slice(by=parse_metric("gap:separation=0..1"), low=0)


# --- keys of a harness -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "key"),
    [
        ("flip@1", "drift_flip_at_1"),
        ("separation", "drift_separation_median"),
        ("cut_separation@2", "drift_cut_separation_at_2_median"),
        ("separation_quantile@25", "drift_separation_quantile_at_25"),
        ("reference.ndcg@10", "drift_reference_ndcg_at_10"),
        ("relative.ndcg@10", "drift_relative_ndcg_at_10"),
        ("coverage@0.1", "drift_coverage_at_0.10"),
        ("flip@1:coverage@0.05=1..", "drift_flip_at_1_where_coverage_at_0_05_from_1"),
        ("gap:ndcg@10=0..0.5", "drift_gap_median_where_ndcg_at_10_0_to_0.5"),
        ("flip@1:separation_quantile@9=1..2", "drift_flip_at_1_where_separation_quantile_at_9_1_to_2"),
    ],
)
def test_the_key_of_a_metric(metric: str, key: str) -> None:
    assert key_of(parse_metric(metric)) == key


def test_values_intervals_and_nulls() -> None:
    asked = [parse_metric(name) for name in ("flip@1", "gap", "change.recall@1", "noise_floor")]
    keys = drift_keys(THREE, asked, warn=pytest.fail)
    flip, change = ([f"drift_{name}_at_1{end}" for end in ("", "_low", "_high")] for name in ("flip", "change_recall"))
    assert list(keys) == [*flip, "drift_gap_median", *change, "drift_noise_floor"]
    assert (keys["drift_flip_at_1"], keys["drift_gap_median"]) == (2 / 3, 1)
    assert keys["drift_noise_floor"] is None
    assert json.loads(json.dumps(drift_keys(THREE, default_metrics(), warn=print), allow_nan=False))


def test_users_add_metrics_and_a_misspelt_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert harness_metrics() == default_metrics()
    monkeypatch.setenv(VARIABLE, " gold_lost@3,harm:separation=0..0.05  flip@1 ")
    added = [str(metric) for metric in harness_metrics()[len(default_metrics()) :]]
    assert added == ["gold_lost@3", "harm:separation=0..0.05"]  # flip@1 is there already
    monkeypatch.setenv(VARIABLE, "gold_last@3")
    with pytest.raises(UnknownNameError, match="gold_lost@1"):
        harness_metrics()
    monkeypatch.setenv(VARIABLE, "ndcg")
    with pytest.raises(MetricError, match=r"QUANTDRIFT_METRICS: .*'ndcg'"):
        harness_metrics()


def test_a_finished_evaluation_is_not_thrown_away() -> None:
    """A cut-off deeper than the stored ranks is known only at the end."""

    cut = evidence_of(REFERENCE, CANDIDATE, k=2, qrels=QRELS)
    warnings: list[str] = []
    keys = drift_keys(cut, [parse_metric("ndcg@3"), parse_metric("flip@1")], warn=warnings.append)
    assert keys["drift_ndcg_at_3"] is None
    assert (keys["drift_flip_at_1"], len(warnings)) == (0.5, 1)
    assert "keep 3 ranks" in warnings[0]


# --- metrics of other packages -----------------------------------------------------------------------


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
    installed({"half": (f"{LOWER}, cutoffs=(1, 2)", "[0, 1]")})
    flip = parse_metric("flip@1")
    assert "_entries" not in vars(FAMILIES)  # to look up one of ours loads none of theirs
    assert [str(metric) for metric in default_metrics()][-2:] == ["half@1", "half@2"]
    assert FAMILIES.versions(*FAMILIES.values()) == {"halves": "0.3"}
    half = parse_metric("half@2")
    assert (half(TWO).value, half(TWO).n, key_of(half)) == (0.5, 2, "drift_half_at_2")
    assert half.family.summary == "half of it"
    stored = {str(metric): {"value": 0.5, "n": 2} for metric in (flip, half, parse_metric("ndcg@10"))}
    shown = figure_grid({"data": {"kind": "classification"}, "metrics": stored})
    assert [row[::2] for row in shown.rows] == [["half@2", "2 inputs"]]
    assert (parse_metric("half@2:gap=1..")(TWO).n, next(iter(measure(TWO)))) == (2, str(flip))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, LOWER) for name in ("flip", "Half", "half_2", "change_half", "half_low", "n_inputs")),
        *(("half", fields) for fields in ("direction='down'", "")),
        *(("half", f"{LOWER}, {wrong}") for wrong in ("kind='no kind'", "cutoffs=[1]", "cutoffs=(1.5,)", "low=2")),
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
