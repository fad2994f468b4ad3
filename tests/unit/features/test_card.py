"""The card of a model: figures by hand, the hub's own reader for the metadata, all else as it was."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.features.card.card import BEGIN, END, card_of, put_into
from quantdrift.runs.folder import write_run
from support.command_line import cli
from support.hostile_text import HOSTILE, check_clean
from support.written_samples import evidence, record
from unit.report.report_samples import rendered, tables, written

huggingface_hub = pytest.importorskip("huggingface_hub", reason="the extra 'models' is not installed")

MTEB = """model-index:
- name: mine
  results:
  # of mteb
  - task: {type: Retrieval}
    dataset: {type: mteb/x, name: MTEB X}
    metrics:
    - type: ndcg_at_10
      value: 54.2
"""
INDENTED = MTEB.replace("\n", "\n    ").rstrip(" ")
READMES = {
    "nothing": "",
    "no metadata": "# Mine\n\nwords  \n",
    "metadata": "---\nlicense: mit # why\ntags: [a,  b]\nlanguage: no\nversion: 1.10\nday: 2026-01-02\n---\n# Mine\n",
    "aliases": "---\na: &x {b: c}\nd: *x\n---\n# Mine\n",
    "no results yet": "---\nmodel-index: [{name: mine, results: []}]\n---\n",
    "empty metadata": "---\n---\n# Mine",
    "no last newline": "---\nlicense: mit\n---\nwords",
    "results of others": f"---\nlicense: mit\n{MTEB}language: en\n---\n# Mine\n",
    "results of others, indented": f"---\n{INDENTED}---\n",
    "its base": "---\nbase_model:\n- org/MiniLM\nbase_model_relation: quantized\n---\n",
    "of Windows": f"---\nlicense: mit\n{MTEB}---\n# Mine\n".replace("\n", "\r\n"),
}


def cells(section: str) -> list[list[str]]:
    return tables(rendered(section))[0]


def results(text: str) -> Any:
    return huggingface_hub.ModelCard(text).data


def test_a_badge_has_the_worst_verdict(tmp_path: Path) -> None:
    runs = [written(tmp_path / "a"), written(tmp_path / "b", "W8-g128-rtn", same=True)]
    images = re.findall(r"!\[(.+)\]\((.+)\)", card_of(runs, badge=True).section)
    told = f"{runs[0].verdict.word}, at most 50.0 % of answers changed"
    assert [text for text, _ in images] == [f"quantdrift: {told}"]
    label, message, color = urlsplit(images[0][1]).path.removeprefix("/badge/").split("-")
    assert (label, unquote(message), color) == ("quantdrift", told, "yellow")
    assert "shields.io" not in card_of(runs).section


def test_the_table_and_the_metadata_say_what_the_evidence_says(tmp_path: Path) -> None:
    card = card_of([written(tmp_path / "a"), written(tmp_path / "b", "W8-g128-rtn", same=True)])
    head, *rows = cells(card.section)
    lines = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["quantized as"] for row in lines] == ["W4-g128-rtn", "W8-g128-rtn"]
    assert [row["another first result"].split(" (")[0] for row in lines] == ["50.0 %", "0.0 %"]
    assert [row["right first result lost"].split(" (")[0] for row in lines] == ["66.7 %", "0.0 %"]
    assert "From 0.0 % to 50.0 % of the inputs get another first result" in card.section
    data = results(put_into("", card))
    assert (data.base_model, data.base_model_relation) == ("org/MiniLM", "quantized")
    values = {(metric.metric_type, metric.metric_args["scheme"]): metric.metric_value for metric in data.eval_results}
    assert values["drift_flip_at_1", "W4-g128-rtn"] == 0.5
    assert values["drift_gold_lost_at_1", "W4-g128-rtn"] == pytest.approx(2 / 3, abs=1e-4)
    assert values["drift_flip_at_1", "W8-g128-rtn"] == 0.0
    assert {(m.task_type, m.dataset_name) for m in data.eval_results} == {("information-retrieval", "corpus")}
    # the hub's own writer gives back what was read: nothing was lost or misplaced
    again = huggingface_hub.repocard_data.eval_results_to_model_index(data.model_name, data.eval_results)
    assert again == card.metadata["model-index"]


def test_without_labels_nothing_is_said_of_relevance(tmp_path: Path) -> None:
    card = card_of([written(tmp_path / "a", labels=False)])
    head = cells(card.section)[0]
    assert head == ["data", "quantized as", "bits per weight", "another first result"]
    assert "**2 of 4 inputs (50.0 %) get another first result**" in card.section
    assert "nDCG" not in card.section
    assert [metric.metric_type for metric in results(put_into("", card)).eval_results] == ["drift_flip_at_1"]


def parts(text: str) -> tuple[Any, str]:
    """The metadata, every scalar as it is written, and the rest."""
    front = re.match(r"---\r?\n((?:.*\n)*?)---\r?\n?", text)
    return (yaml.load(front[1], yaml.BaseLoader) or {}, text[front.end() :]) if front else ({}, text)


@pytest.mark.parametrize("before", READMES.values(), ids=READMES)
def test_all_else_stays_and_a_second_call_changes_nothing(tmp_path: Path, before: str) -> None:
    card, other = card_of([written(tmp_path / "a")]), card_of([written(tmp_path / "b", "W8-g128-rtn", same=True)])
    after = put_into(before, card)
    assert put_into(after, card) == after
    assert put_into(put_into(after, other), card) == after
    (held, body), (metadata, whole) = parts(before), parts(after)
    assert re.sub(rf"(?:\r?\n)*{BEGIN}(?:.|\n)*{END}\r?\n\Z", "", whole).strip("\r\n") == body.rstrip("\r\n")
    if "model-index" in held:
        index = metadata["model-index"][0]
        index["results"] = [result for result in index["results"] if "drift_flip_at_1" not in str(result)]
    assert {key: metadata[key] for key in held} == held
    data = results(after)
    assert "org/MiniLM" in data.base_model
    assert "drift_flip_at_1" in {metric.metric_type for metric in data.eval_results}
    if MTEB.split(maxsplit=1)[0] in before:
        assert data.model_name == "mine"
    assert ("\r\n" in after) == ("\r\n" in before)
    assert "\n" not in after.replace("\r\n", "") or "\r\n" not in before


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("license: [mit", "it is not YAML (line 3)"),
        ("- a", "it is not a list of keys with values"),
        ("base_model: org/Other", "it has base_model 'org/Other', and the runs are of org/MiniLM"),
        ("model-index: [{name: x, results: 3}]", "its model-index is not one model"),
        ("model-index: [{name: x, results: []}, {name: y, results: []}]", "its model-index is not one model"),
        ("model-index: 5", "its model-index is not one model"),
    ],
)
def test_metadata_that_cannot_be_joined_are_refused_and_the_file_stays(tmp_path: Path, metadata: str, why: str) -> None:
    written(tmp_path / "run")
    readme = tmp_path / "README.md"
    readme.write_text(f"---\n{metadata}\n---\n# Mine\n")
    code, _, error = cli("report", "--card", tmp_path / "run", "--into", readme)
    assert code == 2
    assert why in error
    assert readme.read_text() == f"---\n{metadata}\n---\n# Mine\n"
    assert cli("report", "--card", tmp_path / "run", "--into", readme, "--no-metadata")[0] == 0
    assert readme.read_text().startswith(f"---\n{metadata}\n---\n# Mine\n\n{BEGIN}")


@pytest.mark.parametrize("text", [BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}\n{END}\n{BEGIN}\n{END}"])
def test_marks_that_are_not_one_pair_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(QuantDriftError, match="once each"):
        put_into(text, card_of([written(tmp_path / "run")]))


def test_names_from_outside_are_text_wherever_they_stand(tmp_path: Path) -> None:
    name = f"{HOSTILE}\n---\n{END}</details><script>alert(1)</script>[a](javascript:b) `x` | &amp;"
    model = {"name": name, "canonical": name, "kind": "hub", "fingerprint": "weights"}
    run = written(tmp_path / "run", data=name, model=model, spec=f"a vs {name}")
    card = card_of([run])
    text = put_into("", card)
    check_clean(text)
    assert put_into(text, card) == text
    page = rendered(card.section)
    assert not re.search(
        r"<(?!/?(?:h2|p|strong|em|code|wbr|table|thead|tbody|tr|t[hd]|ul|li|br)\b|!-- quantdrift)", page
    )
    assert page.count("<a ") == 0
    head, row = cells(card.section)
    assert len(row) == len(head)
    data = results(text)
    assert "<script>" in data.base_model  # in YAML it is only text
    assert len(data.eval_results) == 3


def test_a_card_is_of_one_model_and_each_run_counts_once(tmp_path: Path) -> None:
    run = written(tmp_path / "a")
    other = {"name": "other", "fingerprint": "other"}
    with pytest.raises(RunError, match="a card is of one model"):
        card_of([run, written(tmp_path / "b", "W8-g128-rtn", model=other)])
    with pytest.raises(RunError, match="would count twice"):
        card_of([run, written(tmp_path / "c")])
    run.record["data"]["warnings"].append("a quick try: only the first 4 of 300 inputs")
    assert "A quick try: only the first 4 of 300 inputs." in card_of([run]).section


def test_folders_of_the_user_are_not_told(tmp_path: Path) -> None:
    place = str(tmp_path / "secret" / "my-model")
    model = {"name": place, "canonical": "my-model", "kind": "local", "fingerprint": "weights"}
    run = written(tmp_path / "run", model=model, spec=f"{place} vs {place}-gptq")
    card = card_of([run])
    assert str(tmp_path) not in put_into("", card)
    assert "`my-model-gptq`" in card.section
    assert "base_model" not in card.metadata
    named = card_of([run], base_model="org/Base", name="mine-int4")
    data = results(put_into("", named))
    assert (data.base_model, data.model_name) == ("org/Base", "mine-int4")


def test_the_command_prints_writes_and_says_what_it_did(tmp_path: Path) -> None:
    written(tmp_path / "runs" / "a")
    written(tmp_path / "runs" / "b", data="other")
    readme = tmp_path / "README.md"
    code, printed, _ = cli("report", "--card", tmp_path / "runs")
    assert code == 0
    assert printed.startswith("---\nbase_model: org/MiniLM\n")
    assert cli("report", "--card", tmp_path / "runs", "--no-metadata")[1].startswith(BEGIN)
    assert "written" in cli("report", "--card", tmp_path / "runs", "--into", readme)[1]
    assert readme.read_text() == printed
    assert "nothing to change" in cli("report", "--card", tmp_path / "runs", "--into", readme)[1]
    readme.write_bytes(b"\xff")
    assert "expected a README.md in UTF-8" in cli("report", "--card", tmp_path / "runs", "--into", readme)[2]


def test_classes_are_told_by_accuracy(tmp_path: Path) -> None:
    made = evidence(0)
    run = write_run(tmp_path / "run", evidence=made, record={**record(), "metrics": {}})
    assert made.judgements is not None
    right = [
        [made.judgements.of(row).get(int(top.items[row, 0]), 0) > 0 for row in range(made.n_inputs)]
        for top in (made.reference_top, made.candidate_top)
    ]
    card = card_of([run])
    head, *rows = cells(card.section)
    (row,) = [dict(zip(head, metric, strict=True)) for metric in rows]
    assert row["accuracy, full precision"] == f"{100 * sum(right[0]) / len(right[0]):.1f} %"
    assert row["accuracy, quantized"] == f"{100 * sum(right[1]) / len(right[1]):.1f} %"
    kept = [after for before, after in zip(*right, strict=True) if before]
    assert row["right class lost"].startswith(f"{100 * kept.count(False) / len(kept):.1f} %")
    data = results(put_into("", card))
    assert {metric.task_type for metric in data.eval_results} == {"text-classification"}
    (accuracy,) = [metric.metric_value for metric in data.eval_results if metric.metric_type == "accuracy"]
    assert accuracy == pytest.approx(sum(right[1]) / len(right[1]), abs=1e-4)
