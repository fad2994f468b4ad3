"""How long metrics take from stored evidence, as ratios to what people use for the same figures.

5,000 queries, 200 ranks stored of either arm, 10 judgements each.
"""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from timing import in_turn, report

from quantdrift.evidence.file import read_evidence, write_evidence
from quantdrift.evidence.record import Evidence, Judgements, Top
from quantdrift.metrics import default_metrics, measure, parse_metric
from quantdrift.runs.folder import write_run
from support.written_samples import record

N_INPUTS, DEPTH, N_ITEMS, JUDGED = 5_000, 200, 20_000, 10
SHAPE = f"{N_INPUTS:,} queries, {DEPTH} ranks of either arm, {JUDGED} judgements each"
ROUNDS = 5

Qrels = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return _made()


def _made() -> Evidence:
    rng = np.random.default_rng(0)
    items = np.array([rng.choice(N_ITEMS, DEPTH + 20, replace=False) for _ in range(N_INPUTS)])
    scores = -np.sort(-rng.random((N_INPUTS, DEPTH)).astype(np.float32), axis=1)
    moved = np.argsort(np.arange(DEPTH + 20) + rng.normal(0, 3, items.shape), axis=1)[:, :DEPTH]
    arms = [items[:, :DEPTH], np.take_along_axis(items, moved, axis=1)]
    tops = [Top(items=arm, reference_scores=scores, candidate_scores=scores) for arm in arms]
    return Evidence(
        input_ids=np.array([f"q{row}" for row in range(N_INPUTS)], dtype=object),
        item_ids=np.array([f"d{item}" for item in range(N_ITEMS)], dtype=object),
        reference_top=tops[0],
        candidate_top=tops[1],
        delta_min=np.full(N_INPUTS, -0.05, dtype=np.float32),
        delta_max=np.full(N_INPUTS, 0.05, dtype=np.float32),
        n_items=np.full(N_INPUTS, N_ITEMS),
        judgements=Judgements(
            offsets=np.arange(0, (N_INPUTS + 1) * JUDGED, JUDGED),
            items=items[:, : 2 * JUDGED : 2].ravel(),
            grades=np.ones(N_INPUTS * JUDGED, dtype=np.int64),
        ),
    )


def _named(evidence: Evidence) -> tuple[Qrels, list[dict[str, dict[str, float]]]]:
    """Labels and both runs as pytrec_eval takes them."""
    assert evidence.judgements is not None
    names = evidence.item_ids.tolist()
    queries = evidence.input_ids.tolist()
    qrels = {
        query: {names[item]: grade for item, grade in evidence.judgements.of(row).items()}
        for row, query in enumerate(queries)
    }
    runs = [
        {
            query: {names[item]: float(-rank) for rank, item in enumerate(top.items[row].tolist())}
            for row, query in enumerate(queries)
        }
        for top in (evidence.reference_top, evidence.candidate_top)
    ]
    return qrels, runs


def test_quality_of_both_arms_against_pytrec_eval(evidence: Evidence) -> None:
    """Values per query; what pytrec_eval takes is made beforehand and does not count."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    qrels, runs = _named(evidence)
    wanted = [parse_metric(name) for name in ("ndcg@10", "recall@1", "recall@10", "mrr@10")]
    both = [parse_metric(f"{arm}{metric}") for metric in wanted for arm in ("", "reference.")]

    def theirs() -> None:
        for run in runs:
            measures = {"ndcg_cut.10", "recall.1,10", "recip_rank"}
            pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)

    def ours() -> None:
        anew = replace(evidence)  # what was computed is kept as long as its evidence lives
        for metric in both:
            metric.per_input(anew)

    ratios = in_turn(ours, theirs, ROUNDS)
    report("nDCG, recall, MRR of both arms / pytrec_eval", ratios, SHAPE)


def test_all_metrics_with_intervals(evidence: Evidence) -> None:
    """The whole of `quantdrift metrics`, against its slowest part, the intervals of means."""
    from scipy.stats import bootstrap  # noqa: PLC0415 -- only this one needs it

    values = parse_metric("ndcg@10").per_input(evidence)
    means = [metric for metric in default_metrics() if "bootstrap" in metric.uncertainty]

    def intervals() -> None:
        for _ in means:
            bootstrap((values,), np.mean, n_resamples=2000, batch=100, method="percentile")

    start = time.perf_counter()
    measure(replace(evidence))
    print(f"\nall default metrics: {time.perf_counter() - start:.1f} s ({SHAPE})")
    report(
        f"all {len(default_metrics())} metrics / scipy's bootstrap of {len(means)} means",
        in_turn(lambda: measure(replace(evidence)), intervals, 2),
        SHAPE,
    )


def test_reading_and_all_metrics_of_many_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time of 50,000 inputs; and the whole command on 1,509 against a bare read of its file, with imports."""
    monkeypatch.setattr(sys.modules[__name__], "N_INPUTS", 50_000)
    write_evidence(_made(), tmp_path / "many.parquet")
    start = time.process_time()
    held = read_evidence(tmp_path / "many.parquet")
    middle = time.process_time()
    measure(held)
    print(f"\n50,000 inputs, CPU time: read {middle - start:.1f} s, all metrics {time.process_time() - middle:.1f} s")
    monkeypatch.setattr(sys.modules[__name__], "N_INPUTS", 1_509)
    run = write_run(tmp_path / "run", evidence=_made(), record=record(classes=False))
    bare = f"import numpy, pyarrow.parquet; pyarrow.parquet.ParquetFile({str(run.path / 'evidence.parquet')!r}).read()"
    ours = [sys.executable, "-m", "quantdrift", "metrics", str(run.path)]
    ratios = in_turn(
        lambda: subprocess.run(ours, check=True, stdout=subprocess.DEVNULL),
        lambda: subprocess.run([sys.executable, "-c", bare], check=True),
        ROUNDS,
    )
    report("quantdrift metrics / a bare read of the file", ratios, "1,509 inputs, whole processes")
