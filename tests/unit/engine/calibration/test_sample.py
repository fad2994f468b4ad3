"""What is calibrated on: how many documents, which, in which batches, and texts of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.engine.calibration.sample import Sample, calibration_file, calibration_texts, draw_sample, read_texts
from quantdrift.engine.inputs import Inputs
from quantdrift.errors import DataError, SpecError
from quantdrift.spec import parse_scheme
from support.worlds import Rower, rows_of


def documents(n: int, seen: list[list[int]], *, digest: Any = None) -> tuple[Rower, Inputs]:
    """Documents of 1 to n letters; what is run is written to `seen`."""

    def run(role: str, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        seen.append(rows.tolist())
        return np.zeros((len(rows), 2), dtype=np.float32)

    return Rower(run), rows_of("document", n, digest=digest, lengths=np.arange(1, n + 1))


def drawn(scheme: str, n: int = 1000) -> tuple[Sample, list[list[int]]]:
    seen: list[list[int]] = []
    sample = draw_sample(*documents(n, seen, digest={"texts": "a"}), parse_scheme(scheme), 32)
    for batch in sample.batches:
        batch()
    return sample, seen


def test_512_documents_by_default_each_once_longest_first() -> None:
    sample, seen = drawn("W4-gptq")
    rows = [row for batch in seen for row in batch]
    assert len(rows) == len(set(rows)) == 512
    assert [len(batch) for batch in seen] == [32] * 16
    assert rows == sorted(rows, reverse=True)  # the length grows with the number
    names = ("source", "n_inputs", "wanted", "of", "seed")
    facts = {name: sample.record[name] for name in names}
    assert facts == {"source": "corpus", "n_inputs": 512, "wanted": 512, "of": 1000, "seed": 0}


def test_a_small_corpus_is_taken_whole() -> None:
    sample, seen = drawn("W4-gptq+calib=64", n=40)
    assert (sample.record["n_inputs"], sample.record["wanted"]) == (40, 64)
    assert sorted(row for batch in seen for row in batch) == list(range(40))
    assert [len(batch) for batch in seen] == [32, 8]


def test_the_number_and_the_seed_are_settings() -> None:
    first, seen = drawn("W4-gptq+calib=20")
    again, seen_again = drawn("W4-awq+calib=20")
    other, seen_other = drawn("W4-gptq+calib=20+seed=1")
    assert sum(len(batch) for batch in seen) == 20
    assert seen == seen_again  # the same documents for every method
    assert first.record["digest"] == again.record["digest"]
    assert seen != seen_other
    assert first.record["digest"] != other.record["digest"]
    assert first.key != other.key


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("W4-gptq+calib=0", "calib is '0': expected a whole number, 1 or more, or a .txt file"),
        ("W4-gptq+calib=-3", "calib is '-3': expected a whole number, 1 or more, or a .txt file"),
        ("W4-gptq+calib=1e3", "calib is '1e3': expected a whole number, 1 or more, or a .txt file"),
        ("W4-gptq+calib=a.csv", "calib is 'a.csv': expected a whole number, 1 or more, or a .txt"),
        ("W4-gptq+seed=x", "seed is 'x': expected a whole number, 0 or more"),
        ("W4-gptq+seed=-1", "seed is '-1'"),
    ],
)
def test_a_number_that_is_none_is_pointed_at(scheme: str, message: str) -> None:
    for ask in (drawn, lambda text: calibration_texts(parse_scheme(text))):  # late, and early
        with pytest.raises(SpecError, match=message) as caught:
            ask(scheme)
        value = scheme.rpartition("=")[2]
        assert caught.value.text[caught.value.start : caught.value.end] == value


def test_batches_are_larger_where_there_would_be_too_many() -> None:
    sample = draw_sample(*documents(1000, []), parse_scheme("W4-gptq"), 1)
    assert len(sample.batches) == 64


def test_groups_share_no_batch() -> None:
    seen: list[list[int]] = []
    groups = np.arange(40) // 15
    sample = draw_sample(*documents(40, seen), parse_scheme("W4-gptq"), 8, groups=groups)
    for batch in sample.batches:
        batch()
    assert all(len({row // 15 for row in batch}) == 1 for batch in seen)
    assert sorted(row for batch in seen for row in batch) == list(range(40))


def test_nothing_to_draw_from() -> None:
    with pytest.raises(DataError, match="no documents to calibrate on"):
        drawn("W4-gptq", n=0)


def test_inputs_that_cannot_be_told_apart_have_no_key() -> None:
    assert draw_sample(*documents(5, []), parse_scheme("W4-gptq"), 2).key is None


# --- a file ----------------------------------------------------------------------------------


def test_a_file_is_drawn_from_like_a_corpus() -> None:
    sample = draw_sample(*documents(700, []), parse_scheme("W4-gptq+calib=texts.txt"), 32)
    assert sample.record["n_inputs"] == 512
    assert sample.record["of"] == 700
    assert sample.record["source"] == "texts.txt"
    assert calibration_file(parse_scheme("W4-gptq+calib=64")) is None
    assert calibration_file(parse_scheme("W4-gptq+calib=a/b.jsonl")) == Path("a/b.jsonl")


def test_lines_of_text_and_lines_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\n\n  another  \n")
    assert read_texts(tmp_path / "a.txt") == ["one text", "another"]
    rows = ['{"_id": "1", "title": "A title", "text": "and a text"}', "", '{"text": "alone"}']
    (tmp_path / "b.jsonl").write_text("\n".join(rows))
    assert read_texts(tmp_path / "b.jsonl") == ["A title and a text", "alone"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "x", r"a\.csv: expected a \.txt file"),
        ("missing.txt", None, r"^\S+missing\.txt does not exist; expected a file to calibrate on$"),
        ("empty.txt", "\n \n", "holds no text"),
        ("a.jsonl", '{"text": "fine"}\n["no"]', r'a\.jsonl:2: expected a JSON object with a "text"'),
        ("b.jsonl", '{"title": "no text"}', r"b\.jsonl:1"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_texts(tmp_path / name)
