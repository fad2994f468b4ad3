"""Qwen3-Embedding-0.6B's shape, with random weights, through stock `mteb run`: CPU time and memory of every scheme.

    python docs/measured/recipes/qwen3_in_mteb.py WORK BEIR_FOLDER [--schemes W4-gptq,W4-hqq] [--documents 32]

WORK gets a hub cache that holds the model under its own name, and a cut of BEIR_FOLDER's texts where mteb's task
SciFact looks for its data; no network is used. Each scheme is one process; two passes of sentence-transformers alone,
in a process before them, are what it is divided by. `peak` is ru_maxrss, every page that was resident at once: of
weights, of libraries and of files that are mapped, though the system can drop those. `anonymous` are the pages that
it cannot, sampled from /proc (Linux). Prints a table of docs/measured/speed.md.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME, REVISION = "Qwen/Qwen3-Embedding-0.6B", "b22da495047858cce924d27d76261e96be6febc0"
N_WEIGHTS, N_TOKENS, N_WORDS = 595_776_512, 151_643, 80
SCHEMES = "W4-gptq,W4-awq,W4-hqq,W4A8,W3.5-gptq+gap"
SIZES = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "max_window_layers": 28}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
OTHERS = {"vocab_size": 151_669, "max_position_embeddings": 32_768, "rope_theta": 1_000_000, "rms_norm_eps": 1e-6}
QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
TWICE = """
import json, time
from pathlib import Path
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({name!r}, device="cpu", model_kwargs={{"dtype": "float32"}})
texts = [[json.loads(line)["text"] for line in Path("mteb/scifact", part).open()] for part in {parts!r}]
start = time.process_time()
for side, role in 2 * list(zip(texts, ("query", "document"))):
    model.encode(side, prompt_name=role, batch_size=32, show_progress_bar=False)
print(time.process_time() - start)
"""
PARTS = ("queries.jsonl", "corpus.jsonl")


def main() -> None:
    """Make what is not there yet, run, and print a row for each scheme."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("beir", type=Path)
    parser.add_argument("--schemes", default=SCHEMES)
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--queries", type=int, default=16)
    asked = parser.parse_args()
    work = asked.work.resolve()
    # a folder of its own for each cut: datasets would give back the first
    os.environ["HF_DATASETS_CACHE"] = str(work / f"datasets-{asked.documents}-{asked.queries}")
    texts = cut(asked.beir, work / "mteb" / "scifact", asked.documents, asked.queries)
    snapshot = work / "hf" / "hub" / f"models--{NAME.replace('/', '--')}" / "snapshots" / REVISION
    if not (snapshot / "modules.json").is_file():
        save_model(snapshot, texts)
    print("| scheme | CPU s | ratio | peak | anonymous |\n|" + 5 * "---|")
    _, *bytes_, out = ran(work, [sys.executable, "-c", TWICE.format(name=NAME, parts=PARTS)], work / "bare.log")
    two_passes = float(out.split()[-1])
    tell("two bare passes", two_passes, 1, bytes_)
    for scheme in filter(None, asked.schemes.split(",")):
        line = [Path(sys.executable).with_name("mteb"), "run", "--model", f"quantdrift:Qwen3-0.6B@{scheme}"]
        line += ["-t", "SciFact", "--output-folder", "results", "--overwrite-strategy", "always"]
        seconds, *bytes_, _ = ran(work, line, work / f"{scheme}.log")
        tell(f"`{scheme}`", seconds, seconds / two_passes, bytes_)


def tell(what: str, seconds: float, ratio: float, bytes_: list[int]) -> None:
    """Print a row of the table."""
    of_weights = " | ".join(f"{n / 2**30:.2f} GiB, {n / 4 / N_WEIGHTS:.2f}" for n in bytes_)
    print(f"| {what} | {seconds:.0f} | {ratio:.2f} | {of_weights} |", flush=True)


