"""The card of a model: figures by hand, the hub's own reader for the metadata."""

import re
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import RunError
from quantdrift.features.card.card import card_of
from quantdrift.runs.folder import write_run
from support.command_line import cli
from support.hostile_text import HOSTILE, check_clean
from support.written_samples import evidence, record
from unit.report.report_samples import rendered, tables, written

huggingface_hub = pytest.importorskip("huggingface_hub", reason="the extra 'models' is not installed")


def cells(section: str) -> list[list[str]]:
    return tables(rendered(section))[0]


def results(text: str) -> Any:
    return huggingface_hub.ModelCard(text).data


def test_the_table_and_the_metadata_say_what_the_evidence_says(tmp_path: Path) -> None:
    runs = [written(tmp_path / "a"), written(tmp_path / "b", "W8-g128-rtn", same=True)]
    card = card_of(runs)
    head, *rows = cells(card.section)
    lines = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["quantized as"] for row in lines] == ["W4-g128-rtn", "W8-g128-rtn"]
    assert [row["another first result"].split(" (")[0] for row in lines] == ["50.0 %", "0.0 %"]
    assert [row["right first result lost"].split(" (")[0] for row in lines] == ["66.7 %", "0.0 %"]
    assert [row["verdict"] for row in lines] == [run.verdict.word for run in runs]
    data = results(card.text)
    assert (data.base_model, data.base_model_relation) == ("org/MiniLM", "quantized")


def test_without_labels_nothing_is_said_of_relevance(tmp_path: Path) -> None:
    card = card_of([written(tmp_path / "a", labels=False)])
    head = cells(card.section)[0]
    assert head == ["data", "quantized as", "bits per weight", "another first result", "verdict"]
    assert "nDCG" not in card.section


def test_names_from_outside_are_text_wherever_they_stand(tmp_path: Path) -> None:
    name = f"{HOSTILE}\n---\n</details><script>alert(1)</script>[a](javascript:b) `x` | &amp;"
    model = {"name": name, "canonical": name, "kind": "hub", "fingerprint": "weights"}
    run = written(tmp_path / "run", data=name, model=model, spec=f"a vs {name}")
    card = card_of([run])
    text = card.text
    check_clean(text)
    page = rendered(card.section)
    assert not re.search(r"<(?!/?(?:h2|p|strong|em|code|wbr|table|thead|tbody|tr|t[hd]|ul|li|br)\b)", page)
    assert page.count("<a ") == 0
    head, row = cells(card.section)
    assert len(row) == len(head)
    assert "<script>" in results(text).base_model  # in YAML it is only text


def test_a_card_is_of_one_model_and_each_run_counts_once(tmp_path: Path) -> None:
    run = written(tmp_path / "a")
    other = {"name": "other", "fingerprint": "other"}
    with pytest.raises(RunError, match="runs of one model"):
        card_of([run, written(tmp_path / "b", "W8-g128-rtn", model=other)])
    with pytest.raises(RunError, match="would count twice"):
        card_of([run, written(tmp_path / "c")])
    run.record["data"]["warnings"].append("a quick try: only the first 4 of 300 inputs")
    assert "a quick try: only the first 4 of 300 inputs." in card_of([run]).section


def test_folders_of_the_user_are_not_told(tmp_path: Path) -> None:
    place = str(tmp_path / "secret" / "my-model")
    model = {"name": place, "canonical": "my-model", "kind": "local", "fingerprint": "weights"}
    run = written(tmp_path / "run", model=model, spec=f"{place} vs {place}-gptq")
    card = card_of([run])
    assert str(tmp_path) not in card.text
    assert "`my-model-gptq`" in card.section
    assert (card.metadata, card.text) == ({}, f"{card.section}\n")
    assert results(card_of([run], base_model="org/Base").text).base_model == "org/Base"


def test_the_command_prints_it(tmp_path: Path) -> None:
    runs = [written(tmp_path / "runs" / "a"), written(tmp_path / "runs" / "b", data="other")]
    code, printed, _ = cli("report", "--card", tmp_path / "runs")
    assert (code, printed) == (0, card_of(runs).text)
    assert printed.startswith("---\nbase_model: org/MiniLM\n")


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
