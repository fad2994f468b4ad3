"""lm-eval's own evaluation of a pair, beside stock evaluations of its two models."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.models.huggingface import HFLM

from integration.quantdrift_lm_eval.lm_eval_samples_maker import KINDS, evaluate
from quantdrift.base.patching import is_replaced
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.finished.lm_eval_evidence import pair_samples, per_document
from quantdrift.metrics import measure, parse_metric
from quantdrift.metrics.keys import key_of
from quantdrift.runs.folder import find_runs
from quantdrift.spec.grammar import parse_scheme

SCHEME = "W4-rtn"
ALL = [*KINDS[2:], "group"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evidence")


@pytest.fixture(scope="module")
def paired(model: str, tasks: Path, folder: Path) -> dict[str, Any]:
    arguments = {"pretrained": model, "scheme": SCHEME, "evidence": str(folder)}
    return evaluate("quantdrift", tasks, ALL, model_args=arguments)


@pytest.fixture(scope="module")
def reference(model: str, tasks: Path) -> dict[str, Any]:
    """A stock run of the stock model, in the process that has seen a pair."""
    return evaluate("hf", tasks, ALL, model_args=f"pretrained={model}")


@pytest.fixture(scope="module")
def candidate(model: str, tasks: Path) -> dict[str, Any]:
    """A stock run of a model that was quantized by hand."""
    lm = HFLM(model, device="cpu", batch_size=4)
    scheme = parse_scheme(f"{SCHEME}+head=lm_head")
    with QuantizedPair([lm.model], scheme).candidate():
        return evaluate(lm, tasks, ALL)


def stock_rows(results: dict[str, Any], task: str) -> dict[str, Any]:
    return {k: v for k, v in results["results"][task].items() if not k.startswith("drift_")}


def test_the_stock_results_are_those_of_the_candidate(paired: dict[str, Any], candidate: dict[str, Any]) -> None:
    for task in (f"tiny_{kind}" for kind in (*KINDS, "group")):
        assert stock_rows(paired, task) == stock_rows(candidate, task)
        for name in ("versions", "n-shot", "n-samples"):
            assert paired[name].get(task) == candidate[name].get(task)


def test_the_reference_is_scored_as_a_stock_run_scores_it(paired: dict[str, Any], reference: dict[str, Any]) -> None:
    for task in (f"tiny_{kind}" for kind in KINDS):
        rows, stock = paired["results"][task], stock_rows(reference, task)
        ours = {key: value for key, value in rows.items() if key.startswith("drift_reference_")}
        assert ours == {f"drift_reference_{key}": value for key, value in stock.items() if "," in key}


@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "none") for kind in KINDS[:-1]), ("sums", "first"), ("sums", "start")]
)
def test_the_drift_is_that_of_two_single_runs(
    kind: str, name: str, paired: dict[str, Any], reference: dict[str, Any], candidate: dict[str, Any]
) -> None:
    task = f"tiny_{kind}"
    joined = pair_samples(reference["samples"][task], candidate["samples"][task], task=task)
    rows = paired["results"][task]
    figures = per_document(joined[name])
    assert figures
    for figure, values in figures.items():
        assert rows[f"{figure},{name}"] == pytest.approx(values.mean(), abs=1e-12)
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert rows[f"{figure}_stderr,{name}"] == pytest.approx(error)
    evidence = joined[name].evidence
    if evidence is not None:
        details = paired["quantdrift"]["tasks"][task][name]
        chosen = map(parse_metric, ("flip@1", "separation", "S", "harm", "coverage@0.10"))
        for metric, estimate in measure(evidence, chosen).items():
            assert details[key_of(parse_metric(metric))] == estimate.to_json()["value"], metric


def test_groups_weigh_tasks_as_their_own_metrics_and_pool_documents(paired: dict[str, Any]) -> None:
    group = paired["results"]["tiny_group"]
    assert paired["groups"]["tiny_group"] == group
    parts = [paired["results"][f"tiny_{kind}"] for kind in ("questions", "more_questions")]
    sizes = np.array([part["sample_len"] for part in parts])
    for name in ("acc", "drift_reference_acc", "drift_flip_at_1", "drift_at_risk"):
        values = np.array([part[f"{name},none"] for part in parts])
        errors = np.array([part[f"{name}_stderr,none"] for part in parts])
        assert group[f"{name},none"] == pytest.approx((values * sizes).sum() / sizes.sum())
        pooled = ((sizes - 1) * errors**2 * sizes).sum() / (sizes.sum() - len(sizes))
        assert group[f"{name}_stderr,none"] == pytest.approx(np.sqrt(pooled / sizes.sum()))
    assert "drift_right_to_wrong_acc_norm,none" not in group  # the group does not aggregate acc_norm
    details = paired["quantdrift"]["groups"]["tiny_group"]["none"]
    assert details["drift_flip_at_1"] == pytest.approx(group["drift_flip_at_1,none"])
    assert details["drift_separation_median"] == group["drift_separation_median,none"]
    assert details["drift_n_inputs"] == sizes.sum()


def test_the_run_folders_hold_the_same_evidence(paired: dict[str, Any], folder: Path) -> None:
    runs = {run.path.name: run for run in find_runs([folder])}
    names = {f"tiny_{kind}" for kind in KINDS if kind not in {"texts", "sums"}}
    assert set(runs) == names | {"tiny_sums-first", "tiny_sums-start"}
    run = runs["tiny_questions"]
    assert (run.path.parent.name, run.record["data"]["harness"]) == ("W4-g128-rtn+head=lm_head", "lm-eval")
    assert run.record["data"]["n_queries"] == 24
    assert run.record["model"]["candidate_fingerprint"] != run.record["model"]["fingerprint"]
    assert run.record["model"]["layers_never_reached"] == []
    flip = parse_metric("flip@1")(run.evidence()).value
    assert is_replaced(sys.excepthook)  # an error that nobody catches is one line
    assert flip == paired["results"]["tiny_questions"]["drift_flip_at_1,none"]
    assert paired["quantdrift"]["runs"]["tiny_questions"] == {"none": str(run.path)}
