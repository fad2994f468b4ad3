"""`quantdrift allocate` and runs of what it makes, as a user types them, on a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.allocation.record import Allocation
from quantdrift.evidence.file import read_evidence
from support.tiny_command_line import N_QUERIES, Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]  # fixtures

DATA = ("--data", "ROOT/data")
GAP = "TINY@W3.5-g64+gap"


def stored() -> Allocation:
    return Allocation.read(Path("allocation.json"))


def measured(run: str) -> tuple[dict[str, Any], set[str]]:
    """The record of a run, and the ids of its inputs."""
    record = json.loads((Path(run) / "run.json").read_text())
    return record, set(read_evidence(Path(run) / "evidence.parquet").input_ids.tolist())


def test_unlabeled_texts_are_enough(quantdrift: Run) -> None:
    shown = quantdrift("allocate", GAP, *DATA)
    for said in ("measured on 10 queries", "share of loss, W3"):
        assert said in shown
    assert "tiny@allocation.json --data " in shown
    allocation = stored()
    assert len(allocation.layers) == 13
    assert 3.4 < (allocation.bits_per_weight or 0) <= 3.5
    assert set(allocation.width_of.values()) == {3, 4}
    # the pooler is a layer that no embedding depends on: nothing is lost there
    assert allocation.width_of["0.model.pooler.dense"] == 3
    assert set(allocation.input_ids) <= {f"q{number}" for number in range(N_QUERIES)}


def test_layers_can_be_kept_and_the_run_keeps_them(quantdrift: Run) -> None:
    keep = ("--keep", "*.layer.0.*=8", "--keep", "*pooler*")
    shown = quantdrift("allocate", GAP, *DATA, *keep)
    assert shown.count("kept") == 7
    widths = stored().width_of
    assert {width for name, width in widths.items() if ".layer.0." in name} == {8}
    assert widths["0.model.pooler.dense"] == 16
    record = json.loads(quantdrift("run", "TINY@allocation.json", *DATA, "--json"))
    assert record["quantization"]["allocation"]["widths"] == widths
    assert "matches no layer" in quantdrift("allocate", GAP, *DATA, "--keep", "*.layer.9.*", code=2)
    assert "PATTERN=BITS" in quantdrift("allocate", GAP, *DATA, "--keep", "*=x", code=2)


def test_runs_leave_out_what_layers_were_measured_on(quantdrift: Run) -> None:
    quantdrift("run", GAP, *DATA, "--no-noise-floor", "--out", "plain")
    plain, ids = measured("plain")
    assert (plain["data"]["n_queries"], plain["data"]["inputs_left_out"]) == (N_QUERIES, 10)
    quantdrift("allocate", GAP, *DATA)
    assert ids == {f"q{number}" for number in range(N_QUERIES)} - set(stored().input_ids)
    assert plain["quantization"]["allocation"]["widths"] == stored().width_of
    quantdrift("run", "TINY@allocation.json", *DATA, "--no-noise-floor", "--out", "stored")
    record, again = measured("stored")
    assert again == ids
    for part in ("metrics", "bits_per_weight"):
        assert record[part] == plain[part], part


def test_with_the_index_at_full_precision(quantdrift: Run) -> None:
    quantdrift("allocate", f"{GAP}+query", *DATA)
    record = json.loads(quantdrift("run", "TINY@allocation.json+query", *DATA, "--json"))
    assert record["metrics"]["flip@1"]["n"] == 30
    query_only = stored()
    quantdrift("allocate", GAP, *DATA)
    assert query_only.layers != stored().layers  # other gaps


def test_what_is_wrong_is_said_before_a_model_is_loaded(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: object, **__: object) -> None:
        pytest.fail("a model was loaded")

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    quantdrift("allocate", "TINY@W3.5-g64+sqnr", *DATA)
    earlier = Path("allocation.json").read_text()
    Path("notes.json").write_text("{}")
    monkeypatch.setattr("quantdrift.builtin.sentence.work.load_encoder", loaded)
    for args, said in (
        (("TINY@W4", *DATA), "expected a criterion that chooses them"),
        (("TINY@W4+gap", *DATA), "nothing to choose between"),
        (("TINY@W3.5+gap+queries=no", *DATA), "unusable value of queries 'no'"),
        (("TINY@allocation.json", *DATA), "the widths of its layers are fixed"),
        (("TINY@W3.5+gap", *DATA, "-o", "notes.json"), "not an allocation"),
    ):
        assert said in quantdrift("allocate", *args, code=2)
    monkeypatch.setattr("quantdrift.asking.opening.open_pair", pressed)
    assert "goes on" in quantdrift("allocate", GAP, *DATA, code=130)
    assert Path("allocation.json").read_text() == earlier
