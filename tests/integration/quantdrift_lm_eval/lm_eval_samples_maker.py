"""A small language model and a task of every type, made on the spot for tests of lm-eval.

The model's weights are random, its tokens are letters; nothing is downloaded. What is right is, for
every second document of some tasks, what the model itself answers.
"""

import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from support.warm import warm

WORDS = tuple(f"{a}{b}" for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u"))
KINDS = ("questions", "more_questions", "pronouns", "informed", "named", "last_word", "texts", "sums")
N = 24


def text(seed: int, n_words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def save_model(folder: Path, *, seed: int = 0, wide: int = 1, n_layers: int = 2) -> str:
    """A Llama of some ten thousand random weights that reads letters."""
    torch.manual_seed(seed)
    alphabet = [*"abcdefghijklmnopqrstuvwxyz:=|", chr(288)]  # the last is a space, as bytes go
    vocabulary = {token: n for n, token in enumerate(("<s>", "</s>", "<pad>", *alphabet))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    sizes = {"hidden_size": 32 * wide, "intermediate_size": 64 * wide, "num_hidden_layers": n_layers}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
    tokens = {"vocab_size": len(vocabulary), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = LlamaConfig(**sizes, **heads, **tokens, initializer_range=0.3, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_tasks(folder: Path, model: str, n: int = N) -> Path:
    """Task files of every type for a model, in a folder for --include_path."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for task in ("questions", "more_questions", "informed", "named"):
        documents = []
        for _ in range(n // 2 if task == "more_questions" else n):
            choices = [text(rng.randrange(10**6), rng.randint(1, 3)) for _ in range(3)]
            gold = rng.randrange(3)
            documents.append({"q": text(rng.randrange(10**6), 4), "c": choices, "g": gold, "w": choices[gold]})
        _write(folder / f"{task}.jsonl", documents)
    _write(
        folder / "pronouns.jsonl",
        [{"one": text(k, 3), "two": text(k + 500, 3), "end": text(k + 900, 2), "g": k % 2} for k in range(n)],
    )
    prompts = [f"{text(k, 3)}=" for k in range(n)]
    said = own_answers(model, prompts, n_tokens=5)
    half = [answer if k % 2 else answer[::-1] for k, answer in enumerate(said)]
    last = [{"t": prompt, "w": a[0] if k % 2 else "x"} for k, (prompt, a) in enumerate(zip(prompts, said, strict=True))]
    _write(folder / "last_word.jsonl", last)
    _write(folder / "texts.jsonl", [{"t": text(k, 6)} for k in range(n)])
    sums = [{"t": prompt, "a": a} for prompt, a in zip(prompts, half, strict=True)]
    _write(folder / "sums.jsonl", sums)
    for name, task in _tasks(folder).items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return folder


def own_answers(model: str, prompts: Sequence[str], *, n_tokens: int) -> list[str]:
    """Continue each prompt by greedy decoding, up to a bar."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    loaded = LlamaForCausalLM.from_pretrained(model)
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        said = loaded.generate(ids, max_new_tokens=n_tokens, do_sample=False)
        answer = tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True)
        answers.append(answer.partition("|")[0].strip() or "x")
    return answers


def _tasks(folder: Path) -> dict[str, dict[str, Any]]:
    tasks: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("tasks.yaml").read_text())
    for name, task in tasks.items():
        files = {"data_files": {"validation": str(folder / f"{name}.jsonl")}, "cache_dir": str(folder / "cache")}
        data = {"dataset_path": "json", "dataset_kwargs": files, "validation_split": "validation"}
        task |= {"task": f"tiny_{name}", **data, "metadata": {"version": 1.0}}
    weighted = {"metric": "acc", "aggregation": "mean", "weight_by_size": True}
    both = ["tiny_questions", "tiny_more_questions"]
    return {**tasks, "group": {"group": "tiny_group", "task": both, "aggregate_metric_list": [weighted]}}


def _write(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


def evaluate(model: Any, tasks: Path, names: Sequence[str], **options: Any) -> dict[str, Any]:
    """Run lm-eval's simple_evaluate without its slow parts that no test needs."""
    from lm_eval import evaluator, simple_evaluate  # noqa: PLC0415 -- it takes seconds
    from lm_eval.tasks import TaskManager  # noqa: PLC0415 -- likewise

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    given = {"bootstrap_iters": 100, "device": "cpu", "batch_size": 4, **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISABLE_MULTIPROC", "1")  # of the bootstrap
        patch.setattr(evaluator, "add_env_info", lambda results: None)  # it asks pip
        results: dict[str, Any] = simple_evaluate(
            model, tasks=[f"tiny_{name}" for name in names], task_manager=manager, **given
        )
    return results


def lm_eval_command(
    *arguments: str, cwd: Path, first: Sequence[str] = ("-m", "lm_eval"), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run lm-eval's own command, as a user would."""
    caches = {"HF_DATASETS_CACHE": str(cwd / "datasets"), "QUANTDRIFT_CACHE": str(cwd / "cache")}
    return warm().run(*first, *arguments, cwd=cwd, **caches, **variables)
