"""What is calibrated on: how many documents, which, in which batches, and texts of a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantdrift.base.errors import DataError
from quantdrift.candidate.calibration.sample import Sample, draw_sample, read_texts
from quantdrift.spec.grammar import parse_scheme
from support.worlds import Rower, rows_of


def drawn(
    scheme: str, n: int = 1000, *, batch_size: int = 32, digest: Any = "a", groups: NDArray[np.int64] | None = None
) -> tuple[Sample, list[list[int]]]:
    """A sample of documents of 1 to n letters, and the rows of each batch."""
    seen: list[list[int]] = []

    def run(role: str, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        seen.append(rows.tolist())
        return np.zeros((len(rows), 2), dtype=np.float32)

    documents = rows_of("document", n, digest=digest and {"texts": digest}, lengths=np.arange(1, n + 1))
    sample = draw_sample(Rower(run), [documents], parse_scheme(scheme), batch_size, groups=groups)
    for batch in sample.batches:
        batch()
    return sample, seen


def test_512_documents_by_default_each_once_longest_first() -> None:
    sample, seen = drawn("W4-gptq")
    rows = [row for batch in seen for row in batch]
    assert len(rows) == len(set(rows)) == 512
    assert [len(batch) for batch in seen] == [32] * 16
    assert rows == sorted(rows, reverse=True)  # the length grows with the number
    facts = {"source": "corpus", "n_inputs": 512, "wanted": 512, "of": 1000, "seed": 0}
    assert facts.items() <= sample.record.items()


def test_the_number_and_the_seed_are_settings() -> None:
    (first, seen), (again, seen_again) = drawn("W4-gptq+calib=20"), drawn("W4-awq+calib=20")
    other, seen_other = drawn("W4-gptq+calib=20+seed=1")
    assert sum(len(batch) for batch in seen) == 20
    assert (seen, first.record["digest"]) == (seen_again, again.record["digest"])  # the same for every method
    assert seen != seen_other
    assert first.record["digest"] != other.record["digest"]
    assert first.key != other.key


def test_batches_are_larger_where_there_would_be_too_many_and_hold_one_group() -> None:
    assert len(drawn("W4-gptq", batch_size=1)[0].batches) == 64
    _, seen = drawn("W4-gptq", 40, batch_size=8, groups=np.arange(40) // 15)
    assert all(len({row // 15 for row in batch}) == 1 for batch in seen)
    assert sorted(row for batch in seen for row in batch) == list(range(40))


def test_lines_of_text_and_lines_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\n\n  another  \n")
    assert read_texts(tmp_path / "a.txt") == ["one text", "another"]
    rows = ['{"_id": "1", "title": "A title", "text": "and a text"}', "", '{"text": "alone"}']
    (tmp_path / "b.jsonl").write_text("\n".join(rows))
    assert read_texts(tmp_path / "b.jsonl") == ["A title and a text", "alone"]


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("a.csv", "x", r"a\.csv: expected a file of texts, a \.txt file"),
        ("missing.txt", None, r"missing\.txt: expected a file of texts"),
        ("empty.txt", "\n \n", "holds no text"),
        ("a.jsonl", '{"text": "fine"}\n["no"]', r"a\.jsonl, line 2"),
        ("b.jsonl", '{"title": "no text"}', r"b\.jsonl, line 1"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str, content: str | None, fact: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=fact):
        read_texts(tmp_path / name)
