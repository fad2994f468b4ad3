"""The verdict on a run: what it says, what forbids it, and advice that works."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from quantdrift.kinds.stage import STAGES
from quantdrift.metrics import measure
from quantdrift.runs.verdict import TONES, Verdict, verdict
from quantdrift.spec.grammar import parse, parse_scheme
from quantdrift.spec.remedies import check_repairable
from quantdrift.statistics.estimates import share_estimate
from quantdrift.statistics.standing import Tolerances
from quantdrift.study.shares import combinations_of
from support.places import ROOT
from support.small_evidence import evidence_of


def record_of(**counts: tuple[int, int]) -> dict[str, Any]:
    """A run.json with some rates, by counts: flips=(12, 300)."""
    names = {"flips": "flip@1", "right": "reference.accuracy", "noise": "noise_floor", "codes": "codes.flip@1"}
    names |= {"index": "index.flip@1"}
    metrics = {names.get(name, name): share_estimate(*count).to_json() for name, count in counts.items()}
    return {"spec": "minilm@W4", "data": {"name": "PythonDocsSmall"}, "metrics": metrics}


LOST: dict[str, tuple[int, int]] = {"flips": (73, 300), "right": (200, 300), "harm": (26, 300), "benefit": (24, 300)}


def with_mean(record: Mapping[str, Any], value: float, low: float, high: float) -> dict[str, Any]:
    change = {"value": value, "low": low, "high": high, "n": 300}
    return {**record, "metrics": {**record["metrics"], "change.ndcg@10": change}}


def test_a_mean_that_holds_acquits_nobody() -> None:
    """26 of 200 right answers lost, 24 won: nDCG moves by nothing."""
    told = verdict(with_mean(record_of(**LOST), -0.002, -0.012, 0.008))
    assert (told.word, told.tone) == ("right answers lost", "bad")
    assert "26 of 200" in told.sentence
    assert "24 others" in told.sentence
    assert "The mean hides it" in told.sentence
    assert told.sentence.count("13.0 %") == 1  # each number once


def test_without_labels_the_second_question_is_named_as_open() -> None:
    told = verdict(record_of(flips=(73, 300)))
    assert (told.word, "for lack of labels" in told.sentence) == ("answers change", True)
    assert verdict(record_of(flips=(1, 300))).word == "answers stay"


def test_counts_are_those_of_the_evidence() -> None:
    """A relevant top-1 that another relevant one replaces is not lost."""
    rng = np.random.default_rng(3)
    reference, candidate = rng.normal(size=(200, 4)), rng.normal(size=(200, 4))
    qrels = {f"q{row}": {"a": 1, "b": 1} for row in range(200)}
    metrics = measure(evidence_of(reference, candidate, qrels=qrels))
    record = {"spec": "a vs b", "data": {}, "metrics": {name: one.to_json() for name, one in metrics.items()}}
    before, after = (scores.argmax(axis=1) < 2 for scores in (reference, candidate))
    told = verdict(record).sentence
    assert f"{(before & ~after).sum()} of {before.sum()} right" in told
    assert f"{(~before & after).sum()} others" in told


@pytest.mark.parametrize("arm", ["reference", "candidate"])
def test_an_arm_that_does_not_answer_twice_alike_forbids_a_verdict(arm: str) -> None:
    """The noisier it is, the more changes it explained: 19.5 % changed were "safe to deploy" beside 46.8 % of noise."""
    record = record_of(flips=(78, 400), noise=(187, 400) if arm == "reference" else (0, 400))
    record["noise_floor"] = {"largest": 0.17, "candidate": {"share": 0.3 * (arm == "candidate"), "largest": 0.2}}
    told = verdict(record)
    assert told.word == "no verdict"
    assert told.sentence.startswith(f"The {arm} does not answer twice alike")
    assert "batch" in told.sentence
    assert verdict(record, Tolerances(changed=0.5)).word != "no verdict"


def test_noise_below_the_tolerance_excuses_nothing() -> None:
    """9 % changed beside 2 % of noise: both are told, and the tolerance stays 3 %."""
    assert verdict(record_of(flips=(27, 300), noise=(6, 300))).word == "answers change"


def test_what_a_run_found_to_be_meaningless_forbids_a_verdict() -> None:
    record = record_of(flips=(0, 400))
    record["data"]["forbids"] = {"candidate_constant": "all embeddings of the candidate are the same"}
    assert verdict(record) == Verdict(
        word="no verdict", sentences=("All embeddings of the candidate are the same.",), tone="plain"
    )


def test_a_reference_near_chance_has_no_right_answers_to_lose() -> None:
    record = record_of(**LOST)
    record["data"]["forbids"] = {"reference_near_chance": "the reference finds them by chance"}
    told = verdict(record)
    assert told.word == "answers change"
    assert "the reference finds them by chance" in told.sentence


def test_queries_that_find_themselves_forbid_a_verdict() -> None:
    """1,190 questions among their own: 0.0 % changed, "safe to deploy"."""
    assert verdict({**record_of(flips=(0, 1190)), "settings": {"own_ids": "kept"}}).word == "no verdict"
    assert verdict({**record_of(flips=(0, 1190)), "settings": {"own_ids": "left out"}}).word == "answers stay"


def test_tolerances_of_the_record_decide_unless_others_are_given() -> None:
    record = {**record_of(flips=(73, 300)), "tolerances": {"changed": 0.5, "mean": 0.03}}
    assert (verdict(record).word, verdict(record, Tolerances()).word) == ("answers stay", "answers change")


# --- advice ---------------------------------------------------------------------------------------

SPECS = """
    W4 W8 W3-channel-gptq W4A8 W4A8+act=token W16A8 W8A8-llm_int8 W4-nf4 W4-nvfp4 W4A4-nvfp4 W8A8-fp8 W8A8-fp8_tensor
    W8A8-mxfp8 W8A8-int8 W16A4-nvfp4 W4-mxfp4 W4+query W4+table=8+query W4+emb=int8+query W3.5-gptq+gap W4+table=8
    fp+table=4 fp+dtype=bf16 W4+dtype=bf16 W4+tuned fp+emb=int8 fp+emb=binary fp+emb=int8+rescore=4 fp+dim=64
    W4+emb=int8 fp+emb=int8+dim=64 fp+index=HNSW32 fp+index=IVF64,PQ16 fp+index=SQ8 fp+index=PQ16+rescore=2
    fp+emb=int8+index=HNSW32 W4+index=HNSW32 W4+emb=int8+index=IVF64,Flat+search=nprobe=8
    fp+index=lancedb
