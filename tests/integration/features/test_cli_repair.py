"""`quantdrift repair` on a tiny model: what it recommends is a run, and a second time nothing is made again."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.evidence.perturbation import flips
from quantdrift.features.repair import choice, command
from quantdrift.runs.folder import read_run
from quantdrift.spec.grammar import Spec, parse, parse_scheme
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import WORDS
from support.command_line import cli
from support.tiny_command_line import N_DOCS, N_QUERIES, Run, counted_inputs, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]

CONFIGURATIONS = ("--quantizers", "rtn,hqq")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials on 8 queries and then on 16: there are 20. Tuning takes 3 steps, and 4 where it takes long."""
    monkeypatch.setattr("quantdrift.features.repair.search.STEPS", (8, 16))
    short = replace(choice.STAGES["tuned"], repair_options=({"tuned": "3"},), slow_repair_options=({"tuned": "4"},))
    monkeypatch.setattr(choice, "STAGES", {**choice.STAGES, "tuned": short})


@pytest.mark.usefixtures("small")
def test_a_deployment_is_recommended_and_its_rates_are_those_of_its_run(quantdrift: Run, tmp_path: Path) -> None:
    asked = ("repair", "TINY@W3-g32", "--data", "ROOT/data", "--bits", "4.25", *CONFIGURATIONS, "--out", "out")
    result = json.loads(quantdrift(*asked, "--json"))
    plain, chosen = result["deployments"][0], result["deployments"][result["chosen"]]
    assert plain["scheme"] == "W3-g32-rtn"
    assert chosen["bits"] <= 4.25
    fitting = [tried for tried in result["deployments"] if tried["bits"] <= 4.25]
    assert chosen["flip@1"]["value"] == min(tried["flip@1"]["value"] for tried in fitting)
    # the inputs of the choice and those of what was chosen are the run's, and none is both
    apart = result["confirmed"]
    changed = sum(tried["flip@1"]["value"] * tried["flip@1"]["n"] for tried in (chosen, apart["chosen"]))
    assert changed == pytest.approx(flips(read_run(Path(chosen["run"])).evidence()).sum())
    assert apart["n"] == apart["plain"]["flip@1"]["n"]
    assert all(tried["front"] or tried != chosen for tried in result["deployments"])
    trials = {tried["scheme"]: tried for tried in result["tried"] if tried["shift"] is not None}
    assert {"W3-g32-rtn", "W3-g32-hqq"} <= trials.keys()
    for tried in result["deployments"]:
        run = read_run(Path(tried["run"]))
        assert len(run.evidence().input_ids) == result["deployments"][0]["flip@1"]["n"] + apart["n"]
    # the allocation that the recommendation may name is there, and quantize takes it
    made = [tried["scheme"] for tried in result["deployments"]]
    (file,) = (tmp_path / "out").glob("allocation-*.json")  # named by its widths: another corpus leaves it alone
    assert any(f"allocation={Path('out') / file.name}" in scheme for scheme in made)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("run.json")}
    shown = quantdrift(*asked)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("run.json")} == stamps
    (command,) = [line for line in shown.splitlines() if line.startswith("make it: ")]
    assert "saved as safetensors" in quantdrift(*command.replace("FOLDER", "made", 1).split()[3:])


