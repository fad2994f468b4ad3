"""Widths of a language model, chosen by the gaps between the choices of questions, in lm-eval's own evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from integration.quantdrift_lm_eval.lm_eval_samples_maker import N, evaluate, text
from quantdrift.base.errors import DataError
from quantdrift.base.progress import progress_bars
from quantdrift.measuring.problem import Setting
from quantdrift.models.layers import find_linears
from quantdrift.runs.folder import find_runs
from quantdrift.sensitivity.gaps import contributions, exact_shifts, rounded
from quantdrift.spec.grammar import CRITERIA, needs_inputs
from quantdrift_lm_eval.model import QuantizedPairLM
from quantdrift_lm_eval.widths import Likelihoods, problem_of, questions_of

SCHEME = "W3.5-g32-rtn+gap"


@pytest.fixture(scope="module")
def lm(model: str) -> QuantizedPairLM:
    return QuantizedPairLM(model, SCHEME, device="cpu", batch_size=4)


def asked(*questions: tuple[str, int], kind: str = "loglikelihood") -> list[Instance]:
    """Requests of questions, each a prompt and a number of choices."""
    return [
        Instance(kind, {}, (prompt, f" {text(9 * number + choice, 1 + choice)}"), choice, ("task", number, 1))
        for number, (prompt, n_choices) in enumerate(questions)
        for choice in range(n_choices)
    ]


QUESTIONS = [(f"{text(1, 3)}=", 3), ("", 2), (f"{text(2, 5)} ", 3)]


def test_rows_have_the_likelihoods_of_lm_eval_itself(lm: QuantizedPairLM) -> None:
    """Prompts of words, of nothing, with a space at their end, and longer than the model reads."""
    requests = asked(*QUESTIONS, (text(3, 150), 2))
    read: list[int] = []
    hook = lm.model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    problem = problem_of(lm, Likelihoods(lm.model), list(questions_of(requests).values()), 3)
    hook.remove()
    assert max(read) == lm.max_length
    theirs = [likelihood for likelihood, _ in HFLM.loglikelihood(lm, requests, disable_tqdm=True)]
    assert problem.reference_outputs()[:, 0] == pytest.approx(theirs, abs=1e-4)
    gaps = problem.gaps(problem.reference_outputs())
    first = sorted(theirs[:3], reverse=True)
    assert gaps[0] == pytest.approx([first[0] - first[1], first[0] - first[2]], abs=1e-4)
    assert gaps[1, 0] == pytest.approx(abs(theirs[3] - theirs[4]), abs=1e-4)
    assert problem.valid.tolist() == [[True, True], [True, False], [True, True], [True, False]]


def test_shifts_are_those_of_likelihoods_with_one_layer_rounded(lm: QuantizedPairLM) -> None:
    """Measured by rounding they are lm-eval's own; to first order they point the same way."""
    requests = asked(*QUESTIONS)
    module = Likelihoods(lm.model)
    problem = problem_of(lm, module, list(questions_of(requests).values()), 4)
    layers = [layer for layer in find_linears([lm.model]) if "lm_head" not in layer.name][:7]
    shared: dict[str, Any] = {"group_size": 32, "seed": 0, "progress": progress_bars(quiet=True)}
    setting = Setting(modules=[module], layers=layers, widths=(4, 8), problem=problem, **shared)
    shifts = exact_shifts(setting)
    before = problem.gaps(problem.reference_outputs())
    with rounded([layers[2]], [4], 32):
        theirs = np.array([likelihood for likelihood, _ in HFLM.loglikelihood(lm, requests, disable_tqdm=True)])
    now = problem.gaps(theirs[:, None].astype(np.float32))
    assert shifts[2, 0][problem.valid] == pytest.approx((now - before)[problem.valid], abs=1e-4)
    by_gradient = contributions(setting)[..., 0]  # [n_inputs, n_contenders, n_layers]
    measured = np.moveaxis(shifts[:, 0], 0, -1)
    assert np.corrcoef(by_gradient[problem.valid].ravel(), measured[problem.valid].ravel())[0, 1] > 0.9


def test_drift_is_over_the_questions_that_no_layer_was_measured_on(model: str, tasks: Path, tmp_path: Path) -> None:
    arguments = {"pretrained": model, "scheme": SCHEME, "evidence": str(tmp_path)}
    results = evaluate("quantdrift", tasks, ["questions", "sums"], model_args=arguments)
    details = results["quantdrift"]["tasks"]["tiny_questions"]
    left_out = details["left_out"]
    assert len(left_out) == N // 4
    assert "left_out" not in results["quantdrift"]["tasks"]["tiny_sums"]
    samples = {sample["doc_id"]: sample for sample in results["samples"]["tiny_questions"]}
    assert {doc for doc, sample in samples.items() if "drift_flip_at_1" not in sample} == {*left_out}
    flips = [sample["drift_flip_at_1"] for sample in samples.values() if sample["doc_id"] not in left_out]
    row = results["results"]["tiny_questions"]
    assert row["drift_flip_at_1,none"] == pytest.approx(np.mean(flips))
    assert row["acc,none"] == pytest.approx(np.mean([sample["acc"] for sample in samples.values()]))  # of all
    run = next(run for run in find_runs([tmp_path]) if run.path.name == "tiny_questions")
    assert run.evidence().n_inputs == N - len(left_out)
    made = run.record["quantization"]["allocation"]
    assert set(made["widths"].values()) <= {3, 4}
    assert made["bits_per_weight"] <= 3.5
    assert made["calibration_inputs"] == len(left_out)


@pytest.mark.parametrize(("kind", "n_choices"), [("generate_until", 3), ("loglikelihood", 1)])
def test_what_has_no_choices_is_no_question(kind: str, n_choices: int) -> None:
    assert questions_of(asked(("so", n_choices), kind=kind)) == {}


def test_choices_without_their_prompt_are_no_other_choices() -> None:
    """As acc_mutual_info asks for them."""
    requests = asked(("so", 2))
    choices = [request.args[1] for request in requests]
    alone = [Instance("loglikelihood", {}, ("", choice), 2 + n, ("task", 0, 1)) for n, choice in enumerate(choices)]
    assert questions_of([*requests, *alone]) == {("task", 0): requests}


def test_tasks_without_choices_are_refused(model: str, tasks: Path) -> None:
    with pytest.raises(DataError, match="expected a task with choices"):
        evaluate("quantdrift", tasks, ["sums"], model_args={"pretrained": model, "scheme": SCHEME})


@pytest.mark.parametrize("criterion", sorted({*CRITERIA} - {"gap"}))
def test_every_criterion_chooses(criterion: str, model: str, tasks: Path) -> None:
    arguments = {"pretrained": model, "scheme": f"W3.5-g32-rtn+{criterion}"}
    results = evaluate("quantdrift", tasks, ["questions"], model_args=arguments)
    assert ("left_out" in results["quantdrift"]["tasks"]["tiny_questions"]) == needs_inputs(criterion)
    assert 3 < results["quantdrift"]["bits_per_weight"]["linear"] <= 3.5


def test_a_criterion_of_weights_alone_needs_no_questions(model: str, tasks: Path) -> None:
    arguments = {"pretrained": model, "scheme": "W3.5-g32-rtn+reconstruction"}
    results = evaluate("quantdrift", tasks, ["sums"], model_args=arguments)
    assert "left_out" not in results["quantdrift"]["tasks"]["tiny_sums"]
    assert 3.2 < results["quantdrift"]["bits_per_weight"]["linear"] <= 3.5
