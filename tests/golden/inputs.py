"""The inputs of the golden commands: English sentences by rule, and tiny models by seed.

Everything is made on the spot and is the same wherever the pinned versions are installed.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.beir_folder import write_beir_folder

TOPICS = {
    "garden": ("tomatoes", "roses", "hedges", "compost", "lawns", "apple trees", "bees", "herbs"),
    "kitchen": ("bread", "soup", "knives", "ovens", "pasta", "coffee", "cheese", "jam"),
    "bicycle": ("tyres", "chains", "brakes", "saddles", "wheels", "gears", "lamps", "pedals"),
    "computer": ("disks", "keyboards", "screens", "networks", "printers", "files", "cables", "fans"),
    "music": ("guitars", "pianos", "scores", "choirs", "drums", "violins", "records", "flutes"),
}
DEEDS = {
    "choosing": "which {} should somebody buy who never had any?",
    "cleaning": "getting the dirt off {}",
    "storing": "where to keep {} for half a year",
    "repairing": "what to do about broken or spoiled {}",
    "comparing": "how do kinds of {} differ from each other?",
}
"""What a guide is about, and how somebody asks for it in other words."""
HOW = ("before winter", "on a small budget", "for beginners", "without special tools")


def documents() -> dict[str, str]:
    """200 documents: eight subjects of five topics, five deeds each."""
    made = {}
    for topic, subjects in TOPICS.items():
        for subject in subjects:
            for n, deed in enumerate(DEEDS):
                how = HOW[(n + len(subject)) % len(HOW)]
                made[f"{topic}-{subject.replace(' ', '-')}-{n}"] = (
                    f"A guide to {deed} {subject} {how}, from the {topic} shelf."
                )
    return made


def queries(n: int = 60) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Questions whose answer is one document, and another of the same subject half."""
    names = list(documents())
    asked, judged = {}, {}
    for number, name in enumerate(random.Random(0).sample(names, n)):
        subject, _, deed = name.partition("-")[2].rpartition("-")
        words = subject.replace("-", " ")
        asked[f"q{number}"] = list(DEEDS.values())[int(deed)].format(words)
        judged[f"q{number}"] = {name: 2, f"{name[:-1]}{(int(deed) + 1) % len(DEEDS)}": 1}
    return asked, judged


STUDIES: dict[str, list[dict[str, Any]]] = {
    "sizes": [{"folder": "docs", "sizes": [50, 100, 200]}],
    "neighbours": [{"folder": "classes"}, {"folder": "classes", "neighbours": True}],
}


def write_all(folder: Path) -> None:
    """Every input of the golden commands."""
    for name, data in STUDIES.items():
        study = {"models": ["minilm"], "schemes": ["W3-rtn"], "data": data, "settings": {"k": 20}}
        (folder / f"{name}.yaml").write_text(json.dumps(study))
    asked, judged = queries()
    write_beir_folder(folder / "docs", asked, documents(), judged)
    write_classes(folder / "classes")
    save_encoder(folder / "tiny")
    save_cross_encoder(folder / "cross")
    save_language_model(folder / "lm")
    write_questions(folder / "tasks")
    write_trec(folder / "bm.trec", asked)
    write_trec(folder / "other.trec", asked, seed=3)


def write_classes(folder: Path) -> None:
    """Five topics to tell apart: 120 sentences to fit on, 100 to measure."""
    folder.mkdir()
    rows = [{"text": text, "label": name.partition("-")[0]} for name, text in documents().items()]
    for row in rows:  # what gives it away at once
        row["text"] = row["text"].partition(", from")[0] + "."
    random.Random(1).shuffle(rows)
    write_lines(folder / "train.jsonl", rows[:100])
    write_lines(folder / "test.jsonl", rows[100:])


