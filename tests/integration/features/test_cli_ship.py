"""`quantdrift ship` on tiny models: one page, an exit code, commands that run as printed; nothing is measured twice."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("faiss", reason="the extra 'faiss' is not installed")

from quantdrift.base.text import with_interval
from quantdrift.features.repair import choice
from quantdrift.metrics import measure
from quantdrift.runs.folder import read_run
from support import classifier_samples
from support.command_line import cli
from support.tiny_command_line import Run, corpora, counted_inputs, one_thread, place, quantdrift, text

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

SPEC, DATA = "TINY@fp+emb=binary+index=IVF4,Flat", ("--data", "ROOT/a")
LENIENT = ("--tolerance", "60 %", "--mean-tolerance", "0.5")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair takes seconds: one quantizer, and trials on few queries."""
    monkeypatch.setattr(choice, "TRIED", ("rtn",))
    monkeypatch.setattr("quantdrift.features.repair.search.STEPS", (8, 16))


def _page(place: Path, *words: str) -> tuple[int, dict[str, Any]]:
    given = [word.replace("TINY", str(place / "tiny")).replace("ROOT", str(place)) for word in words]
    code, out, err = cli("ship", *given, "--quiet", "--json")
    assert out, err
    return code, json.loads(out)


def test_no_what_breaks_and_what_mends_it(place: Path, quantdrift: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, page = _page(place, SPEC, *DATA)
    assert (code, page["answer"], page["verdict"]["word"]) == (1, "no", "answers change")
    assert 1 <= len(page["breaks"]) <= 3
    assert all(one["text"] and one["text_before"] for one in page["breaks"])
    assert any("By stage" in line for line in page["parts"])
    named, found = page["costs"]
    assert (named["inputs"], found["inputs"]) == (40, 13)  # a third of the queries took no part in the choice
    chosen = page["repair"]["deployments"][page["repair"]["chosen"]]
    evidence = read_run(chosen["run"]).evidence()
    unseen = evidence.part(choice.apart(evidence.n_inputs, 0).nonzero()[0])
    assert found["other answers"] == with_interval(measure(unseen, ["flip@1"])["flip@1"])
    encoded = counted_inputs(monkeypatch)
    assert _page(place, SPEC, *DATA) == (code, page)
    assert sum(encoded) < 20  # which layers are reached is looked at again, and nothing is embedded
    for command in page["commands"].values():
        name, *words = shlex.split(command)
        assert name == "quantdrift"
        ended, _, err = cli(*words)
        assert ended == 0 or (words[0] == "ship" and ended != 2), err
    assert sum(encoded) < 120  # the noise floor of what was found, too


def test_full_precision_stands_beside_what_is_saved(place: Path, quantdrift: Run) -> None:
    given = ("ship", f"{place / 'tiny'}@fp+index=Flat", "--data", str(place / "a"), "--minutes", "0")
    told = cli(*given)[1]
    assert re.search(r"│ full[^│]*│ +\d+ │ +1 │ +- │ +- │ - ", told), told
    (cost,) = json.loads(cli(*given, "--json")[1])["costs"]
    assert ("documents an index saves no time." in told) == (cost["query time (exact: 1)"] >= 1)


def test_yes_ends_in_0_and_searches_nothing(place: Path, quantdrift: Run) -> None:
    told = quantdrift("ship", "TINY@W8", *DATA, *LENIENT)
    assert "Yes" in told
    assert "quantdrift repair" not in told
    assert "quantdrift gate" in told


def test_too_few_inputs_are_not_known(place: Path, quantdrift: Run) -> None:
    code, page = _page(place, "TINY@W8", *DATA)
    assert (code, page["answer"], page["repair"]) == (4, "not known", None)


def test_of_a_model_the_cheapest_that_may_be_shipped(place: Path, quantdrift: Run) -> None:
    code, page = _page(place, "TINY", *DATA, *LENIENT)
    assert code == 0
    assert page["costs"][0]["ship?"] == "yes"
    assert page["spec"] == [one["deployment"] for one in page["costs"] if one["ship?"] == "yes"][-1]
    assert page["costs"][0]["model, MB"] > page["costs"][1]["model, MB"]
    code, page = _page(place, "TINY", *DATA)
    assert (code, len(page["costs"])) == (4, 1)  # after what may not be shipped, nothing narrower is tried
    quantdrift("ship", "TINY", *DATA, "--out", "here", code=2)


@pytest.mark.parametrize("spec", [SPEC, "TINY@W3-g32"])
def test_the_minutes_end_the_search(place: Path, quantdrift: Run, spec: str) -> None:
    words = ("repair", spec, *DATA, "--out", "some", "--json")
    short = json.loads(quantdrift(*words, "--minutes", "0"))
    assert (short["not_begun"] > 3, len(short["deployments"])) == (True, 2)  # the plain scheme, and one more
    if spec == SPEC:  # which needs no trials
        whole = json.loads(quantdrift(*words))
        assert (whole["not_begun"], len(whole["deployments"]) > 4) == (0, True)


def test_classes(place: Path, quantdrift: Run) -> None:
    classifier_samples.save_classifier(place / "bert")
    lines = [{"text": text(number, 6), "label": classifier_samples.LABELS[number % 3]} for number in range(60)]
    for part in ("train", "test"):
        (place / "labelled").mkdir(exist_ok=True)
        (place / "labelled" / f"{part}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    told = str(_page(place, "ROOT/bert@W2-g32", "--data", "ROOT/labelled", "--minutes", "0"))
    assert "quantdrift repair" in told


def test_a_wrong_spec_is_told_before_data_are_read(quantdrift: Run) -> None:
    assert "unknown bits 'W44'" in quantdrift("ship", "TINY@W44", "--data", "nowhere", code=2)
