"""BLiMP, PIQA and GSM8K with a small trained language model: a paired run, and two single ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("lm_eval")

from lm_eval.models.huggingface import HFLM

from quantdrift.engine.pair import QuantizedPair
from quantdrift.finished.lm_eval_evidence import pair_samples
from quantdrift.metrics import measure, parse_metric
from quantdrift.spec import parse_scheme
from support.lm_eval_samples_maker import evaluate
from support.places import SHARED

STORIES, LM = SHARED / "models" / "stories260K", SHARED / "lm"
BLIMP = ("anaphor_gender_agreement", "regular_plural_subject_verb_agreement_1")
LIMIT = 60

pytestmark = [pytest.mark.skipif(not LM.exists(), reason=f"{LM} is not here"), pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    mean = {"aggregation": "mean", "higher_is_better": True}
    acc, norm = {"metric": "acc", **mean}, {"metric": "acc_norm", **mean}
    for name in BLIMP:
        own = {
            "output_type": "multiple_choice",
            "doc_to_text": "",
            "doc_to_target": 0,
            "doc_to_choice": "{{[sentence_good, sentence_bad]}}",
            "metric_list": [acc],
        }
        _write(folder, name, own, LM / "blimp" / f"{name}.jsonl")
    group = {
        "group": "tiny_blimp",
        "task": [f"tiny_{name}" for name in BLIMP],
        "aggregate_metric_list": [{"metric": "acc", "aggregation": "mean", "weight_by_size": True}],
    }
    (folder / "blimp.yaml").write_text(yaml.safe_dump(group))
    labels = (LM / "piqa" / "valid-labels.lst").read_text().split()
    lines = (LM / "piqa" / "valid.jsonl").read_text().splitlines()
    joined = [json.dumps({**json.loads(line), "label": int(label)}) for line, label in zip(lines, labels, strict=True)]
    (folder / "piqa.jsonl").write_text("\n".join(joined))
    own = {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{goal}}\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": "{{[sol1, sol2]}}",
        "metric_list": [acc, norm],
    }
    _write(folder, "piqa", own, folder / "piqa.jsonl")
    own = {
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer.split('####')[-1].strip()}}",
        "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 24, "do_sample": False},
        "filter_list": [
            _filter("strict-match", r"#### (\-?[0-9\.\,]+)"),
            _filter("flexible-extract", r"([A-Za-z0-9]+)"),
        ],
        "metric_list": [{"metric": "exact_match", **mean, "ignore_case": True}],
    }
    _write(folder, "gsm8k", own, LM / "gsm8k" / "test.jsonl")
    return folder


def _filter(name: str, pattern: str) -> dict[str, Any]:
    regex = {"function": "regex", "regex_pattern": pattern}
    return {"name": name, "filter": [regex, {"function": "take_first"}]}


def _write(folder: Path, name: str, task: dict[str, Any], file: Path) -> None:
    task |= {
        "task": f"tiny_{name}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(file)}, "cache_dir": str(folder / "cache")},
        "validation_split": "validation",
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


NAMES = ["blimp", "piqa", "gsm8k"]


@pytest.mark.parametrize("scheme", ["W4-rtn", "W3-rtn", "W4-gptq"])
def test_the_drift_is_that_of_two_single_runs(scheme: str, tasks: Path) -> None:
    model = str(STORIES)
    options: dict[str, Any] = {"limit": LIMIT, "batch_size": 16}
    arguments = {"pretrained": model, "scheme": scheme}
    paired = evaluate("quantdrift", tasks, NAMES, model_args=arguments, **options)
    reference = evaluate("hf", tasks, NAMES, model_args={"pretrained": model}, **options)
    candidate = paired
    if "rtn" in scheme:  # calibrated weights are made inside the paired run alone
        lm = HFLM(model, device="cpu", batch_size=16)
        with QuantizedPair([lm.model], parse_scheme(scheme)).candidate():
            candidate = evaluate(lm, tasks, NAMES, **options)
    for task, samples in reference["samples"].items():
        joined = pair_samples(samples, candidate["samples"][task], task=task)
        for name, own in joined.filters.items():
            told = paired["quantdrift"]["tasks"][task][name]
            assert own.evidence is not None
            for metric, estimate in measure(own.evidence, map(parse_metric, METRICS)).items():
                assert told[METRICS[metric]] == estimate.to_json()["value"], (task, metric)
    group = paired["results"]["tiny_blimp"]
    assert group["drift_flip_at_1,none"] > 0
    assert group["drift_reference_acc,none"] == reference["results"]["tiny_blimp"]["acc,none"]


METRICS = {
    "flip@1": "drift_flip_at_1",
    "separation": "drift_separation_median",
    "harm": "drift_harm",
    "benefit": "drift_benefit",
    "epsilon": "drift_epsilon_median",
}
