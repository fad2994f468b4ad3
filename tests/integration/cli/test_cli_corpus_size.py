"""A study of growing parts of one corpus, on a tiny model."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.measuring.flow import PROBE, Flow
from quantdrift.models.inputs import Inputs, Rows, Vectors
from support.beir_folder import numbered, write_beir_folder
from support.tiny_command_line import Run, one_thread, place, quantdrift, text

__all__ = ["one_thread", "place", "quantdrift"]

COMMON = ("TINY@W2", "--data", "ROOT/sixty", "-k", "15")


@pytest.fixture(scope="module", autouse=True)
def _data(place: Path) -> None:
    """A folder in BEIR layout, sixty documents."""
    texts = [text(number, 9) for number in range(60)]
    qrels = {"q0": ["d0"], "q1": ["d11", "d10"], "q2": ["d22"], "q3": ["d54"]}
    write_beir_folder(
        place / "sixty", numbered("q", [text(9000 + n, 5) for n in range(4)]), numbered("d", texts), qrels
    )


def record_of(run: Path) -> Any:
    return json.loads((run / "run.json").read_text())


def test_a_study_of_sizes(quantdrift: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = Counter[str]()
    run = Flow.run

    def counted(flow: Flow, side: Inputs, rows: Rows, batch_size: int) -> Vectors:
        encoded.update({side.role: len(rows)})
        return run(flow, side, rows, batch_size)

    monkeypatch.setattr(Flow, "run", counted)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "own"))
    data = {"folder": str(place / "sixty"), "sizes": [10, 30, "all"]}
    study = {"models": [{"model": str(place / "tiny"), "name": "tiny"}], "schemes": ["W2"], "data": [data]}
    Path("study.yaml").write_text(json.dumps({**study, "settings": {"k": 15}}))
    quantdrift("study", "run", "study.yaml", "--out", "out")
    looked_at = 3 * PROBE  # a few inputs of each cell, to see which layers are reached
    assert encoded == {"query": 2 * 4 + looked_at, "document": 2 * 60 + looked_at}  # both arms, once for all sizes
    quantdrift("run", *COMMON, "--out", "plain", "--no-noise-floor")
    whole, plain = Path("out/cells/tiny@W2-g128-rtn_on_sixty-all"), Path("plain")
    assert (whole / "evidence.parquet").read_bytes() == (plain / "evidence.parquet").read_bytes()
    in_study, other = record_of(whole), record_of(plain)
    assert in_study["data"].pop("corpus_size") == {
        "seed": 0,
        "n": 60,
        "of": 60,
        "corpus": "sixty",
        "corpus_fingerprint": other["data"]["fingerprint"],
    }
    for part in ("bits_per_weight", "data", "settings", "metrics"):
        assert in_study[part] == other[part], part
    # different corpora must not pass for the same data, and the noise floor is that of the largest part
    small = record_of(Path("out/cells/tiny@W2-g128-rtn_on_sixty-10"))
    assert small["data"]["fingerprint"] != in_study["data"]["fingerprint"]
    assert (small["data"]["n_documents"], small["settings"]["noise_floor"]) == (10, False)
    (compared,) = json.loads(quantdrift("study", "results", "out", "--json", quiet=False))["corpus_sizes"]
    assert (compared["small"], compared["large"]) == (10, 60)
    assert "10 to 60" in quantdrift("study", "results", "out", quiet=False)


def test_a_size_that_the_corpus_does_not_have_fails_alone(quantdrift: Run, place: Path) -> None:
    data = {"folder": str(place / "sixty"), "sizes": [60, 61]}
    study = {"models": [str(place / "tiny")], "schemes": ["W2"], "data": [data], "settings": {"k": 15}}
    Path("study.yaml").write_text(json.dumps(study))
    shown = quantdrift("study", "run", "study.yaml", "--out", "out", code=1)
    assert "a size from 1 up to the 60 documents of the corpus; got 61" in shown
