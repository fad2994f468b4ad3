"""The page of a gate: a result is read back as it was written, whatever is in it, and nothing else is."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from quantdrift.base.errors import RunError
from quantdrift.gate import output
from quantdrift.gate.result import Earlier, GateResult, read_result
from quantdrift.report.gate import page_of
from support.command_line import cli
from support.gate_result_samples import BROKEN, FEW, LIMIT, OTHER, UNDEFINED, WORSE, WORST, nasty, result
from support.hostile_samples import mutate_json, text_of

FAILED = result(
    WORSE, FEW, LIMIT, baseline=Earlier(spec="minilm@W8-rtn"), n_new=12, n_answers_changed=40, worst=(WORST,)
)
RESULTS = {
    "fail": FAILED,
    "limit": result(BROKEN, worst=(replace(WORST, part="german", new=None, before=None),)),
    "error": result(UNDEFINED, LIMIT),
    "incomparable": result(OTHER, differs=("model: a in the baseline, b now",), notes=("know this",)),
    "accepted": result(FEW, accept_underpowered=True),
    "pass": result(LIMIT),
    "nasty": nasty("</script><b>\u202e x", 3),
}


def written(judged: GateResult, folder: Path) -> Path:
    place = folder / "gate.json"
    output.write_report(judged, place)
    return place


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_is_read_back_is_told_in_the_same_words(name: str, tmp_path: Path) -> None:
    judged = RESULTS[name]
    again = read_result(written(judged, tmp_path))
    assert output.markdown_text(again) == output.markdown_text(judged)
    assert (again.exit_code, again.to_json()) == (judged.exit_code, judged.to_json())


def test_the_page_says_the_verdict_the_rules_and_what_to_do(tmp_path: Path) -> None:
    page = page_of(read_result(written(FAILED, tmp_path)))
    assert (page.word, page.tone) == ("fail", "bad")
    assert page.verdict == "1 of 3 rules, flip@1 no worse by 0.03 (shown to be worse)."
    assert output.TO_DO["fail"] in [step.text for step in page.steps]
    assert any("12 of them had not in the baseline" in line for line in page.words)
    rules, changed = page.sections
    assert [row[:2] for row in rules.grids[0].rows] == [
        ["flip@1 no worse by 0.03", "fail"],
        ["ndcg@10 no worse by 0.03", "underpowered"],
        ["flip@1 <= 0.25", "pass"],
    ]
    assert [(row["id"], row["new"], row["gap"]) for row in changed.changed["changed"]] == [("q7", True, 0.01234)]
    others = [page_of(RESULTS[name]) for name in ("accepted", "pass", "error")]
    assert [page.word for page in others] == ["underpowered (accepted)", "pass", "error"]
    assert [page.tone for page in others] == ["warn", "good", "bad"]


def test_the_command_writes_it_and_refuses_what_is_no_result(tmp_path: Path) -> None:
    place = written(FAILED, tmp_path)
    code, out, _ = cli("report", place, "-o", tmp_path / "page.html")
    assert code == 0
    assert "page.html" in out
    assert "flip@1 no worse by 0.03" in (tmp_path / "page.html").read_text(encoding="utf-8")
    for words, message in (
        ((place, "-k", 3), "are for runs"),
        ((place, "-o", tmp_path / "page.txt"), "ends in .html"),
        ((tmp_path / "page.html",), "holds something else"),
        ((tmp_path / "nothing",), "does not exist"),
    ):
        code, _, err = cli("report", *words)
        assert code == 2
        assert message in err


def test_a_damaged_result_is_refused_in_one_line(tmp_path: Path) -> None:
    rng, place, refused = random.Random(7), tmp_path / "gate.json", 0
    for _ in range(150):
        place.write_text(text_of(rng, mutate_json(rng, FAILED.to_json())), encoding="utf-8")
        code, _, err = cli("report", place, "-o", tmp_path / "page.html")  # a crash would be raised
        assert (code, err.count("\n")) in {(0, 0), (2, 1)}, err
        refused += code == 2
    assert refused > 50
    place.write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(RunError, match="a run folder"):
        read_result(place)
