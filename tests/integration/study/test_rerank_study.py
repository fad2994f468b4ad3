"""A study of rerankers: shortlists are found once by a retriever, and cells are the runs of the plain command."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.runs.folder import read_run
from support.rerank_samples import save_cross_encoder
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


@pytest.fixture(scope="module")
def cross(place: Path) -> Path:
    return save_cross_encoder(place / "cross")


def write(place: Path, **more: object) -> None:
    data = [{"folder": str(place / "data"), "retriever": str(place / "tiny"), "top": 7, **more}]
    content = {"models": [str(place / "cross")], "schemes": ["W4", "W3"], "data": data}
    Path("study.yaml").write_text(yaml.safe_dump(content))


def test_cells_are_the_runs_of_the_plain_command(place: Path, cross: Path, quantdrift: Run) -> None:
    write(place)
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
    write(place, top=5)
    assert "0 done" in quantdrift("study", "run", "study.yaml", "--out", "out", "--plan")


def test_models_that_search_take_no_retriever(place: Path, quantdrift: Run) -> None:
    content = {"models": [str(place / "tiny")], "schemes": ["W4"]}
    content["data"] = [{"folder": str(place / "data"), "retriever": str(place / "tiny")}]
    Path("study.yaml").write_text(yaml.safe_dump(content))
    quantdrift("study", "run", "study.yaml", "--out", "out", code=1)
    assert "an embedding model, which searches" in quantdrift("study", "status", "out", quiet=False)
