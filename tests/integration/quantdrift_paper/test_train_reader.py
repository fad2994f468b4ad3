"""The extractive reader: what it reads, what it learns from, and that it is not asked what it has seen."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
from transformers import BertForQuestionAnswering

from quantdrift_paper.reader import LONGEST, Reader, spans
from quantdrift_rag.answers import RagRecord
from quantdrift_rag.questions import Prompt
from support.beir_folder import write_beir_folder
from support.candidate_samples import WORDS, bert, save_backbone
from support.command_line import cli
from support.rag_samples import write_search

RECIPE = Path(__file__).parents[3] / "docs" / "measured" / "recipes" / "train_reader.py"
_spec: Any = importlib.util.spec_from_file_location("train_reader", RECIPE)
train_reader: Any = importlib.util.module_from_spec(_spec)
sys.modules["train_reader"] = train_reader
_spec.loader.exec_module(train_reader)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    config = bert(hidden_size=32, num_attention_heads=2, intermediate_size=64, initializer_range=0.5)
    save_backbone(folder, BertForQuestionAnswering(config))
    return folder


def test_the_best_span_is_that_of_a_search_over_all_spans() -> None:
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, 5, 40))
    inside = np.zeros((5, 40), bool)
    inside[:, 4:38] = True
    best_spans = spans(*(torch.tensor(part) for part in (start, end, inside)))
    for row in range(5):
        every = {
            (i, j): start[row, i] + end[row, j] - start[row, 0] - end[row, 0]
            for i in range(4, 38)
            for j in range(i, min(38, i + LONGEST))
        }
        best = max(every, key=lambda pair: every[pair])
        assert (int(best_spans[1][row]), int(best_spans[2][row])) == best
        assert float(best_spans[0][row]) == pytest.approx(every[best])


def test_an_answer_is_a_piece_of_a_passage_whatever_the_batch(tiny: Path) -> None:
    rng = np.random.default_rng(0)
    passages = [" ".join(rng.choice(WORDS, size=n)) for n in (3, 10, 90, 5)]  # the third takes several windows
    prompts = [Prompt(" ".join(rng.choice(WORDS, size=3)), tuple(passages[n:])) for n in range(4) for _ in range(2)]
    prompts += [Prompt(prompts[0].question, tuple(reversed(passages)))]
    said = {prompt: text for batch in Reader(str(tiny), batch_size=8).answers(prompts) for prompt, text in batch}
    singly = {prompt: text for batch in Reader(str(tiny), batch_size=1).answers(prompts) for prompt, text in batch}
    assert said == singly
    assert all(any(text in passage for passage in prompt.passages) for prompt, text in said.items())
    assert said[prompts[0]] == said[prompts[-1]]  # the order of passages is nothing to a reader


def test_pieces_of_some_passages_are_learned_from_and_others_without_an_answer() -> None:
    documents = {f"d{n}": f"{'x' * 40 * n} the wing {n} of heat{n} flow {'y' * 400}" for n in range(20)}
    queries = {f"q{n}": f"which wing {n}" for n in range(20)}
    qrels = {f"q{n}": {f"d{n}": 1, "d0": 0} for n in range(20)}
    golds = {f"q{n}": ["nowhere", f"heat{n}"] for n in range(19)}
    examples, ids = train_reader.examples_of(queries, documents, qrels, golds, share=0.5, seed=0)
    assert 8 <= len(ids) <= 10
    with_it = [example for example in examples if example.end]
    assert len(with_it) == len(ids)
    for query, example in zip(ids, with_it, strict=True):
        assert example.passage in documents[f"d{query[1:]}"]
        assert len(example.passage) == min(len(documents[f"d{query[1:]}"]), train_reader.LENGTH)
        assert example.passage[example.start : example.end] == f"heat{query[1:]}"
    without = [example for example in examples if not example.end]
    assert len(without) == len(ids) // 2
    for example in without:
        passage = documents[f"d{example.question.removeprefix('which wing ')}"]
        assert example.passage not in passage
        assert any(text.startswith(example.passage) for text in documents.values())


def test_it_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader learns the second word of "WORD ANSWER of the layer"."""
    monkeypatch.setattr(train_reader, "RATE", 3e-3)  # of weights that are random
    config = bert(hidden_size=32, num_attention_heads=2, intermediate_size=64)
    save_backbone(tmp_path / "tiny", BertForQuestionAnswering(config))
    rng = np.random.default_rng(0)
    pairs = [rng.choice(WORDS[:9], size=2, replace=False) for _ in range(60)]
    documents = {f"d{n}": f"{a} {b} of the layer" for n, (a, b) in enumerate(pairs)}
    queries = {f"q{n}": f"the {a} of" for n, (a, _) in enumerate(pairs)}
    data = write_beir_folder(tmp_path / "data", queries, documents, {f"q{n}": [f"d{n}"] for n in range(60)})
    lines = [json.dumps({"_id": f"q{n}", "answers": [str(b)]}) for n, (_, b) in enumerate(pairs)]
    (data / "answers.jsonl").write_text("\n".join(lines))
    words = ["--data", str(data), "--answers", str(data / "answers.jsonl"), "--out", str(tmp_path / "reader")]
    state = torch.get_rng_state()
    train_reader.main([*words, "--model", str(tmp_path / "tiny"), "--epochs", "25"])
    assert torch.equal(torch.get_rng_state(), state)
    assert "extractive reader, trained on 30 of 60 questions" in capsys.readouterr().out
    run = write_search(tmp_path / "W4", data, -np.eye(60), reference=np.eye(60), k=60)
    given = ("--reader", tmp_path / "reader", "--passages", 1, "-q", "-o", tmp_path / "out")
    code, _, err = cli("reader", run, *given)
    assert code == 0, err
    code, out, err = cli("rag", tmp_path / "out", "--markdown")
    assert code == 0, err
    record = RagRecord.read(tmp_path / "out" / "rag.json")
    seen = json.loads((tmp_path / "reader" / "trained_on.json").read_text())["ids"]
    assert (record.kind, record.control) == ("extractive reader", None)
    assert {*record.ids} | {*seen} == {*queries}
    assert not {*record.ids} & {*seen}
    right = [said == gold[0] for said, gold in zip(record.reference.answers, record.golds, strict=True)]
    assert np.mean(right) > 0.6
    assert all(part in out for part in ("30 of 60 questions are not asked", "no control"))
    with pytest.raises(SystemExit):
        train_reader.main([*words, "--model", str(tmp_path / "tiny")])
    assert "expected a new or empty folder" in capsys.readouterr().err
