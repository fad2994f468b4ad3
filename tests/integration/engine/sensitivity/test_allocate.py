"""`quantdrift allocate` and runs of what it makes, as a user types them, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.allocation.record import Allocation
from quantdrift.engine.sensitivity import gaps
from quantdrift.evidence_file import read_evidence
from quantdrift.spec import CRITERIA
from support.tiny_command_line import N_QUERIES, Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]  # fixtures

N_LAYERS = 13
DATA = ("--data", "ROOT/data")
FILES = ("--queries", "ROOT/queries.txt", "--documents", "ROOT/corpus.txt")


def test_unlabeled_files_are_enough(quantdrift: Run) -> None:
    shown = quantdrift("allocate", "TINY@W3.5-g64+gap", *FILES)
    assert "gap, measured on 10 queries of queries" in shown
    assert "On 30 other queries, rounded to nearest" in shown
    for rival in ("gap, knapsack", "the paper's rule", "reconstruction", "random", "W3 throughout"):
        assert rival in shown
    assert "tiny@allocation.json --data FOLDER" in shown
    allocation = Allocation.read(Path("allocation.json"))
    assert len(allocation.layers) == N_LAYERS
    assert 3.4 < (allocation.bits_per_weight or 0) <= 3.5
    assert set(allocation.width_of.values()) == {3, 4}
    # the pooler is a layer that no embedding depends on: nothing is lost there
    assert allocation.width_of["0.model.pooler.dense"] == 3
    assert set(allocation.input_ids) <= {f"query-{number}" for number in range(N_QUERIES)}


def test_json_is_the_file_and_the_contest(quantdrift: Run) -> None:
    shown = json.loads(quantdrift("allocate", "TINY@W3.5-g64+gap", *DATA, "--json", "-o", "a.json"))
    assert shown["allocation"] == json.loads(Path("a.json").read_text())
    assert shown["held_out"]["n_queries"] == 30
    first, *others = shown["held_out"]["rivals"]
    assert first["difference"] is None
    for rival in others:
        difference = rival["flip@1"]["value"] - first["flip@1"]["value"]
        assert rival["difference"]["value"] == pytest.approx(difference)
    quick = quantdrift("allocate", "TINY@W3.5-g64+gap", *DATA, "--json", "--no-check")
    assert json.loads(quick)["held_out"] is None


def test_layers_can_be_kept_and_the_run_keeps_them(quantdrift: Run) -> None:
    keep = ("--keep", "*.layer.0.*=8", "--keep", "*pooler*")
    shown = quantdrift("allocate", "TINY@W3.5-g64+gap", *DATA, *keep, "--no-check")
    assert shown.count("kept") == 7
    widths = Allocation.read(Path("allocation.json")).width_of
    assert {width for name, width in widths.items() if ".layer.0." in name} == {8}
    assert widths["0.model.pooler.dense"] == 16
    record = json.loads(quantdrift("run", "TINY@allocation.json", *DATA, "--json"))
    assert record["quantization"]["allocation"]["widths"] == widths
    for wrong, said in (
        (("--keep", "*.layer.9.*"), "matches no layer"),
        (("--keep", "*.layer.0.*=9"), "2 to 8"),
        (("--keep", "*=x"), "expected PATTERN or PATTERN=BITS"),
        (("--keep", "*=4", "--keep", "*=5"), "4 bits and with 5"),
    ):
        assert said in quantdrift("allocate", "TINY@W3.5-g64+gap", *DATA, *wrong, code=2)


@pytest.mark.parametrize("spec", ["TINY@W3.5-g64+gap", "TINY@allocation.json"])
def test_a_run_leaves_out_what_layers_were_measured_on_and_says_so(spec: str, quantdrift: Run) -> None:
    quantdrift("allocate", "TINY@W3.5-g64+gap", *DATA, "--no-check")
    stored = Allocation.read(Path("allocation.json"))
    assert "10 queries that layers were measured on are left out" in quantdrift("run", spec, *DATA, "--out", "run")
    record = json.loads(Path("run/run.json").read_text())
    assert (record["data"]["n_queries"], record["data"]["inputs_left_out"]) == (40, 10)
    assert record["metrics"]["flip@1"]["n"] == 30
    assert record["quantization"]["allocation"]["widths"] == stored.width_of
    ids = set(read_evidence(Path("run/evidence.parquet")).input_ids.tolist())
    assert ids == {f"q{number}" for number in range(N_QUERIES)} - set(stored.input_ids)


def test_an_allocation_of_all_the_queries_there_are_is_refused(quantdrift: Run, place: Path, tmp_path: Path) -> None:
    quantdrift("allocate", "TINY@W3.5-g64+gap", *DATA, "--no-check")
    measured = Allocation.read(Path("allocation.json")).input_ids
    (tmp_path / "data").mkdir()
    (tmp_path / "data/corpus.jsonl").write_text((place / "data/corpus.jsonl").read_text())
    lines = (place / "data/queries.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["_id"] in measured]
    (tmp_path / "data/queries.jsonl").write_text("\n".join(kept))
    said = quantdrift("run", "TINY@allocation.json", "--data", "data", code=2)
    assert "were chosen on these 10 queries" in said


@pytest.mark.slow
def test_quantizers_share_one_measurement(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = json.loads(quantdrift("run", "TINY@W3.5-g64+gap", *DATA, "--json"))

    def measured(*_: object) -> None:
        pytest.fail("layers were measured again")

    monkeypatch.setattr(gaps, "_with_graph", measured)
    spec = "TINY@W3.5-g64-adaround+gap+calib=8"
    again = json.loads(quantdrift("run", spec, *DATA, "--json"))
    for part in ("widths", "digest", "data_digest", "loss"):
        both = [record["quantization"]["allocation"][part] for record in (first, again)]
        assert both[0] == both[1]
    assert again["quantization"]["calibration"]["n_inputs"] == 8


def test_more_than_two_widths(quantdrift: Run) -> None:
    shown = quantdrift("allocate", "TINY@W3-g64+gap+widths=2,3,4,8", *DATA)
    assert "W3 throughout" in shown
    allocation = Allocation.read(Path("allocation.json"))
    assert allocation.widths == (2, 3, 4, 8)
    assert (allocation.bits_per_weight or 9) <= 3
    assert allocation.width_of["0.model.pooler.dense"] == 2
    assert len(set(allocation.width_of.values())) > 2
    record = json.loads(quantdrift("run", "TINY@allocation.json", *DATA, "--json"))
    assert record["spec"].endswith("@W3-g64-rtn+gap+allocation=allocation.json+widths=2,3,4,8")
    assert record["bits_per_weight"]["linear"] == allocation.linear_bits


@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_criterion_chooses(criterion: str, quantdrift: Run) -> None:
    shown = quantdrift("allocate", f"TINY@W3.5-g64+{criterion}", *DATA, "--no-check")
    allocation = Allocation.read(Path("allocation.json"))
    assert allocation.criterion == criterion
    assert set(allocation.width_of.values()) == {3, 4}
    data_free = criterion in {"reconstruction", "sqnr", "depth", "random"}
    assert ("without any input" in shown) is data_free
    assert bool(allocation.input_ids) is not data_free


def test_with_the_index_at_full_precision(quantdrift: Run) -> None:
    spec = "TINY@W3.5-g64+gap+query"
    assert "tiny@allocation.json+query --data" in quantdrift("allocate", spec, *DATA)
    contest = json.loads(quantdrift("allocate", spec, *DATA, "--json"))["held_out"]
    record = json.loads(quantdrift("run", "TINY@allocation.json+query", *DATA, "--json"))
    flip = record["metrics"]["flip@1"]
    # the same queries, by way of the whole corpus
    assert (flip["value"], flip["n"]) == (contest["rivals"][0]["flip@1"]["value"], 30)
    both = Allocation.read(Path("allocation.json"))
    quantdrift("allocate", "TINY@W3.5-g64+gap", *DATA, "--no-check")
    assert both.layers != Allocation.read(Path("allocation.json")).layers  # other gaps


def test_ctrl_c_says_what_is_left(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    quantdrift("allocate", "TINY@W3.5-g64+sqnr", *DATA, "--no-check")
    earlier = Path("allocation.json").read_text()
    args = ("allocate", "TINY@W3.5-g64+gap", *DATA)
    monkeypatch.setattr("quantdrift.engine.sensitivity.jobs.allocate_for_search", pressed)
    said = quantdrift(*args, code=130)
    assert "allocation.json" in said
    assert "goes on" in said
    assert Path("allocation.json").read_text() == earlier


def test_what_is_wrong_is_said_before_a_model_is_loaded(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: object, **__: object) -> None:
        pytest.fail("a model was loaded")

    quantdrift("allocate", "TINY@W3.5-g64+sqnr", *DATA, "--no-check")
    Path("notes.json").write_text("{}")
    monkeypatch.setattr("quantdrift.engine.opening.load_encoder", loaded)
    for args, said in (
        (("TINY@W4", *DATA), "no criterion to choose widths by"),
        (("TINY@W4+gap", *DATA), "nothing to choose between"),
        (("TINY@W3.5+gap+queries=no", *DATA), "unusable queries 'no'"),
        (("TINY@allocation.json", *DATA), "has the widths of allocation.json"),
        (("TINY@W3.5+gap", *DATA, "-o", "notes.json"), "not an allocation"),
        (("TINY@W3.5+gap",), "--data FOLDER"),
        (("TINY@W3.5+gap", *DATA, *FILES), "--data"),
        (("TINY@W3.5+gap", *FILES[:2]), "--documents"),
        (("TINY@W3.5+gap", *FILES[:3], "ROOT/none.txt"), "does not exist"),
    ):
        assert said in quantdrift("allocate", *args, code=2)
