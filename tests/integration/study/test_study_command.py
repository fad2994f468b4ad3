"""`quantdrift study` on tiny models: what is measured once, kept, refused; rerankers, growing corpora, neighbours."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch

from quantdrift.builtin.sentence.work import load_encoder
from quantdrift.measuring.flow import PROBE, Flow
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Inputs, Rows, Vectors
from quantdrift.runs.folder import read_run
from support.beir_folder import numbered, write_beir_folder
from support.rerank_samples import save_cross_encoder
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift, text

__all__ = ["corpora", "one_thread", "place", "quantdrift"]


FOLDER = Path("quantdrift-runs/study")


def write(place: Path, **changes: Any) -> None:
    """A study of three schemes on two corpora, in YAML, of which JSON is a part."""
    study = {
        "models": [{"model": str(place / "tiny"), "name": "tiny"}],
        "schemes": ["W8", "W3", "W2"],
        "data": [str(place / "a"), str(place / "b")],
        "settings": {"k": 20},
    }
    Path("study.yaml").write_text(json.dumps({**study, **changes}))


def states(quantdrift: Run) -> dict[str, str]:
    result = json.loads(quantdrift("study", "status", "study.yaml", "--json", quiet=False))
    return {cell["name"]: cell["state"] for cell in result["cells"]}


def stamps() -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in FOLDER.glob("cells/*/run.json")}


def test_cells_are_the_runs_of_the_plain_command_and_results_say_what_they_say(place: Path, quantdrift: Run) -> None:
    write(place)
    plan = json.loads(quantdrift("study", "run", "study.yaml", "--plan", "--json"))
    assert (plan["cells"], plan["to_do"]) == (6, 6)
    assert [(work["data"], work["cells"]) for work in plan["work"]] == [("a", 3), ("b", 3)]
    quantdrift("study", "run", "study.yaml")
    assert set(states(quantdrift).values()) == {"done"}
    quantdrift("run", "TINY@W3", "--data", "ROOT/a", "--out", "plain", "-k", "20")
    plain, cell = read_run("plain"), read_run(FOLDER / "cells" / "tiny@W3-g128-rtn_on_a")
    assert cell.record["metrics"] == plain.record["metrics"]
    assert cell.record["files"] == plain.record["files"]  # bit for bit

    Path(FOLDER).rename("elsewhere")
    moved = quantdrift("study", "results", "study.yaml", "--out", "elsewhere", "--json", quiet=False)
    assert json.loads(moved)["cells"]
    Path("elsewhere").rename(FOLDER)
    line = ("study", "results", "study.yaml", "--pooled", "flip@1", "--table", "t.parquet", "--json")
    result = json.loads(quantdrift(*line, quiet=False))
    rows = {(row["scheme"], row["data"]): row for row in result["cells"]}
    assert rows["W3-g128-rtn", "a"]["flip@1"] == pytest.approx(plain["flip@1"].value)
    assert pq.read_table("t.parquet").column("flip@1").to_pylist() == [row["flip@1"] for row in result["cells"]]
    assert {test["scheme"] for test in result["pooled"]} == {"W3-g128-rtn", "W2-g128-rtn"}


def test_what_is_done_stays_and_what_is_damaged_or_other_is_made_again(place: Path, quantdrift: Run) -> None:
    write(place, schemes=["W8", "W3"])
    quantdrift("study", "run", "study.yaml")
    before = stamps()
    quantdrift("study", "run", "study.yaml")
    assert stamps() == before
    evidence = FOLDER / "cells" / "tiny@W3-g128-rtn_on_b" / "evidence.parquet"
    content = bytearray(evidence.read_bytes())
    content[100] ^= 1
    evidence.write_bytes(content)
    assert states(quantdrift)["tiny@W3-g128-rtn_on_b"] == "damaged"
    quantdrift("study", "run", "study.yaml")
    assert {name for name, stamp in stamps().items() if stamp != before[name]} == {"tiny@W3-g128-rtn_on_b"}
    write(place, schemes=["W8", "W3", "W2"], settings={"k": 10})  # other settings are other cells
    plan = json.loads(quantdrift("study", "run", "study.yaml", "--plan", "--json"))
    assert (plan["cells"], plan["to_do"]) == (6, 6)


def test_a_cell_that_fails_is_named_and_the_others_go_on(place: Path, quantdrift: Run) -> None:
    write(place, data=[str(place / "a"), {"folder": "./none", "name": "gone"}], schemes=["W8"])
    assert "cannot be measured: tiny@W8-g128-rtn_on_gone: " in quantdrift("study", "run", "study.yaml", "--plan")
    shown = quantdrift("study", "run", "study.yaml", code=1)
    assert "gone" in shown
    assert states(quantdrift) == {"tiny@W8-g128-rtn_on_a": "done", "tiny@W8-g128-rtn_on_gone": "failed"}
    quantdrift("study", "run", "study.yaml", code=1)  # what failed is not tried again by itself
    write(place, data=[str(place / "a"), {"folder": str(place / "b"), "name": "gone"}], schemes=["W8"])
    quantdrift("study", "retry", "study.yaml")
    assert set(states(quantdrift).values()) == {"done"}


def test_a_folder_of_something_else_is_refused(place: Path, quantdrift: Run) -> None:
    write(place)
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    shown = quantdrift("study", "run", "study.yaml", "--out", "mine", code=2)
    assert "something that is not a study" in shown
    assert "expected the folder of a study" in quantdrift("study", "status", "mine", code=2, quiet=False)


# --- rerankers: shortlists are found once by a retriever ---------------------------------------------


@pytest.fixture(scope="module")
def cross(place: Path) -> Path:
    return save_cross_encoder(place / "cross")


def write_reranking(place: Path, **more: object) -> None:
    data = [{"folder": str(place / "data"), "retriever": str(place / "tiny"), "top": 7, **more}]
    write(place, models=[str(place / "cross")], schemes=["W4", "W3"], data=data, settings={})


def test_cells_are_the_runs_of_the_plain_command(place: Path, cross: Path, quantdrift: Run) -> None:
    write_reranking(place)
    shown = quantdrift("study", "run", "study.yaml", "--out", "out")
    assert "2 of 2 cells done" in shown
    quantdrift("run", "TINY@W8", "--data", "ROOT/data", "--out", "searched")
    quantdrift("run", f"{cross}@W3", "--data", "ROOT/data", "--shortlist", "searched", "--top", "7", "--out", "plain")
    (cell,) = (folder for folder in Path("out/cells").iterdir() if "W3" in folder.name)
    in_study, plain = read_run(cell), read_run(Path("plain"))
    assert (cell / "evidence.parquet").read_bytes() == Path("plain/evidence.parquet").read_bytes()
    assert in_study.record["settings"]["reading"] == "reranking"
    assert in_study.record["settings"]["shortlist"] == plain.record["settings"]["shortlist"]
    assert (
        in_study.record["data"]["shortlist"]["retriever_fingerprint"]
        == plain.record["data"]["shortlist"]["retriever_fingerprint"]
    )
    # a shorter shortlist is another measurement
    write_reranking(place, top=5)
    assert "0 done" in quantdrift("study", "run", "study.yaml", "--out", "out", "--plan")


# --- growing parts of one corpus ---------------------------------------------------------------------


COMMON = ("TINY@W2", "--data", "ROOT/sixty", "-k", "15")


@pytest.fixture(scope="module", autouse=True)
def _data(place: Path) -> None:
    """A folder in BEIR layout, sixty documents."""
    texts = [text(number, 9) for number in range(60)]
    qrels = {"q0": ["d0"], "q1": ["d11", "d10"], "q2": ["d22"], "q3": ["d54"]}
    write_beir_folder(
        place / "sixty", numbered("q", [text(9000 + n, 5) for n in range(4)]), numbered("d", texts), qrels
    )


def record_of(run: Path) -> Any:
    return json.loads((run / "run.json").read_text())


def test_a_study_of_sizes(quantdrift: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = Counter[str]()
    run = Flow.run

    def counted(flow: Flow, side: Inputs, rows: Rows, batch_size: int) -> Vectors:
        encoded.update({side.role: len(rows)})
        return run(flow, side, rows, batch_size)

    monkeypatch.setattr(Flow, "run", counted)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "own"))
    data = {"folder": str(place / "sixty"), "sizes": [10, 30, "all"]}
    write(place, schemes=["W2"], data=[data], settings={"k": 15})
    quantdrift("study", "run", "study.yaml", "--out", "out")
    looked_at = 3 * PROBE  # a few inputs of each cell, to see which layers are reached
    assert encoded == {"query": 2 * 4 + looked_at, "document": 2 * 60 + looked_at}  # both arms, once for all sizes
    quantdrift("run", *COMMON, "--out", "plain", "--no-noise-floor")
    whole, plain = Path("out/cells/tiny@W2-g128-rtn_on_sixty-all"), Path("plain")
    assert (whole / "evidence.parquet").read_bytes() == (plain / "evidence.parquet").read_bytes()
    in_study, other = record_of(whole), record_of(plain)
    whole_corpus = {"corpus": "sixty", "corpus_fingerprint": other["data"]["fingerprint"]}
    assert in_study["data"].pop("corpus_size") == {"seed": 0, "n": 60, "of": 60, **whole_corpus}
    for part in ("bits_per_weight", "data", "settings", "metrics"):
        assert in_study[part] == other[part], part
    # different corpora must not pass for the same data, and the noise floor is that of the largest part
    small = record_of(Path("out/cells/tiny@W2-g128-rtn_on_sixty-10"))
    assert small["data"]["fingerprint"] != in_study["data"]["fingerprint"]
    assert (small["data"]["n_documents"], small["settings"]["noise_floor"]) == (10, False)
    (compared,) = json.loads(quantdrift("study", "results", "out", "--json", quiet=False))["corpus_sizes"]
    assert (compared["small"], compared["large"]) == (10, 60)
    assert "10 to 60" in quantdrift("study", "results", "out", quiet=False)


def test_a_size_that_the_corpus_does_not_have_fails_alone(quantdrift: Run, place: Path) -> None:
    data = {"folder": str(place / "sixty"), "sizes": [60, 61]}
    write(place, schemes=["W2"], data=[data], settings={"k": 15})
    shown = quantdrift("study", "run", "study.yaml", "--out", "out", code=1)
    assert "a size from 1 up to the 60 documents of the corpus; got 61" in shown


# --- labelled data read both ways: as classes, and as a search of every input among the others -------


@pytest.fixture(scope="module")
def labelled(place: Path) -> Path:
    pytest.importorskip("sklearn", reason="the extra 'classify' is not installed")
    folder = place / "labelled"
    folder.mkdir()
    for part, start, n in (("train", 0, 40), ("test", 500, 30)):
        rows = [{"text": text(start + i, 6), "label": "ab"[i % 2]} for i in range(n)]
        (folder / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def write_neighbours(place: Path, *schemes: str) -> None:
    folder = str(place / "labelled")
    data = [{"folder": folder}, {"folder": folder, "neighbours": True}]
    write(place, schemes=schemes, data=data, settings={})


def test_classes_and_search_are_those_of_run(place: Path, labelled: Path, quantdrift: Run) -> None:
    write_neighbours(place, "W3")
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
    write_neighbours(place, "W3+query")
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
    write(place, schemes=["W3"], data=data, settings={"noise_floor": False})
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
    write_neighbours(place, "W4", "W3.5+gap")
    quantdrift("study", "run", "study.yaml", "--out", "out", code=1)
    result = json.loads(quantdrift("study", "status", "out", "--json", quiet=False))
    failed = [cell for cell in result["cells"] if cell["state"] == "failed"]
    assert [cell["name"] for cell in failed] == ["tiny@W3.5-g128-rtn+gap_on_labelled-self"]
    assert "not of neighbours" in failed[0]["reason"]