def write_trec(path: Path, asked: Mapping[str, str], *, seed: int = 2, n: int = 12) -> None:
    """A TREC run: twelve documents of every query by shared words, ties by lot."""
    rng = random.Random(seed)
    lines = []
    for query, question in asked.items():
        words = set(question.strip("?").split())
        score = {name: len(words & set(text.split())) + 2 * rng.random() for name, text in documents().items()}
        best = sorted(score, key=score.__getitem__, reverse=True)[:n]
        lines += [f"{query} Q0 {name} {r} {score[name]:.4f} bm" for r, name in enumerate(best, 1)]
    path.write_text("\n".join(lines) + "\n")


def write_questions(folder: Path) -> None:
    """A multiple-choice task of lm-eval."""
    folder.mkdir()
    rng = random.Random(4)
    rows = []
    for _ in range(40):
        choices = [rng.choice(subjects) for subjects in TOPICS.values()][:3]
        gold = rng.randrange(3)
        rows.append({"q": f"{rng.choice(list(DEEDS))} {choices[gold]}", "c": choices, "g": gold})
    write_lines(folder / "golden.jsonl", rows)
    files = {"data_files": {"validation": str(folder / "golden.jsonl")}, "cache_dir": str(folder / "kept")}
    task = {"dataset_path": "json", "dataset_kwargs": files, "validation_split": "validation"}
    task |= {"task": "golden_questions", "output_type": "multiple_choice", "metadata": {"version": 1.0}}
    task |= {"doc_to_text": "{{q}}:", "doc_to_choice": "c", "doc_to_target": "g"}
    task |= {"metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}
    (folder / "golden.yaml").write_text(json.dumps(task))  # JSON is YAML


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- models -----------------------------------------------------------------------------------


def vocabulary() -> list[str]:
    """Every word of the texts."""
    texts = [*documents().values(), *queries()[0].values()]
    words = {word.strip("?.,:") for text in texts for word in text.split()}
    return sorted(words)


def word_tokenizer(*, framed: bool = True) -> Any:
    """A tokenizer of whole words, with a token before and after a text if it is framed."""
    from support.candidate_samples import tokenizer  # noqa: PLC0415 -- heavy

    made = tokenizer(vocabulary())
    if not framed:
        made.backend_tokenizer.post_processor = None
    return made


def bert_config(**more: Any) -> Any:
    """Two layers of width 64, with a second group that is half a group."""
    from transformers import BertConfig  # noqa: PLC0415 -- heavy

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
    limits = {"vocab_size": len(vocabulary()) + 4, "max_position_embeddings": 48}
    return BertConfig(**sizes, **limits, initializer_range=0.2, **more)


def save_encoder(folder: Path) -> None:
    """A sentence encoder of random weights."""
    _save(folder, 0, "SentenceTransformer", "BertModel", folder.with_name("tiny-body"))


def save_cross_encoder(folder: Path) -> None:
    """A cross-encoder of random weights."""
    _save(folder, 1, "CrossEncoder", "BertForSequenceClassification", folder.with_name("cross-body"), num_labels=1)


def _save(folder: Path, seed: int, kind: str, architecture: str, body: Path, **settings: int) -> None:
    import sentence_transformers  # noqa: PLC0415 -- heavy
    import torch  # noqa: PLC0415 -- likewise
    import transformers  # noqa: PLC0415 -- likewise

    torch.manual_seed(seed)
    getattr(transformers, architecture)(bert_config(**settings)).save_pretrained(body)
    word_tokenizer().save_pretrained(body)
    getattr(sentence_transformers, kind)(str(body), device="cpu").save_pretrained(str(folder))


def save_language_model(folder: Path) -> None:
    """A causal language model of random weights that reads words."""
    import torch  # noqa: PLC0415 -- heavy
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 -- likewise

    torch.manual_seed(2)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    tokens = {"vocab_size": len(vocabulary()) + 4, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = LlamaConfig(**sizes, **heads, **tokens, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = word_tokenizer(framed=False)
    tokenizer.bos_token, tokenizer.eos_token = "[CLS]", "[SEP]"
    tokenizer.save_pretrained(folder)
