"""Every command that a verdict advises is run, for deployments of every kind: none refuses."""

import json
import shlex
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("faiss", reason="the extra 'faiss' is not installed")

from transformers import BertModel

from quantdrift.features.repair import choice
from quantdrift.runs.folder import read_run
from quantdrift.runs.verdict import verdict
from quantdrift.statistics.standing import Tolerances
from quantdrift.study.folder import open_study
from quantdrift.study.shares import judged_whole, waterfalls_of
from support import classifier_samples
from support.candidate_samples import HIDDEN, WIDTH, bert, save_backbone
from support.rerank_samples import save_cross_encoder
from support.row_models import multi_vector, search_data, sparse, static_model
from support.tiny_command_line import Run, one_thread, place, quantdrift, text

__all__ = ["one_thread", "place", "quantdrift"]

NOTHING = Tolerances(changed=1e-9, mean=1e-9)
"""With these tolerances each change calls for advice."""


@pytest.fixture(scope="module", autouse=True)
def models(place: Path) -> None:
    multi_vector(place / "multi")
    sparse(place / "sparse")
    sizes = bert(hidden_size=HIDDEN, num_attention_heads=4, intermediate_size=WIDTH, initializer_range=0.3)
    save_backbone(place / "other", BertModel(sizes))
    static_model(place)
    search_data(place / "rows")
    classifier_samples.save_classifier(place / "bert")
    save_cross_encoder(place / "cross")
    lines = [{"text": text(number, 6), "label": classifier_samples.LABELS[number % 3]} for number in range(60)]
    for part in ("labelled/train", "labelled/test", "bare/test"):
        (place / part).parent.mkdir(exist_ok=True)
        (place / f"{part}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ranked = [f"q{query} Q0 d{rank} {rank} {-rank} any" for query in range(20) for rank in range(1, 7)]
    (place / "first.trec").write_text("\n".join(ranked))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair takes seconds: one quantizer, and trials on few queries."""
    monkeypatch.setattr(choice, "TRIED", ("rtn",))
    monkeypatch.setattr("quantdrift.features.repair.search.STEPS", (8, 16))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("spec", "data", "advised"),
    [
        pytest.param("TINY@W3-g32", "data", "repair", marks=pytest.mark.slow),
        ("TINY@W16A4-g32", "data", "run"),
        ("TINY@W3A4-g32", "data", "waterfall"),
        ("TINY@fp+emb=binary", "data", "run"),
        ("TINY@fp+dim=4", "data", "repair"),
        ("TINY@W3-g32+emb=binary", "data", "waterfall"),
        ("TINY@fp+index=HNSW2+search=efSearch=1", "data", "run"),
        ("TINY@fp+index=PQ2x4", "data", "run"),
        ("TINY@fp+emb=binary+index=HNSW32", "data", "run"),
        ("TINY@fp+emb=binary+index=PQ2x4+rescore=1", "data", "repair"),
        pytest.param("TINY@W3-g32+dtype=bf16", "data", "waterfall", marks=pytest.mark.slow),
        ("ROOT/static@fp+emb=binary", "data", "run"),
        ("ROOT/multi/model@W2-g32", "rows", ""),
        ("ROOT/multi/model@fp+emb=binary", "rows", "run"),
        ("ROOT/sparse/model@W2-g32", "rows", ""),
        ("ROOT/sparse/model@fp+terms=1", "rows", ""),
        ("ROOT/bert@W2-g32", "labelled", "repair"),
        ("ROOT/bert@W2-g32", "bare", ""),
        ("ROOT/bert@W2A4-g32", "labelled", ""),
        ("ROOT/cross@W2-g32 --shortlist ROOT/first.trec", "rows", ""),
        ("TINY vs ./checkpoint", "data", ""),
        ("TINY vs ROOT/other", "data", ""),
    ],
)
def test_what_is_advised_does_not_refuse(spec: str, data: str, advised: str, quantdrift: Run) -> None:
    pair = [spec] if " vs " in spec else spec.split()
    if "./" in spec:
        quantdrift("quantize", "TINY@W3-g32", "--out", "checkpoint")
    quantdrift("run", *pair, "--data", f"ROOT/{data}", "-k", "20", "--no-noise-floor", "--out", "run")
    outcome = verdict(read_run(Path("run")).record, NOTHING)
    assert outcome.tone in {"warn", "bad"}  # something changed
    assert [*outcome.command.split()[1:2]] == ([advised] if advised else [])
    if not advised:
        return
    words = shlex.split(outcome.command)[1:]
    quantdrift(*words, "--out", "advised")
    if advised == "waterfall":  # which advises in turn, on the stage that changes most
        study = open_study(Path("advised"))
        whole = study.run(study.cells[-1])
        assert whole is not None
        whole.record["tolerances"] = {"changed": 1e-9, "mean": 1e-9}
        last = judged_whole(whole.record, waterfalls_of(study)[0])
        assert last.command.split()[1] in {"run", "repair"}
        quantdrift(*shlex.split(last.command)[1:], "--out", "last")
