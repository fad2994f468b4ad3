"""Gating a finished run of 1,000 queries, against the same tests by pandas, scipy and statsmodels.

Both are whole commands, imports included, as a CI runs them. The wanted figures: a ratio below 1,
and less than a second for ours.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from timing import in_turn, report

from support.comparison_samples import run_of
from support.routing_samples import searched, similarities

N, ITEMS, K = 1_000, 2_000, 200
ROUNDS = 9

OTHER = """
import sys
import numpy as np, pandas as pd
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

def discount(ranks):
    return 1 / np.log2(ranks + 2)

def outcomes(place):
    table = pd.read_parquet(place + "/evidence.parquet")
    relevant = table["judged_items"].map(set)
    lost, gain = [], []
    for before, after, labels in zip(table.reference_items, table.candidate_items, relevant):
        lost.append(bool(labels & set(before[:10]) - set(after[:10])))
        gain.append(sum(discount(rank) for rank, item in enumerate(after[:10]) if item in labels))
    return table["flip"].to_numpy(), np.array(lost), np.array(gain)

a, b = outcomes(sys.argv[1]), outcomes(sys.argv[2])
for one, other in zip(a[:2], b[:2]):
    mcnemar(pd.crosstab(one, other).reindex([0, 1]).T.reindex([0, 1]).fillna(0), exact=True)
stats.permutation_test((a[2] - b[2],), np.sum, permutation_type="samples", n_resamples=9999)
"""
"""What somebody who has the run folders would write: flips, lost documents and nDCG, two tests by
McNemar and one by randomization; no intervals, no equivalence, no list of inputs."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("gate")
    candidates = {name: searched(*similarities(N, ITEMS, noise), depth=K) for name, noise in (("a", 0.05), ("b", 0.08))}
    runs = [run_of(root / name, made, spec=f"minilm@W4-{name}") for name, made in candidates.items()]
    return runs[0].path, runs[1].path


def test_a_finished_run(runs: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = runs
    baseline = tmp_path / "drift-baseline.json"

    def gate(run: Path, *more: str) -> int:
        command = [sys.executable, "-m", "quantdrift", "gate", str(run), "--baseline"]
        done = subprocess.run([*command, str(baseline), *more], capture_output=True, check=False, cwd=tmp_path)
        return done.returncode

    def other() -> None:
        command = [sys.executable, "-c", OTHER, str(a), str(b)]
        subprocess.run(command, capture_output=True, check=True)

    assert (gate(a, "--update"), gate(b)) == (0, 1)
    start = time.perf_counter()
    gate(b)
    seconds = time.perf_counter() - start
    ratios = in_turn(lambda: gate(b), other, ROUNDS)
    report("gating a finished run", ratios, f"{N:,} x {K} ranks; ours took {seconds:.2f} s")
