"""A language model behind MiniLM's search of XQuAD: `python gemma_rag.py XQUAD.json FOLDER MODEL OUT`; it goes on.

XQUAD.json is xquad.en.json of google-deepmind/xquad, FOLDER its passages and questions in BEIR's layout (corpora.py
cuts it), MODEL a folder of a causal language model. The answers with the passages of full precision and of each scheme
are asked for twice, in batches of 4 and of 1: what differs between the two is the generator's own noise.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

SCHEMES = ("W4-rtn", "W4-gptq", "W3-rtn")
N_QUESTIONS = 120


def write_answers(source: Path, folder: Path, file: Path) -> None:
    """Write the gold answers of the first questions of a folder, matched by text."""
    golds: dict[str, list[str]] = {}
    for article in json.loads(source.read_text(encoding="utf-8"))["data"]:
        for asked in (asked for part in article["paragraphs"] for asked in part["qas"]):
            golds[asked["question"].strip()] = [answer["text"] for answer in asked["answers"]]
    rows = map(json.loads, (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines())
    known = [(row["_id"], golds[text]) for row in rows if (text := row["text"].strip()) in golds]
    lines = [json.dumps({"_id": name, "answers": answers}) for name, answers in known[:N_QUESTIONS]]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(source: Path, folder: Path, model: Path, out: Path) -> None:
    """Search with every scheme, ask the generator twice, and write both tables as rag-gemma.csv."""
    out.mkdir(parents=True, exist_ok=True)
    write_answers(source, folder, out / "golds.jsonl")
    runs = []
    for scheme in SCHEMES:
        runs.append(str(out / scheme))
        if not Path(runs[-1]).exists():
            words = ["run", f"minilm@{scheme}+query", "--data", str(folder), "--out", runs[-1], "--quiet"]
            subprocess.run([sys.executable, "-m", "quantdrift", *words], check=True)
    said, rows = {}, []
    for size in (4, 1):
        words = ["rag", *runs, "--answers", str(out / "golds.jsonl"), "--model", "hf", "--passages", "1"]
        words += ["--model-args", f"pretrained={model},dtype=float32", "--max-tokens", "16", "--device", "cpu"]
        words += ["--batch-size", str(size), "--out", str(out / f"rag-{size}"), "--changed", "0", "--quiet", "--json"]
        asked = subprocess.run([sys.executable, "-m", "quantdrift", *words], check=True, stdout=subprocess.PIPE)
        for one in json.loads(asked.stdout)["conditions"]:
            row = {"batch": size, "passages of": one["name"]}
            for name in ("exact_match", "token_f1", "gold_in_context", "changed"):
                if name in one:
                    row |= {f"{name} {end}": one[name][end] for end in ("value", "low", "high")}
            rows.append(row | {name: one.get(name, "") for name in ("right_to_wrong", "wrong_to_right", "p_value")})
        record = json.loads((out / f"rag-{size}/rag.json").read_text(encoding="utf-8"))
        conditions = [record["control"], record["reference"], *record["candidates"]]
        said[size] = [answer for condition in conditions for answer in condition["answers"]]
    noise = sum(first != second for first, second in zip(*said.values(), strict=True))
    print(f"control: {noise} of {len(said[1])} answers to the same prompt differ between batches of 4 and of 1")
    with (out / "rag-gemma.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]))
