"""Gemma 3 270M of a GGUF in lm-eval: `python gemma_lm_eval.py model|tasks|cells|table ...`; finished cells are skipped.

model GGUF OUT                the dequantized weights as a folder in float32
tasks PIQA BLIMP GSM8K OUT    100 questions of PIQA, 40 pairs of each paradigm of BLiMP, 24 problems of GSM8K
cells MODEL TASKS OUT SCHEME...   a plain hf run, then a pair for each scheme, by the stock lm_eval command
table OUT FILE.csv            what the result files say
widths OUT FILE.csv           of cells with chosen widths: changed answers to the questions that no cell was measured on
"""

import copy
import csv
import json
import random
import subprocess
import sys
from pathlib import Path

from scipy.stats import binomtest

CHOICES = {"output_type": "multiple_choice", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
PIQA = {"doc_to_text": "Question: {{goal}}\nAnswer:", "doc_to_choice": "{{[sol1, sol2]}}", "doc_to_target": "label"}
BLIMP = {"doc_to_text": "", "doc_to_choice": "{{[sentence_good, sentence_bad]}}", "doc_to_target": 0}
GSM8K = {
    "output_type": "generate_until",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer.split('#### ')[-1]}}",
    "generation_kwargs": {"until": ["Question:", "\n\n"], "do_sample": False, "max_gen_toks": 64},
    "filter_list": [
        {
            "name": "last-number",
            "filter": [
                {"function": "regex", "group_select": -1, "regex_pattern": "(-?[0-9][0-9.,]*)"},
                {"function": "take_first"},
            ],
        }
    ],
    "metric_list": [{"metric": "exact_match", "ignore_punctuation": True}],
}


def write_model(file: Path, out: Path) -> None:
    """Write the weights that transformers reads from a GGUF as a plain folder: it saves no model that came from one."""
    import torch  # noqa: PLC0415 -- the other steps do without
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = copy.deepcopy(model.config)
    del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(out)
    AutoTokenizer.from_pretrained(**where).save_pretrained(out)


def write_tasks(piqa: Path, blimp: Path, gsm8k: Path, out: Path) -> None:
    """Write rows that a seed draws, and a YAML file for each task."""
    labels = (piqa / "valid-labels.lst").read_text().split()
    questions = [row | {"label": int(label)} for row, label in zip(_rows(piqa / "valid.jsonl"), labels, strict=True)]
    _task(out, "piqa100", questions, 100, CHOICES | PIQA)
    for file in sorted(blimp.glob("*.jsonl")):
        _task(out, f"blimp40_{file.stem}", _rows(file), 40, CHOICES | BLIMP | {"metric_list": [{"metric": "acc"}]})
    group = {"group": "blimp200", "task": [f"blimp40_{file.stem}" for file in sorted(blimp.glob("*.jsonl"))]}
    group["aggregate_metric_list"] = [{"metric": "acc", "weight_by_size": True}]
    (out / "blimp200.yaml").write_text(json.dumps(group))
    _task(out, "gsm8k24", _rows(gsm8k / "test.jsonl"), 24, GSM8K)


def _task(out: Path, name: str, rows: list[dict], n: int, how: dict) -> None:
    out.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0).sample(rows, n)
    (out / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in drawn))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(out.resolve() / f"{name}.jsonl")}}}
    task = {"task": name, "test_split": "test", "num_fewshot": 0, **data, **how}
    (out / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


def _rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def run_cells(model: Path, tasks: Path, out: Path, schemes: list[str]) -> None:
    """Run lm_eval once per cell: SCHEME, or SCHEME=gsm8k24 for other tasks than the two whose answers are choices."""
    for cell in ["hf", *schemes]:
        scheme, _, asked = cell.partition("=")
        asked = asked or "piqa100,blimp200"
        place = out / f"{Path(scheme).name}={asked}"
        if any(place.rglob("results_*.json")):
            continue
        what, named = ("hf", "") if scheme.startswith("hf") else ("quantdrift", f",scheme={scheme}")
        arguments = ["--model", what, "--model_args", f"pretrained={model},dtype=float32{named}", "--tasks", asked]
        arguments += ["--include_path", str(tasks), "--batch_size", "8", "--output_path", str(place), "--log_samples"]
        subprocess.run(["lm_eval", "run", *arguments], check=True)


ROWS = ("drift_reference_{}", "{}", "drift_flip_at_1", "drift_right_to_wrong_{}", "drift_wrong_to_right_{}")
"""Rates of a row of the table: the metric of the reference and of the candidate, and what changed."""


def write_table(out: Path, file: Path) -> None:
    """Write a row per cell and task, with 95 % intervals and the exact McNemar test of right against wrong."""
    lines = []
    for place in sorted(out.rglob("results_*.json")):
        result = json.loads(place.read_text())
        pair = result.get("quantdrift", {})
        for task in ("piqa100", "blimp200", "gsm8k24"):
            if not (row := result["results"].get(task)):
                continue
            metric, by = ("exact_match", "last-number") if task == "gsm8k24" else ("acc", "none")
            drift = {**pair.get("tasks", {}), **pair.get("groups", {})}.get(task, {}).get(by, {})
            line = {"scheme": pair.get("spec", "hf").rpartition("@")[2], "task": task}
            line["n"] = drift.get("drift_n_inputs", result["n-samples"].get(task, {}).get("effective", ""))
            for name in (name.format(metric) for name in ROWS):
                line[name.replace(metric, "right")] = row.get(f"{name},{by}", "")
                for end in ("low", "high"):
                    line[f"{name}_{end}".replace(metric, "right")] = drift.get(f"{name}_{end}", "")
            if drift:
                lost, won = (round(row[f"{name.format(metric)},{by}"] * line["n"]) for name in ROWS[3:])
                line |= {"lost": lost, "won": won, "p": binomtest(lost, lost + won).pvalue if lost + won else 1.0}
            lines.append(line)
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(dict.fromkeys(key for line in lines for key in line)), restval="")
        writer.writeheader()
        writer.writerows(lines)


def write_widths(out: Path, file: Path) -> None:
    """Write a row per cell: changed answers and right ones that are lost, and the exact test against the first cell."""
    cells = {}
    for place in sorted(out.rglob("results_*.json")):
        scheme = json.loads(place.read_text()).get("quantdrift", {}).get("spec", "").rpartition("@")[2]
        rows = {}
        for samples in place.parent.glob("samples_*.jsonl"):
            for row in _rows(samples):
                if "drift_flip_at_1" in row:
                    lost = row["drift_reference_acc"] > row["acc"]
                    rows[samples.name.rpartition("_")[0], row["doc_id"]] = (bool(row["drift_flip_at_1"]), lost)
        if scheme and rows:
            cells[scheme] = rows
    shared = sorted(set.intersection(*map(set, cells.values())))
    first = next(iter(cells.values()))
    lines = []
    for scheme, rows in cells.items():
        more, fewer = (sum(a[name][0] and not b[name][0] for name in shared) for a, b in ((rows, first), (first, rows)))
        flips, lost = (sum(rows[name][part] for name in shared) for part in (0, 1))
        p = binomtest(more, more + fewer).pvalue if more + fewer else 1.0
        lines.append(
            {"scheme": scheme, "n": len(shared), "flips": flips, "lost": lost, "more": more, "fewer": fewer, "p": p}
        )
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    step, *rest = sys.argv[1:]
    if step == "cells":
        run_cells(*map(Path, rest[:3]), rest[3:])
    else:
        {"model": write_model, "tasks": write_tasks, "table": write_table, "widths": write_widths}[step](
            *map(Path, rest)
        )
