"""A corpus in shards: time and memory by its size, and two workers against one."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import WORDS, save_backbone, text
from support.row_models import multi_vector

SIZES = tuple(int(size) for size in os.environ.get("QUANTDRIFT_SCALE", "10000,40000").split(","))
"""Documents; docs/measured/speed.md has them up to a million."""
N_QUERIES = 200
TOKEN_DOCS, TOKEN_DIM, TOKEN_BOUND = 20_000, 320, 1000
"""Documents of 46 tokens, numbers of a token vector, and the MB that a process may hold of its own."""


def made(folder: Path, n: int) -> Path:
    """Documents of 6 to 29 words in files of 20,000, and queries."""
    rng, words = np.random.default_rng(0), np.array(WORDS)
    (folder / "corpus").mkdir(parents=True)

    def texts(number: int) -> list[str]:
        return [" ".join(rng.choice(words, size)) for size in rng.integers(6, 30, number)]

    for at in range(0, n, 20_000):
        rows = range(at, min(n, at + 20_000))
        table = pa.table({"_id": [f"d{row}" for row in rows], "text": texts(len(rows))})
        pq.write_table(table, folder / "corpus" / f"{at:09d}.parquet")
    lines = [json.dumps({"_id": f"q{row}", "text": text}) for row, text in enumerate(texts(N_QUERIES))]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    return folder


def ran(root: Path, data: Path, *more: str) -> tuple[float, float]:
    """Seconds that the documents took, and the peak of the command's memory in MB."""
    out = root / "out"
    words = ["run", f"{root}/tiny@W4", "--data", str(data), "--out", str(out), "--no-cache", "--quiet", *more]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "quantdrift", *words]
    subprocess.run(line, env=environment, check=True, capture_output=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak >= before  # it never falls: sizes have to grow
    return json.loads((out / "run.json").read_text())["times"]["seconds"]["documents"], peak / 1024


def test_time_and_memory_by_size(tmp_path: Path) -> None:
    save_backbone(tmp_path / "tiny")
    for n in sorted(SIZES):
        seconds, peak = ran(tmp_path, made(tmp_path / f"n{n}", n))
        print(f"\n{n:,} documents: {seconds:.1f} s, {1e6 * seconds / n:.0f} us each; peak {peak:.0f} MB")


def test_two_workers_against_one(tmp_path: Path) -> None:
    save_backbone(tmp_path / "tiny")
    data = made(tmp_path / "data", n := max(SIZES))
    common = ("--shard", "2000", "--workers")
    alone, both = (ran(tmp_path, data, *common, str(workers))[0] for workers in (1, 2))
    print(f"\ntwo workers against one: {alone / both:.2f} times as fast ({n:,} texts, {both:.0f} s)")


def anonymous_peak(line: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Peaks in MB of a command's anonymous memory, asked for 50 times a second, and of all its resident memory."""
    with subprocess.Popen(
        line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        status, peaks = Path(f"/proc/{process.pid}/status"), {"RssAnon": 0, "VmHWM": 0}
        while process.poll() is None:
            for name, _, value in (row.partition(":") for row in status.read_text().splitlines()):
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]))
            time.sleep(0.02)
        assert process.stderr is not None
        assert process.returncode == 0, process.stderr.read()
    return peaks["RssAnon"] / 1024, peaks["VmHWM"] / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what is anonymous is asked of Linux")
def test_token_vectors_stay_on_disk(tmp_path: Path) -> None:
    """Both arms' token vectors take more than the process may hold; what is mapped is not counted as its own."""
    multi_vector(tmp_path, dim=TOKEN_DIM)
    peaks = []
    for n in (2_000, TOKEN_DOCS):
        data = write_beir_folder(
            tmp_path / f"n{n}",
            numbered("q", [text(row, 6) for row in range(50)]),
            numbered("d", [text(1000 + row, 44) for row in range(n)]),
        )
        words = ["run", f"{tmp_path}/model@W4", "--data", str(data), "--out", str(tmp_path / f"out{n}"), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "QUANTDRIFT_CACHE": str(tmp_path / f"cache{n}")}
        peaks.append(anonymous_peak([sys.executable, "-m", "quantdrift", *words], environment))
        kept = sum(file.stat().st_size for file in (tmp_path / f"cache{n}").rglob("*") if file.is_file())
        print(
            f"\n{n:,} documents, {kept / 1e6:,.0f} MB of token vectors: {peaks[-1][0]:.0f} MB of its own at most,"
            f" {peaks[-1][1]:.0f} MB resident with files that are mapped"
        )
    assert kept > 1e9
    assert peaks[1][0] < TOKEN_BOUND
    assert peaks[1][0] - peaks[0][0] < kept / 1e6 / 10
