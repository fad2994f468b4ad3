"""The drill-down as JSON: figures by hand, texts cut and left out where there is no room."""

from dataclasses import replace
from typing import Any

import pytest

from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.finished.texts import Texts
from quantdrift.report import changes
from quantdrift.report.changes import changes_of
from quantdrift.runs.changes import Changed, changed_inputs
from support.small_evidence import FOUR

ARMS = ("full precision", "W4")
NO_TEXTS = Texts(told="")


def of_four(texts: Texts = NO_TEXTS) -> dict[str, Any]:
    return changes_of(changed_inputs(FOUR), arms=ARMS, right="relevant", texts=texts, evidence=FOUR)


def test_both_rankings_of_a_change_with_scores_labels_and_where_they_were() -> None:
    content = of_four()
    assert (content["arms"], content["kinds"], content["labelled"]) == (["full precision", "W4"], {"harmful": 2}, True)
    q3, q2 = sorted(content["changed"], key=lambda row: str(row["id"]), reverse=True)
    names = [name for name, _ in content["items"]]
    assert [names[q2["before"]], names[q2["after"]], q2["rank_before"], q2["rank_after"]] == ["a", "b", 2, 2]
    # b overtakes a: 8 and 7 become 6 and 7
    assert [[names[row[0]], *row[1:]] for row in q2["reference"]] == [
        ["a", 8, 6, 1, 2],
        ["b", 7, 7, None, 1],
        ["c", 2, 4, None, 3],
        ["d", 1, 1, -1, 4],
    ]
    assert [names[row[0]] for row in q2["candidate"]] == ["b", "a", "c", "d"]
    # the lead was 1, and no score moved by more than 2
    assert (q2["gap"], q2["separation"], q2["score_before"], q2["score_after"]) == (1, 0.25, 8, 7)
    assert [[names[item], *ranks] for item, *ranks in q3["missed"]] == [["z", None, None]]
    assert q3["separation"] == 0


def test_without_labels_every_change_is_listed_and_none_is_judged() -> None:
    content = changes_of(
        changed_inputs(replace(FOUR, judgements=None)), arms=ARMS, right="relevant", texts=NO_TEXTS, evidence=FOUR
    )
    assert (content["labelled"], content["kinds"]) == (False, {})
    assert all("kind" not in row for row in content["changed"])


def test_lists_that_were_cut_short_have_scores_only_where_they_are_known() -> None:
    lists: Any = ({"q": {"a": 0.9, "b": 0.8}}, {"q": {"c": 0.7, "a": 0.6}})
    evidence = evidence_of_rankings(*lists, complete=False, depth=2)
    (row,) = changes_of(changed_inputs(evidence), arms=ARMS, right="relevant", texts=NO_TEXTS, evidence=evidence)[
        "changed"
    ]
    assert row["candidate"] == [[2, None, 0.7, None, None], [0, 0.9, 0.6, None, 1]] or row["candidate"][0][1] is None
    assert "rank_before" not in row


def test_texts_are_cut_with_a_note() -> None:
    long = "word " * 300_000
    content = of_four(Texts(inputs={"q2": long}, items={"a": long, "b": "short"}, told="texts are from D"))
    q2 = next(row for row in content["changed"] if row["id"] == "q2")
    assert q2["text"].endswith("… (1,500,000 characters, of which the first 2,000 are shown)")
    assert len(content["items"][q2["before"]][1]) < 800
    assert (content["items"][q2["after"]], content["notes"]) == (["b", "short"], ["Texts are from D."])


def test_a_choice_belongs_to_its_question() -> None:
    unknown = dict.fromkeys(("rank_before", "rank_after", "was_right", "is_right", "gap"))
    change = Changed(input_id="q1", before="0", after="1", **unknown)  # type: ignore[arg-type]
    texts = Texts(choices={"q1": ["yes", "no"], "q2": ["red", "blue"]}, told="")
    content = changes_of([change, replace(change, input_id="q2")], arms=ARMS, right="right", texts=texts, evidence=FOUR)
    answers = [[content["items"][row[which]] for which in ("before", "after")] for row in content["changed"]]
    assert answers == [[["0", "yes"], ["1", "no"]], [["0", "red"], ["1", "blue"]]]


def test_where_there_is_no_room_texts_are_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts(inputs={f"q{n}": "x" * 1_000 for n in range(4)}, told="texts are from D")
    monkeypatch.setattr(changes, "_ROOM", changes.json_size(of_four()) - 60 + 1_050)
    content = of_four(texts)
    assert ["text" in row for row in content["changed"]] == [True, False]
    assert content["notes"] == ["There is no room for 1 of the texts.", "Texts are from D."]


def test_only_the_worst_are_listed_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST", 1)
    content = of_four()
    assert [row["id"] for row in content["changed"]] == [changed_inputs(FOUR)[0].input_id]
    assert content["notes"] == ["The worst 1 of 2 are listed."]
