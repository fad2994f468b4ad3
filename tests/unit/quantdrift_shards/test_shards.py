"""A corpus in many files comes back whole and in order, wherever it lies and however it is cut."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.base.errors import DataError
from quantdrift.base.progress import Silent
from quantdrift.data.streamed import ByPosition, Shard
from quantdrift_shards.corpus import ShardedDataset, is_sharded, read_sharded

Record = dict[str, object]


def documents(n: int, start: int = 0) -> list[Record]:
    """Every other one has a title."""
    return [
        {"_id": f"d{row}", "text": f"text \u00e9 {row}", **({"title": f"T{row}"} if row % 2 else {"title": ""})}
        for row in range(start, start + n)
    ]


def lines(records: Sequence[Record]) -> str:
    return "\n".join(json.dumps(record) for record in records)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "queries.jsonl").write_text(lines([{"_id": "q1", "text": "what"}, {"_id": "q2", "text": "who"}]))
    return tmp_path


@pytest.fixture
def three(folder: Path) -> Path:
    """Thirty documents in JSON lines, packed lines and Parquet, ten of each."""
    (folder / "corpus" / "a.jsonl").write_text(lines(documents(10)).replace("\n", "\n\n  \n"))
    with gzip.open(folder / "corpus" / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(lines(documents(10, 10)) + "\n")
    pq.write_table(pa.Table.from_pylist(documents(10, 20)), folder / "corpus" / "c.parquet", row_group_size=3)
    return folder


def read(folder: Path | str, size: int = 4) -> ShardedDataset:
    return read_sharded(folder, "test", shard=size, progress=Silent())


def whole(dataset: ShardedDataset) -> Iterator[tuple[str, str]]:
    for shard in dataset.shards:
        yield from ((name, text) for name, text, _ in shard.read())


@pytest.mark.parametrize("size", [1, 3, 4, 10, 1000])
def test_every_cut_gives_the_same_documents(three: Path, size: int) -> None:
    dataset = read(three, size)

    texts = [f"{'T' + str(row) + ' ' if row % 2 else ''}text \u00e9 {row}" for row in range(30)]  # as in memory
    assert list(whole(dataset)) == [(f"d{row}", text) for row, text in enumerate(texts)]
    assert dataset.n_documents == 30
    assert [shard.start for shard in dataset.shards] == np.cumsum([0, *(s.n for s in dataset.shards)])[:-1].tolist()
    assert max(shard.n for shard in dataset.shards) <= size


def test_the_fingerprint_is_of_the_contents(three: Path) -> None:
    before = read(three, 4).fingerprint
    assert read(three, 7).fingerprint == before

    text = (three / "corpus" / "a.jsonl").read_text()
    (three / "corpus" / "a.jsonl").write_text(text.replace("T3", "T4"))

    assert read(three, 4).fingerprint != before


@given(st.integers(1, 40), st.integers(1, 12))
def test_documents_by_position_read_a_shard_once(n: int, size: int) -> None:
    shards = [
        Shard(url="x", digest="", size=1, start=start, n=min(size, n - start), row=start) for start in range(0, n, size)
    ]
    reads: list[int] = []

    def texts(shard: Shard) -> list[str]:
        reads.append(shard.start)
        return [f"t{row}" for row in range(shard.start, shard.start + shard.n)]

    by_position = ByPosition(shards, texts)

    assert [*by_position, len(by_position), by_position[0]] == [*(f"t{row}" for row in range(n)), n, "t0"]
    assert reads[: len(shards)] == [shard.start for shard in shards]


def test_one_file_can_be_cut_too(folder: Path) -> None:
    (folder / "corpus").rmdir()
    (folder / "corpus.jsonl").write_text(lines(documents(9)))

    assert not is_sharded(folder)
    assert [shard.n for shard in read(folder).shards] == [4, 4, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"_id": "x", "text": "a"}\n\n{"_id": "y"}', r'a\.jsonl, line 3: "text" is missing'),
        ("a.jsonl", '{"_id": "x", "text": "a"}\nno', r"a\.jsonl, line 2, column 1: expected a JSON object"),
        ("a.jsonl", b'{"_id": "x", "text": "\xff"}', r"a\.jsonl, line 1: expected UTF-8; 0xff"),
        ("a.jsonl", '{"_id": "x", "text": "a"}\n{"_id": "x", "text": "b"}', "every id must be unique; 'x' is already"),
        ("a.jsonl", "\n\n", "holds no document"),
        ("a.jsonl.gz", b"no gzip", r"a\.jsonl\.gz cannot be read"),
        ("a.parquet", b"PAR1 no", r"a\.parquet cannot be read"),
        ("a.parquet", {"name": ["a"], "text": ["b"]}, "expected the columns _id, text .* title; got name, text"),
        ("a.parquet", {"_id": ["a", "b"], "text": ["b", None]}, r'row 2: "text" must be a string; got NoneType'),
        ("a.parquet", {"_id": ["a", None], "text": ["b", "c"]}, r'row 2: "_id" must be a string'),
        ("a.parquet", {"_id": ["a", "a"], "text": ["b", "c"]}, "every id must be unique; a "),
        ("a.parquet", {"_id": ["a"], "text": ["b"], "title": [3]}, r'row 1: "title" must be a string; got int'),
        ("a.txt", "", "has no corpus; expected queries"),
    ],
)
def test_what_is_broken_is_named(
    folder: Path, name: str, content: str | bytes | dict[str, list[object]], message: str
) -> None:
    file = folder / "corpus" / name
    if isinstance(content, dict):
        pq.write_table(pa.table(content), file)
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message):
        list(whole(read(folder)))


def test_numbers_may_be_ids(folder: Path) -> None:
    pq.write_table(pa.table({"id": [7, 8], "text": ["a", "b"]}), folder / "corpus" / "a.parquet")
    assert list(whole(read(folder))) == [("7", "a"), ("8", "b")]


def test_a_file_that_changes_meanwhile_is_refused(three: Path) -> None:
    dataset = read(three)
    (three / "corpus" / "a.jsonl").write_text(lines(documents(3)))
    with pytest.raises(DataError, match=r"a\.jsonl has changed while it was read"):
        dataset.shards[0].read()


def test_an_endless_line_does_not_fill_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.data.retrieval.LONGEST", 1 << 20)
    (folder / "corpus" / "a.jsonl").write_text('{"_id": "x", "text": "' + "a" * (2 << 20))
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: longer than 1 MB"):
        read(folder)
