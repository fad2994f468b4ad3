"""A study that reads labelled data both ways: as classes, and as a search of every input among the others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
pytest.importorskip("sklearn", reason="the extra 'classify' is not installed")

from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.models.files.named import resolve
from quantdrift.runs.folder import read_run
from support.beir_folder import numbered, write_beir_folder
from support.tiny_command_line import Run, one_thread, place, quantdrift, text

__all__ = ["one_thread", "place", "quantdrift"]


@pytest.fixture(scope="module")
def labelled(place: Path) -> Path:
    folder = place / "labelled"
    folder.mkdir()
    for part, start, n in (("train", 0, 40), ("test", 500, 30)):
        rows = [{"text": text(start + i, 6), "label": "ab"[i % 2]} for i in range(n)]
        (folder / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def study(place: Path, *schemes: str) -> None:
    folder = str(place / "labelled")
    data = [{"folder": folder}, {"folder": folder, "neighbours": True}]
    content = {"models": [{"model": str(place / "tiny"), "name": "tiny"}], "schemes": [*schemes], "data": data}
    Path("study.yaml").write_text(yaml.safe_dump(content))


def test_classes_and_search_are_those_of_run(place: Path, labelled: Path, quantdrift: Run) -> None:
    study(place, "W3")
    quantdrift("study", "run", "study.yaml", "--out", "out")
    classes, among = (
        read_run(Path("out") / "cells" / f"tiny@W3-g128-rtn_on_labelled{ending}") for ending in ("", "-self")
    )
    plain = json.loads(quantdrift("run", "TINY@W3", "--data", str(labelled), "--json"))
    assert (classes.record["metrics"], among.record["data"]["kind"]) == (plain["metrics"], "self-retrieval")
    assert among.record["settings"]["similarity"] == "cosine"
    rows = [json.loads(line)["text"] for line in (labelled / "test.jsonl").read_text().splitlines()]
    unit = load_encoder(resolve(str(place / "tiny")), device=torch.device("cpu")).encode(rows, "document", 8)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    evidence = among.evidence()
    np.testing.assert_allclose(evidence.reference_top.reference_scores[:, 0], cosine.max(axis=1), atol=1e-5)
    assert set(evidence.n_items.tolist()) == {len(rows) - 1}


def test_the_query_side_alone_is_that_of_a_search(place: Path, labelled: Path, quantdrift: Run) -> None:
    study(place, "W3+query")
    quantdrift("study", "run", "study.yaml", "--out", "out", code=1)  # of classes there is no query side
    among = read_run(Path("out/cells/tiny@W3-g128-rtn+query_on_labelled-self")).evidence()
    rows = [json.loads(line)["text"] for line in (labelled / "test.jsonl").read_text().splitlines()]
    data = write_beir_folder(Path("search"), numbered("q", rows), numbered("d", rows), {"q0": ["d0"]})
    quantdrift("run", "TINY@W3+query", "--data", str(data), "--out", "search-run", "-k", "30")
    searched, ids = read_run(Path("search-run")).evidence(), among.input_ids.tolist()
    for row, query in enumerate(searched.input_ids.tolist()):
        number = int(query[1:])  # the text itself is left out of its neighbours
        for arm in ("reference_top", "candidate_top"):
            scores = [_scores(getattr(evidence, arm), at) for evidence, at in ((searched, row), (among, number))]
            named = {int(searched.item_ids[item][1:]): score for item, score in scores[0].items()}
            mine = {ids.index(among.item_ids[item]): score for item, score in scores[1].items()}
            assert mine == pytest.approx({n: score for n, score in named.items() if n != number}, abs=1e-6)


def _scores(top: Any, row: int) -> dict[int, float]:
    pairs = zip(top.items[row].tolist(), top.candidate_scores[row].tolist(), strict=True)
    return {item: score for item, score in pairs if item >= 0}


def test_neighbours_among_a_part_leave_the_input_itself_out(place: Path, labelled: Path, quantdrift: Run) -> None:
    data = [{"folder": str(labelled), "neighbours": True, **more} for more in ({}, {"sizes": [10, "all"]})]
    content = {"models": [{"model": str(place / "tiny"), "name": "tiny"}], "schemes": ["W3"], "data": data}
    Path("study.yaml").write_text(yaml.safe_dump({**content, "settings": {"noise_floor": False}}))
    quantdrift("study", "run", "study.yaml", "--out", "out")
    names = (f"tiny@W3-g128-rtn_on_labelled-self{size}" for size in ("", "-all", "-10"))
    whole, every, part = (read_run(Path("out") / "cells" / name) for name in names)
    assert whole.record["files"] == every.record["files"]
    all_inputs, other = whole.evidence(), part.evidence()
    # those of the part are ranked by the very scores of the whole, less the others and the input itself
    ranked = [str(other.item_ids[item]) for row in other.reference_top.items for item in row if item >= 0]
    inside = {*ranked}
    assert (len(inside), sorted(other.n_items.tolist())) == (10, [9] * 10 + [10] * 20)
    for row, name in enumerate(all_inputs.input_ids.tolist()):
        order = [str(all_inputs.item_ids[item]) for item in all_inputs.reference_top.items[row]]
        mine = [str(other.item_ids[item]) for item in other.reference_top.items[row] if item >= 0]
        assert mine == [item for item in order if item in inside]
        assert name not in mine


def test_what_has_no_neighbours_fails_alone(place: Path, labelled: Path, quantdrift: Run) -> None:
    study(place, "W4", "W3.5+gap")
    quantdrift("study", "run", "study.yaml", "--out", "out", code=1)
    result = json.loads(quantdrift("study", "status", "out", "--json", quiet=False))
    failed = [cell for cell in result["cells"] if cell["state"] == "failed"]
    assert [cell["name"] for cell in failed] == ["tiny@W3.5-g128-rtn+gap_on_labelled-self"]
    assert "not of neighbours" in failed[0]["reason"]
