"""A corpus in shards: time and memory by its size, and two workers against one."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.candidate_samples import WORDS, save_backbone

SIZES = tuple(int(size) for size in os.environ.get("QUANTDRIFT_SCALE", "10000,40000").split(","))
"""Documents; docs/measured/speed.md has them up to a million."""
N_QUERIES = 200


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


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_two_workers_against_one(tmp_path: Path, engine: str) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    save_backbone(tmp_path / "tiny")
    data = made(tmp_path / "data", n := max(SIZES))
    common = ("--engine", engine, "--shard", "2000", "--workers")
    alone, both = (ran(tmp_path, data, *common, str(workers))[0] for workers in (1, 2))
    print(f"\n{engine}, two workers against one: {alone / both:.2f} times as fast ({n:,} texts, {both:.0f} s)")