def test_what_is_stored_is_repaired_in_one_pass(quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="the extra 'faiss' is not installed")
    encoded = counted_inputs(monkeypatch)
    asked = ("repair", "TINY@fp+emb=binary+index=HNSW8", "--data", "ROOT/data", "--out", "out", "-k", "10")
    result = json.loads(quantdrift(*asked, "--no-cache", "--json"))
    tried = {each["scheme"]: each for each in result["deployments"]}
    assert sum(n for n in encoded if n != 2) == N_QUERIES + N_DOCS  # 2 to see which layers they reach
    plain, chosen = result["deployments"][0], result["deployments"][result["chosen"]]
    assert {"fp+emb=binary+index=HNSW8+rescore=4", "fp+emb=int8+index=HNSW8", "fp+index=HNSW8_SQ8"} < tried.keys()
    assert plain["scheme"] == "fp+emb=binary+index=HNSW8"
    assert chosen["flip@1"]["value"] < plain["flip@1"]["value"]
    prices = ("bytes_per_document", "query_ratio")
    assert [result[price] for price in prices] == [plain[prices[0]], choice.SLOWER * plain[prices[1]]]
    for each in tried.values():
        record = read_run(Path(each["run"])).record
        stored = record["deployment"]["index"] or record["deployment"]
        ratio = record["times"]["query"]["ratio"] if record["deployment"]["index"] else 1
        assert [each[price] for price in prices] == [stored["bytes_per_document"], ratio]
        if all(each[price] <= result[price] for price in prices):
            assert each["flip@1"]["value"] >= chosen["flip@1"]["value"]
    shown = quantdrift(*asked)
    (command,) = [line for line in shown.splitlines() if line.startswith("run it: ")]
    assert f"@{chosen['scheme']} " in quantdrift(*shlex.split(command)[3:], "-k", "10")
    assert "make it" not in shown
    assert "bytes a document" in quantdrift(*asked, "--bytes", "9", code=2)
    assert "--bits and --quantizers are of weights" in quantdrift(*asked, "--bits", "4", code=2)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_weights_and_what_is_stored_are_repaired_together(quantdrift: Run) -> None:
    asked = ("repair", "TINY@W3-g32+emb=binary", "--data", "ROOT/data", "--quantizers", "rtn", "--bits", "4.25")
    made = [each["scheme"] for each in json.loads(quantdrift(*asked, "--json"))["deployments"]]
    assert {"W3-g32-rtn+emb=binary+rescore=4", "W3-g32-rtn+emb=int8", "W3-g32-rtn"} < {*made}
    assert any("+allocation=" in scheme and "+rescore=4" in scheme for scheme in made)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_inputs_of_layers_stay_quantized_in_all_that_is_tried(quantdrift: Run) -> None:
    asked = ("repair", "TINY@W4A8-g32", "--data", "ROOT/data", "--bits", "5.2", "--quantizers", "rtn")
    made = json.loads(quantdrift(*asked, "--json"))["deployments"]
    assert any("+allocation=" in deployment["scheme"] for deployment in made)
    assert not any("tuned" in deployment["scheme"] for deployment in made)
    assert {parse(read_run(Path(each["run"])).record["spec"]).scheme.activation_bits for each in made} == {8}
    assert "make it" not in quantdrift(*asked)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_another_file_to_calibrate_on_is_another_trial(quantdrift: Run, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    asked = ("repair", "TINY@W3-g32-gptq+calib=deep/../t.txt", "--data", "ROOT/data", "--quantizers", "gptq", "--json")
    shifts = []
    for words in (WORDS[:9], WORDS[9:]):
        (tmp_path / "t.txt").write_text("\n".join(f"{word} {word}s of {word}" for word in words))
        tried = json.loads(quantdrift(*asked, "--bits", "4.25"))["tried"]
        shifts.append([trial["shift"] for trial in tried if trial["shift"] is not None])
    assert not {*shifts[0]} & {*shifts[1]}


@pytest.mark.slow
def test_what_an_allocation_is_used_by_is_what_it_was_asked_for(quantdrift: Run, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(WORDS))
    asked = ("allocate", "TINY@W3.5-g32-gptq+gap+calib=t.txt+grid=library", "--data", "ROOT/data")
    asked += ("--dtype", "bfloat16")
    told = quantdrift(*asked, "--out", "al.json").split("use it: quantdrift ")[1]
    run = json.loads(quantdrift(*told.splitlines()[0].split(), "--json"))
    assert "+calib=t.txt+grid=library" in run["spec"]
    assert any("full precision is bfloat16" in said for said in run["data"]["warnings"])
    assert "expected FILE.json without spaces" in quantdrift(*asked, "--out", "al", code=2)


UNSAID: dict[str, Any] = {"revision": None, "trust_remote_code": False, "keep_own_ids": False}
UNSAID |= {"columns": None, "query_prompt": None, "document_prompt": None}
"""Options that nobody gave, as the command line has them."""


def test_what_can_be_typed_next_makes_what_was_measured(tmp_path: Path) -> None:
    chosen = choice.Deployment(
        scheme=parse_scheme("W4+emb=int8"), run="r", bits=4, all_bits=9, changed=np.zeros(3, dtype=bool)
    )
    told = choice.chosen_apart([chosen], choice.Budget(bits=4))
    options = command.RepairOptions(spec="minilm@W4", dtype="bfloat16", task="T", split="dev", **UNSAID)
    lines = command._next(parse("minilm@W4"), told, options, classes=False)
    made = "make it: quantdrift quantize minilm@W4-g128-rtn --out FOLDER"
    same = "--task T --split dev --dtype bfloat16"
    assert lines[0] == f"\nrun it: quantdrift run minilm@W4-g128-rtn+emb=int8 {same}"
    assert lines[3] == f"{made} {same}"
    assert lines[4].endswith("quantdrift route r")
    assert command._next(parse("minilm@W4"), told, options, classes=True)[3] == f"{made} --dtype bfloat16"
    assert "the plain scheme" in command.recommended(told)[0]


@pytest.mark.parametrize(("scheme", "classes"), [("W4A8", False), ("W4-gptq", True), ("W4-rtn", None)])
def test_what_quantize_refuses_is_not_advised(scheme: str, classes: bool | None, tmp_path: Path) -> None:
    model = "minilm"
    if classes is None:  # a kind that sentence-transformers does not write
        (tmp_path / "clip").mkdir()
        (tmp_path / "clip" / "open_clip_config.json").write_text("{}")
        model = str(tmp_path / "clip")
    chosen = choice.Deployment(
        scheme=parse_scheme(scheme), run="r", bits=4, all_bits=9, changed=np.zeros(3, dtype=bool)
    )
    told = choice.chosen_apart([chosen], choice.Budget(bits=4))
    options = command.RepairOptions(spec="", dtype="float32", task="T", split="test", **UNSAID)
    lines = command._next(Spec(model=model, scheme=parse_scheme("W4")), told, options, classes=bool(classes))
    assert not any("quantdrift quantize" in line for line in lines)
    data = [] if classes else ["--task", "PythonDocsSmall"]
    code, _, err = cli("quantize", f"{model}@{scheme}", "-o", tmp_path / "out", *data)
    assert (code, err.count("\n")) == (2, 1)


def test_two_queries_are_too_few(quantdrift: Run, tmp_path: Path) -> None:
    write_beir_folder(tmp_path / "few", numbered("q", WORDS[:2]), numbered("c", WORDS[:9]))
    error = quantdrift("repair", "TINY@W3-g32", "--data", "few", code=2)
    assert "one half of the held-out inputs" in error


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_thorough_builds_on_every_group_size_and_on_widths_by_gap(quantdrift: Run) -> None:
    asked = ("repair", "TINY@W3-g64", "--data", "ROOT/data", "--quantizers", "rtn", "--bits", "3.6", "--json")
    made = [tried["scheme"] for tried in json.loads(quantdrift(*asked, "--thorough"))["deployments"]]
    tuned = {scheme.partition("+")[0] for scheme in made if "tuned=4" in scheme}
    assert len(tuned) == 3
    assert {"W3-g64-rtn", "W3-g32-rtn"} < tuned
    made = [tried["scheme"] for tried in json.loads(quantdrift(*asked))["deployments"]]
    assert not any("tuned=4" in scheme for scheme in made)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("TINY@W3.5+gap",), "its bits are chosen by layer already, and its other stages offer nothing to try"),
        (("TINY@W4", "--quantizers", "rtn,gtpq"), "--quantizers 'gtpq': expected names of rtn"),
        (("TINY@W4", "--out", "my out"), "--out my out: expected no spaces, '+' and '@'"),
        (("TINY@W4", "--bits", "4"), "takes 4.16312 bits per linear weight"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], message: str, quantdrift: Run) -> None:
    error = quantdrift("repair", *args, "--data", "ROOT/data", code=2)
    assert message in error
    assert len(error.splitlines()) == 1
