"""Texts of a finished run: of lm-eval's samples, and of data that its record names."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantdrift.errors import DataError
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.finished.texts import read_texts
from quantdrift.runs import Run, write_run
from support.finished_samples import question, write_samples


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of lm-eval on two questions with two choices."""
    scores = [{"0": {"0": -1.0, "1": -2.0}, "1": {"0": -1.0, "1": -2.0}} for _ in range(2)]
    evidence = evidence_of_rankings(scores[0], scores[1], complete=True)
    record = {"spec": "m@W4", "data": {"name": "piqa", "harness": "lm-eval"}}
    return write_run(tmp_path / "run", evidence=evidence, record=record)


def test_questions_and_choices_are_taken_from_samples_of_lm_eval(run: Run, tmp_path: Path) -> None:
    samples = [question(number, [-1.0, -2.0]) for number in range(2)]
    folder = write_samples(tmp_path / "log", "piqa", samples)
    (file,) = folder.glob("samples_*")
    for place in (folder, file):
        texts = read_texts(run, data=place)
        assert texts.inputs == {"0": "question 0", "1": "question 1"}
        assert [texts.item("1", number) for number in "012"] == ["choice 0", "choice 1", None]
    write_samples(folder, "winogrande", samples)
    assert read_texts(run, data=folder).inputs  # that of its task
    write_samples(tmp_path / "others", "a", samples)
    write_samples(tmp_path / "others", "b", samples)
    with pytest.raises(DataError, match="piqa"):
        read_texts(run, data=tmp_path / "others")
