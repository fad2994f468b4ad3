"""What data may make of the memory: a small file stays small, and a pipe is not waited for."""

import gzip
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quantdrift.base.errors import DataError, QuantDriftError
from quantdrift.base.progress import Silent
from quantdrift.base.records import refuse_bomb
from quantdrift.data.labelled import read_folder
from quantdrift.data.retrieval import read_beir_folder, read_qrels
from quantdrift.finished.contents import read_text
from quantdrift.finished.formats import read_finished
from quantdrift_shards.corpus import read_sharded

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bombs are a hundredth of what they are outside of tests."""
    monkeypatch.setattr("quantdrift.base.records._ALWAYS", 3 * MEGABYTE)


@pytest.fixture
def most() -> Iterator[None]:
    """Peak memory of Python stays below 40 MB."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * MEGABYTE


def searched(folder: Path) -> Path:
    (folder / "corpus").mkdir(parents=True)
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a"}\n')
    return folder


def test_what_packs_as_data_do_passes() -> None:
    refuse_bomb(150 * MEGABYTE, MEGABYTE)
    refuse_bomb(2 * MEGABYTE, 1)
    with pytest.raises(ValueError, match="unpack to"):
        refuse_bomb(201 * MEGABYTE, MEGABYTE)


@pytest.mark.usefixtures("most")
def test_one_text_that_a_parquet_file_keeps_once_for_many_rows(tmp_path: Path) -> None:
    folder = searched(tmp_path)
    table = pa.table({"_id": [f"d{row}" for row in range(200)], "text": ["x" * 800_000] * 200})
    pq.write_table(table, folder / "corpus" / "0.parquet", compression="zstd")
    del table
    shards = read_sharded(str(folder), "test", progress=Silent()).shards
    with pytest.raises(DataError, match=r"0\.parquet .*unpack to"):
        [shard.read() for shard in shards]


@pytest.mark.usefixtures("most")
def test_lines_without_end_and_many_of_them_in_a_packed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.data.retrieval.LONGEST", MEGABYTE)
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a"}\n')
    for size, end, said in ((2 * MEGABYTE, b"", "line 1: longer than 1 MB"), (900_000, b'"}\n', "unpack to")):
        with gzip.open(tmp_path / "corpus.jsonl.gz", "wb") as file:
            for row in range(20):
                file.write(b'{"_id": "d%d", "text": "' % row + b"x" * size + end)
        with pytest.raises(DataError, match=said):
            read_beir_folder(tmp_path)


@pytest.mark.usefixtures("most")
def test_arrays_that_unpack_to_far_more_than_they_are(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x_test=np.zeros((20, 1024, 1024), dtype=np.uint8), y_test=np.zeros(20))
    with pytest.raises(DataError, match="unpack to"):
        read_folder(tmp_path / "x.npz")


@pytest.mark.usefixtures("most")
def test_a_finished_run_that_unpacks_to_far_more_than_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.trec.gz").write_bytes(gzip.compress(b"q Q0 d 1 1 x\n" * 2 * MEGABYTE))
    with pytest.raises(DataError, match="unpack to"):
        read_text(tmp_path / "run.trec.gz")


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    folder = searched(tmp_path / "data")
    os.mkfifo(folder / "corpus" / "1.jsonl")
    with pytest.raises(DataError, match="pipe"):
        read_sharded(str(folder), "test", progress=Silent())
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(QuantDriftError):
            read_finished(tmp_path / name)


def test_a_pair_with_two_grades_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("q\td\t1\nq\te\t2\nq\td\t1\n")
    assert read_qrels(tmp_path / "test.tsv") == {"q": {"d": 1, "e": 2}}  # said twice is no contradiction
    (tmp_path / "test.tsv").write_text("q\td\t1\nq\td\t2\n")
    with pytest.raises(DataError, match=r"line 2: .*'q'.*'d'.* 1 and 2"):
        read_qrels(tmp_path / "test.tsv")
