"""Runs of three questions on six passages, gold answers, and a generator that says what its first passage says."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from quantdrift.data.retrieval import read_beir_folder
from quantdrift.measuring.flow import assemble
from quantdrift.runs.folder import write_run
from quantdrift.scoring.streamed import score_matrix
from quantdrift_rag.questions import Prompt
from support.beir_folder import write_beir_folder

QUESTIONS = {"q0": "who sank", "q1": "who swam", "q2": "who flew"}
PASSAGES = {f"d{n}": f"{name} did it" for n, name in enumerate(("ann", "bob", "cid", "dot", "eve", "fay"))}
QRELS = {"q0": ["d0"], "q1": ["d1"], "q2": ["d2"]}
GOLDS = {"q0": ["Ann"], "q1": ["the Bob", "Bobby"], "q2": ["Cid"]}
REFERENCE = [[9, 5, 4, 3, 2, 1], [5, 9, 4, 3, 2, 1], [9, 4, 5, 3, 2, 1]]  # finds d0, d1, and for q2 d0


def write_world(folder: Path) -> Path:
    data = write_beir_folder(folder / "data", QUESTIONS, PASSAGES, QRELS)
    lines = [json.dumps({"_id": name, "answers": golds}) for name, golds in GOLDS.items()]
    (data / "answers.jsonl").write_text("\n".join(lines))
    return data


def write_search(path: Path, data: Path, scores: Sequence[Sequence[float]], *, k: int = 6, **changes: Any) -> Path:
    """A run whose candidate scores so."""
    dataset = read_beir_folder(data)
    evidence = assemble(
        score_matrix(np.array(changes.pop("reference", REFERENCE), float), np.array(scores, float), k=k),
        input_ids=list(dataset.query_ids),
        item_ids=list(dataset.document_ids),
        qrels=changes.pop("qrels", dataset.qrels),
    )
    entry = {"name": "data", "fingerprint": dataset.fingerprint, "path": str(data), "split": "test"}
    record = {"spec": f"minilm@{path.name}", "model": {"name": "minilm"}, "data": entry | changes}
    return write_run(path, evidence=evidence, record=record).path


class Echo:
    """Says the first word of the first passage, or "nobody"; remembers what it was asked."""

    name, identity = "echo", "echo 1"
    kind: ClassVar[Any] = "generator"

    def __init__(self, dies_after: int | None = None) -> None:
        self.asked: list[Prompt] = []
        self.dies_after = dies_after

    def answers(self, prompts: Sequence[Prompt]) -> Iterator[list[tuple[Prompt, str]]]:
        for prompt in prompts:
            if len(self.asked) == self.dies_after:
                raise KeyboardInterrupt
            self.asked.append(prompt)
            yield [(prompt, prompt.passages[0].split()[0] if prompt.passages else "nobody")]

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        return []
