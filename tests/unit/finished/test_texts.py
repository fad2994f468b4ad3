"""Texts of a finished run: of lm-eval's samples, and of data that its record names."""

from pathlib import Path

import pytest

from quantdrift.base.errors import DataError
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.finished.texts import read_texts
from quantdrift.runs.folder import write_run
from support.finished_samples import question, write_samples


def test_questions_and_choices_are_taken_from_samples_of_lm_eval(tmp_path: Path) -> None:
    scores = {"0": {"0": -1.0, "1": -2.0}, "1": {"0": -1.0, "1": -2.0}}
    record = {"spec": "m@W4", "data": {"name": "piqa", "harness": "lm-eval"}}
    run = write_run(tmp_path / "run", evidence=evidence_of_rankings(scores, scores, complete=True), record=record)
    samples = [question(number, [-1.0, -2.0]) for number in range(2)]
    folder = write_samples(tmp_path / "log", "piqa", samples)
    for place in (folder, next(folder.glob("samples_*"))):
        texts = read_texts(run, data=place)
        assert texts.inputs == {"0": "question 0", "1": "question 1"}
        assert [texts.item("1", number) for number in "012"] == ["choice 0", "choice 1", None]
    write_samples(folder, "winogrande", samples)
    assert read_texts(run, data=folder).inputs  # that of its task
    write_samples(tmp_path / "others", "a", samples)
    write_samples(tmp_path / "others", "b", samples)
    with pytest.raises(DataError, match="piqa"):
        read_texts(run, data=tmp_path / "others")
