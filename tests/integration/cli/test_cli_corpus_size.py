"""`quantdrift corpus-size` as a user types it, on a tiny model and a small corpus."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.engine.flow import PROBE, Flow
from quantdrift.engine.inputs import Inputs, Rows, Vectors
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


def record_of(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    return record


def test_all_leaves_the_run_that_the_plain_command_leaves(quantdrift: Run) -> None:
    quantdrift("run", *COMMON, "--out", "plain")
    out = quantdrift("corpus-size", *COMMON, "--sizes", "10,30,all", "--out", "sweep", "--noise-floor")
    assert "exact McNemar" in " ".join(out.split())
    assert "relevant" in out
    assert sorted(path.name for path in Path("sweep").iterdir()) == ["docs-00010", "docs-00030", "docs-00060"]
    whole, plain = Path("sweep/docs-00060"), Path("plain")
    assert (whole / "evidence.parquet").read_bytes() == (plain / "evidence.parquet").read_bytes()
    one, other = record_of(whole), record_of(plain)
    assert one["data"].pop("corpus_size") == {
        "seed": 0,
        "n": 60,
        "of": 60,
        "corpus": "sixty",
        "corpus_fingerprint": other["data"]["fingerprint"],
        "relevant_inside": {"all": 4, "some": 0, "none": 0},
    }
    for part in ("spec", "model", "bits_per_weight", "data", "settings", "metrics"):
        assert one[part] == other[part], part
    # the noise floor is that of the largest size, and the record says so
    assert record_of(Path("sweep/docs-00010"))["settings"]["noise_floor"] is False


def test_json_and_other_commands_read_it(quantdrift: Run) -> None:
    arguments = ("corpus-size", *COMMON, "--sizes", "10,30,50", "--out", "sweep", "--json")
    found = json.loads(quantdrift(*arguments, "--seed", "1"))
    runs = [run["data"] for run in found["runs"]]
    assert [(run["n_documents"], run["corpus_size"]["seed"]) for run in runs] == [(10, 1), (30, 1), (50, 1)]
    assert [sum(run["corpus_size"]["relevant_inside"].values()) for run in runs] == [4, 4, 4]
    # different corpora must not pass for the same data
    fingerprints = {run["fingerprint"] for run in runs}
    assert len(fingerprints | {runs[0]["corpus_size"]["corpus_fingerprint"]}) == 4
    again = json.loads(quantdrift(*arguments, "--seed", "2"))["runs"]
    assert not {run["data"]["fingerprint"] for run in again} & fingerprints
    assert {"only_small", "only_large", "p_flip", "says"} <= found["effect"].keys()
    assert (found["effect"]["small"], found["effect"]["large"]) == (10, 50)
    assert quantdrift("metrics", "sweep", "-m", "epsilon", "--json", quiet=False).count('"epsilon"') == 3


def test_a_study_of_sizes_leaves_the_evidence_of_the_plain_command(
    quantdrift: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    quantdrift("study", "run", "study.yaml", "--out", "out", "--no-probe")
    looked_at = 3 * PROBE  # a few inputs of each cell, to see which layers are reached
    assert encoded == {"query": 2 * 4 + looked_at, "document": 2 * 60 + looked_at}  # both arms, once for all sizes
    swept = json.loads(quantdrift("corpus-size", *COMMON, "--sizes", "10,30,all", "--out", "sweep", "--json"))
    for size, folder in (("10", "docs-00010"), ("30", "docs-00030"), ("all", "docs-00060")):
        cell, plain = Path(f"out/cells/tiny@W2-g128-rtn_on_sixty-{size}"), Path("sweep") / folder
        assert (cell / "evidence.parquet").read_bytes() == (plain / "evidence.parquet").read_bytes()
        for part in ("data", "settings", "metrics"):
            assert record_of(cell)[part] == record_of(plain)[part], (size, part)
    told = json.loads(quantdrift("study", "results", "out", "--json", quiet=False))
    (compared,) = told["corpus_sizes"]
    assert swept["effect"].items() <= compared.items()
    assert "10 to 60" in quantdrift("study", "results", "out", quiet=False)


def test_a_size_that_the_corpus_does_not_have_fails_alone(quantdrift: Run, place: Path) -> None:
    data = {"folder": str(place / "sixty"), "sizes": [60, 61]}
    study = {"models": [str(place / "tiny")], "schemes": ["W2"], "data": [data], "settings": {"k": 15}}
    Path("study.yaml").write_text(json.dumps(study))
    told = quantdrift("study", "run", "study.yaml", "--out", "out", "--no-probe", code=1)
    assert "a size from 1 up to the 60 documents of the corpus; got 61" in told