def ran(work: Path, line: list[Any], log: Path) -> tuple[float, int, int, str]:
    """CPU seconds of a command, the most bytes that it had resident, and anonymous, at once, and what it printed."""
    ours = {"HF_HOME": str(work / "hf"), "HF_HUB_OFFLINE": "1", "QUANTDRIFT_CACHE": "off", "TMPDIR": str(work)}
    with log.open("w+") as out:
        process = subprocess.Popen(line, cwd=work, env={**os.environ, **ours}, stdout=out, stderr=subprocess.STDOUT)
        anonymous = 0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            with suppress(OSError, StopIteration):
                rows = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                anonymous = max(
                    anonymous, next(1024 * int(row.split()[1]) for row in rows if row.startswith("RssAnon"))
                )
            time.sleep(0.2)
        _, status, used = ended
        out.seek(0)
        if status:
            raise SystemExit(f"{line} ended with {status}:\n{out.read()[-2000:]}")
        return used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss, anonymous, out.read()


def cut(beir: Path, folder: Path, n_documents: int, n_queries: int) -> list[str]:
    """Write the first queries, their relevant documents and others as mteb's data, and return the corpus's texts."""
    queries, corpus = ([json.loads(row) for row in (beir / part).open(encoding="utf-8")] for part in PARTS)
    judged = [row.split("\t")[:2] for row in (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    first = dict(judged[::-1])  # the first relevant document of each query
    queries = [query for query in queries if query["_id"] in first][:n_queries]
    relevant = {first[query["_id"]] for query in queries}
    documents = sorted(corpus, key=lambda document: document["_id"] not in relevant)[:n_documents]
    folder.mkdir(parents=True, exist_ok=True)
    grades = [{"query-id": query["_id"], "corpus-id": first[query["_id"]], "score": 1} for query in queries]
    short = [
        [{"_id": row["_id"], "text": " ".join(row["text"].split()[:N_WORDS])} for row in rows]
        for rows in (queries, documents)
    ]
    configs = "".join(
        f"- config_name: {name}\n  data_files: [{{split: test, path: {path}}}]\n"
        for name, path in (("default", "qrels.jsonl"), ("queries", PARTS[0]), ("corpus", PARTS[1]))
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for path, rows in zip((*PARTS, "qrels.jsonl"), (*short, grades), strict=True):
        (folder / path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [document["text"] for document in corpus]


def save_model(folder: Path, texts: list[str]) -> None:
    """Write the model as the hub has it, in bfloat16: the shape, pooling and prompts of the real one."""
    import torch  # noqa: PLC0415 -- memory of the commands is measured, and they are forked from this process
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: PLC0415 -- as above
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model  # noqa: PLC0415 -- as above

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    Qwen3Model(Qwen3Config(**SIZES, **HEADS, **OTHERS, dtype="bfloat16")).save_pretrained(folder)
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    learned.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=20_000, initial_alphabet=letters, show_progress=False)
    )
    model = json.loads(learned.to_str())["model"]
    model["vocab"] |= {f"<|filler_{number}|>": number for number in range(len(model["vocab"]), N_TOKENS)}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = learned.pre_tokenizer, decoders.ByteLevel()
    end = "<|endoftext|>"
    tokenizer.add_special_tokens([end])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, N_TOKENS)])
    words = {"eos_token": end, "pad_token": end, "padding_side": "left", "model_max_length": 131_072}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words).save_pretrained(folder)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (path, kind) in enumerate(kinds)
    ]
    pooling = {"word_embedding_dimension": 1024, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    settings = {
        "prompts": {"query": QUERY, "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    for path, content in (("1_Pooling/config.json", pooling), ("config_sentence_transformers.json", settings)):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    (folder / "2_Normalize").mkdir(exist_ok=True)
    (folder.parents[1] / "refs").mkdir(exist_ok=True)
    (folder.parents[1] / "refs" / "main").write_text(REVISION)
    (folder / "modules.json").write_text(json.dumps(modules))


if __name__ == "__main__":
    main()
