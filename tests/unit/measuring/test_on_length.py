"""A run tells of texts that are longer than the model reads: exactly those whose further words change nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch

from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.measuring.flow import on_length
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import text_inputs
from support.candidate_samples import encoder


@pytest.mark.parametrize("role", ["query", "document"])
def test_texts_are_counted_whose_last_word_is_not_read(role: str, tmp_path: Path) -> None:
    encoder(tmp_path / "model").save(str(tmp_path / "saved"))
    model = load_encoder(resolve(str(tmp_path / "saved")), device=torch.device("cpu"))
    texts = [" ".join(["drag", "lift", "heat"] * 20).split(" ", n)[:n] for n in range(38, 52)]
    ends = [[*words, end] for words in texts for end in ("wing", "wave")]
    vectors = model.encode([" ".join(words) for words in ends], role, 32).reshape(len(texts), 2, -1)
    unread = int((np.abs(vectors[:, 0] - vectors[:, 1]).max(axis=1) < 1e-6).sum())
    assert 0 < unread < len(texts)
    (note,) = on_length(model, text_inputs([" ".join(words) for words in ends], role=role))
    many = "queries" if role == "query" else "documents"
    assert note.startswith(f"{2 * unread} of {2 * len(texts)} {many} are longer")
    assert "48 tokens" in note
    assert on_length(model, text_inputs(["wing", "drag of heat"], role=role)) == []


def test_of_many_texts_a_part_is_counted(tmp_path: Path) -> None:
    encoder(tmp_path / "model").save(str(tmp_path / "saved"))
    model = load_encoder(resolve(str(tmp_path / "saved")), device=torch.device("cpu"))
    (note,) = on_length(model, text_inputs(["drag " * 99] * 3000))
    assert "1,000 of 1,000 documents that were counted" in note