"""


@pytest.mark.parametrize("scheme", SPECS.split())
@pytest.mark.parametrize("more", ["codes", "index"])
def test_every_command_that_a_verdict_advises_passes_that_commands_own_checks(scheme: str, more: str) -> None:
    record = record_of(**LOST) | {"spec": f"minilm@{scheme}"}
    if "index=" in scheme:
        shares = {"codes": (60, 300), "index": (5, 300)} if more == "codes" else {"codes": (0, 300), "index": (60, 300)}
        record["metrics"] |= record_of(**shares)["metrics"]
    told = verdict(record)
    assert told.next or scheme in {"W4+table=8+query", "W4+emb=int8+query"}  # no part of it can be measured alone
    if not told.command:
        return
    name, command, spec, *options = shlex.split(told.command)
    assert (name, options) == ("quantdrift", ["--task", "PythonDocsSmall"])
    advised = parse(spec)
    for name, stage in STAGES.items():
        if stage.in_(advised.scheme):
            assert stage.check(advised.scheme) is None
            if name == "index" and "lancedb" not in scheme:
                stage.refuse(advised.scheme)
    if command == "repair":
        check_repairable(advised.scheme)
    elif command == "waterfall":
        assert len(combinations_of(advised.scheme)) > 1
    else:
        assert command == "run"
        assert advised.scheme != parse_scheme(scheme)


def test_the_stage_that_changes_most_is_mended() -> None:
    def advised(scheme: str, **counts: tuple[int, int]) -> str:
        return verdict({**record_of(**LOST, **counts), "spec": f"minilm@{scheme}"}).command

    deployed = "fp+emb=int8+index=HNSW32"
    assert "+rescore=4" in advised(deployed, codes=(60, 300), index=(1, 300))
    assert "efSearch=64" in advised(deployed, codes=(1, 300), index=(60, 300))
    assert "+rescore=4" in advised("fp+index=IVF64,PQ16", codes=(60, 300), index=(1, 300))
    assert advised("W4").startswith("quantdrift repair minilm@W4")
    assert "waterfall" in advised("W4+emb=int8")
    # of two models there is nothing that this command could make, and of rows rescoring is refused
    assert verdict({**record_of(**LOST), "spec": "minilm vs ./other"}).command == ""
    rows = {**record_of(**LOST), "spec": "minilm@fp+emb=int8", "model": {"one_vector": False}}
    assert "fp+emb=fp16 " in verdict(rows).command
    assert verdict({**record_of(**LOST), "spec": "minilm@fp+index=lancedb"}).command == ""  # which is not rescored
    assert "quantdrift repair" in advised("fp+dim=64")


def test_advice_makes_what_was_measured() -> None:
    record = record_of(**LOST)
    record["data"] |= {"path": "/my data", "split": "dev"}
    record["settings"] = {"dtype": "bfloat16", "trust_remote_code": True, "batch_size": 1}
    record["model"] = {"revision": "main"}
    options = ["--data", "/my data", "--split", "dev", "--dtype", "bfloat16", "--revision", "main"]
    command = verdict(record).command
    assert shlex.split(command)[3:] == [*options, "--batch-size", "1", "--trust-remote-code"]
    assert verdict({**record, "data": {"name": "in memory"}}).command == ""
    assert verdict({**record, "data": {**record["data"], "shortlist": {"path": "r"}}}).command == ""
    for held in ({"kind": "self-retrieval"}, {"shards": 3}, {"corpus_size": {"n": 5, "of": 9}}, {"harness": "mteb"}):
        assert verdict({**record, "data": {**record["data"], **held}}).command == ""
    record["spec"] = "not a spec"
    assert verdict(record).next == ""


def test_a_verdict_of_nothing_is_one() -> None:
    assert verdict({"data": {}, "metrics": {}}).word == "no answers"
    assert set(TONES.values()) == {"good", "warn", "bad", "plain"}


def test_a_page_gives_every_word_its_tone() -> None:
    script = (ROOT / "quantdrift" / "report" / "assets" / "page.js").read_text(encoding="utf-8")
    table = script.partition("const VERDICTS = {")[2].partition("};")[0]
    tones = {word or bare: tone for word, bare, tone in re.findall(r'(?:"([^"]+)"|(\w+)): "(\w+)"', table)}
    assert TONES.items() <= tones.items()
