"""What pairs inside lm-eval are calibrated on, and other arguments of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import DataError
from quantdrift_lm_eval.model import QuantizedPairLM
from support.lm_eval_samples_maker import evaluate, save_model, text, write_tasks

N = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"), wide=2)


@pytest.fixture(scope="module")
def tasks(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"), model, N)


def run(tasks: Path, folder: Path, names: list[str], model: str, scheme: str) -> dict[str, Any]:
    arguments = {"pretrained": model, "scheme": scheme, "evidence": str(folder)}
    return evaluate("quantdrift", tasks, names, model_args=arguments)


def record(folder: Path) -> dict[str, Any]:
    found = json.loads(next(folder.glob("*/tiny_questions/run.json")).read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("method", ["gptq", "awq", "adaround"])
def test_prompts_are_what_it_is_calibrated_on(method: str, tasks: Path, model: str, tmp_path: Path) -> None:
    results = run(tasks, tmp_path / "a", ["questions", "texts"], model, f"W3-{method}")
    told = record(tmp_path / "a")["quantization"]
    assert told["calibration"]["source"] == "prompts of the tasks"
    assert told["calibration"]["n_inputs"] == N  # the choices and the texts are no prompts
    assert told["fallbacks"] == {}
    rounded = run(tasks, tmp_path / "b", ["questions", "texts"], model, "W3-rtn")
    key = "drift_change_loglikelihood,none"
    assert results["results"]["tiny_texts"][key] != rounded["results"]["tiny_texts"][key]


def test_a_file_takes_the_place_of_prompts(tasks: Path, model: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(text(seed, 6) for seed in range(20)))
    run(tasks, tmp_path / "a", ["questions"], model, f"W3-gptq+calib={file}")
    assert record(tmp_path / "a")["quantization"]["calibration"]["source"] == str(file)
    run(tasks, tmp_path / "b", ["questions", "last_word"], model, f"W3-gptq+calib={file}")
    same = {record(tmp_path / name)["model"]["candidate_fingerprint"] for name in "ab"}
    assert len(same) == 1  # whatever the tasks are


def test_tasks_without_prompts_are_refused_with_the_way_out(tasks: Path, model: str) -> None:
    with pytest.raises(DataError, match=r"Give texts with \+calib=FILE.txt"):
        evaluate("quantdrift", tasks, ["texts"], model_args=f"pretrained={model},scheme=W3-gptq")


@pytest.mark.slow
def test_the_batch_size_is_found_once_for_both_arms(tasks: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    original = QuantizedPairLM.__mro__[1]._detect_batch_size

    def detect(self: Any, requests: Any = None, pos: int = 0) -> int:
        found.append(int(original(self, requests, pos)))
        return found[-1]

    monkeypatch.setattr(QuantizedPairLM.__mro__[1], "_detect_batch_size", detect)
    arguments = {"pretrained": model, "scheme": "W4"}
    kinds = ["questions", "texts", "sums"]
    results = evaluate("quantdrift", tasks, kinds, model_args=arguments, batch_size="auto", max_batch_size=8)
    assert found == [8, 8, 8]  # one for every kind of request
    assert results["results"]["tiny_questions"]["drift_flip_at_1,none"] >= 0


def test_both_arms_draw_the_same_random_numbers(tasks: Path, model: str) -> None:
    lm = QuantizedPairLM(model, "W8", device="cpu", batch_size=4)
    drawn = {"do_sample": True, "temperature": 3.0, "max_gen_toks": 4, "until": ["|"]}
    results = evaluate(lm, tasks, ["sums"], gen_kwargs=drawn)
    rows = results["results"]["tiny_sums"]
    assert rows["drift_flip_at_1,first"] < 0.5  # with other draws nearly every answer would differ


def test_asked_outside_of_an_evaluation_it_is_the_candidate(
    tasks: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from lm_eval.api.instance import Instance  # noqa: PLC0415 -- lm_eval may be missing
    from lm_eval.models.huggingface import HFLM  # noqa: PLC0415 -- likewise

    asked = [Instance("loglikelihood", {}, ("ba ba", " bo"), 0)]
    lm = QuantizedPairLM(model, "W2", device="cpu")
    with lm.pair.candidate():
        expected = HFLM.loglikelihood(lm, asked)
    assert lm.loglikelihood(asked) == expected
    assert HFLM(model, device="cpu").loglikelihood(asked) != expected
    assert "only the candidate is run" in capsys.readouterr().err
