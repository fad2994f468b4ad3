"""The package of docs/guides/extending.md, taken from that very page, at work in every command."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from faults.processes import Forks
from integration.test_somebody_elses import Says, says
from support.packages import install
from support.places import ROOT
from support.tiny_command_line import corpora, one_thread, place
from support.warm import warm

pytestmark = pytest.mark.slow

__all__ = ["corpora", "one_thread", "place"]

PAGE = (ROOT / "docs" / "guides" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"((?:[^\n]+\n)+)\n```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""A paragraph, and the block behind it."""


def package() -> tuple[dict[str, str], dict[str, dict[str, str]], dict[str, Any]]:
    """The files of the page, its entry points by group and name, and the settings of setuptools."""
    files: dict[str, str] = {}
    points: dict[str, dict[str, str]] = {}
    setup: dict[str, Any] = {}
    for before, language, block in BLOCK.findall(PAGE):
        if language == "toml":
            read = tomllib.loads(block)
            setup |= read.get("tool", {}).get("setuptools", {})
            for group, of in read.get("project", {}).get("entry-points", {}).items():
                points.setdefault(group, {}).update(of)
        else:
            (name,) = re.findall(r"`(drift_\w+(?:/\w+)?\.py)`", before)
            files[name] = block
    return files, points, setup


FILES, POINTS, SETUP = package()


def test_the_page_lists_the_files_that_it_shows() -> None:
    assert {*FILES} == {f"{name}.py" for name in SETUP["py-modules"]} | {
        f"{name}/{file}.py" for name in SETUP["packages"] for file in ("__init__", "command")
    }
    assert sum(map(len, POINTS.values())) == 8


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is installed."""
    site = tmp_path_factory.mktemp("site")
    install(site, "drift-parts", FILES, POINTS, version="0.1")
    return site


def site_first(site: Path) -> dict[str, str]:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "QUANTDRIFT_CACHE": "off"}


@pytest.fixture(scope="module")
def forks(site: Path) -> Iterator[Forks]:
    with Forks(site, **site_first(site)) as forks:
        yield forks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests of this file work, one behind the other."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def quantdrift(forks: Forks, folder: Path) -> Says:
    return partial(says, forks, cwd=folder)


SPEC = "tiny@W3-powers+decimals=1+norms=1"


@pytest.fixture(scope="module")
def run(forks: Forks, folder: Path, place: Path) -> dict[str, Any]:
    """A run with a quantizer, a stage of either kind and a metric of the page."""
    words = ("run", place / SPEC, "--data", place / "a", "--out", "run", "--json", "--quiet")
    record: dict[str, Any] = json.loads(says(forks, *words, cwd=folder))
    return record


def test_run(run: dict[str, Any], quantdrift: Says, place: Path) -> None:
    assert (run["parts"], run["quantization"]["backend"]) == ({"drift-parts": "0.1"}, "drift-parts")
    assert (run["quantization"]["norms"], run["deployment"]["decimals"]) == (5, 1)
    lost = run["metrics"]["first_lost@5"]
    assert 0 < lost["value"] <= run["metrics"]["flip@1"]["value"]
    assert 0 < lost["low"] < lost["value"]
    told = quantdrift("run", place / SPEC, "--data", place / "a", "--out", "run", "--quiet", "--all")
    assert "first_lost@5" in told
    assert "outputs of 5 norms are rounded" in told
    plain = json.loads(quantdrift("run", place / "tiny@W3-rtn", "--data", place / "a", "--json", "--quiet"))
    assert plain["parts"] == {"drift-parts": "0.1"}  # which computed one of its metrics


def test_metrics_report_gate_and_the_command(run: dict[str, Any], quantdrift: Says, folder: Path) -> None:
    lost = run["metrics"]["first_lost@5"]
    again = json.loads(quantdrift("metrics", "run", "-m", "first_lost@5", "-m", "first_lost@3", "--json"))
    assert again["metrics"]["first_lost@5"] == lost
    assert again["metrics"]["first_lost@3"]["value"] >= lost["value"]
    quantdrift("report", "run", "-o", "run.html")
    assert "first_lost@5" in (folder / "run.html").read_text(encoding="utf-8")
    for limit, code in ((0.0, 1), (1.0, 0)):
        judged = quantdrift("gate", "run", "--rule", f"first_lost@5 <= {limit}", code=code)
        assert code or "first_lost@5" in judged
    names = json.loads(quantdrift("changed", "run", "--json"))
    assert len(names) == round(run["metrics"]["flip@1"]["value"] * run["metrics"]["flip@1"]["n"])


def test_doctor_and_lists(quantdrift: Says) -> None:
    told = json.loads(quantdrift("doctor", "--json"))
    assert not [line for line in told["advice"] if "cannot be used" in line]
    (note,) = (part["note"] for part in told["components"] if part["name"] == "drift-parts")
    assert {*note.removeprefix("brings ").split(", ")} == {f"{name} of {of}" for of in POINTS for name in POINTS[of]}
    for what, said in (
        ("metrics", "Share of inputs whose reference top-1 is not among"),
        ("quantizers", '"powers"'),
        ("stages", "decimals that are kept"),
        ("encoders", "words.json"),
    ):
        assert said.lower() in quantdrift("list", what, "--json").lower()


def test_the_format(quantdrift: Says, folder: Path) -> None:
    (folder / "a.txt").write_text("#lines\nq1 d1 d2 d3\nq2 d2 d1 d3\n")
    (folder / "b.txt").write_text("#lines\nq1 d2 d1 d3\nq2 d2 d1 d3\n")
    (part,) = json.loads(quantdrift("diff", "a.txt", "b.txt", "-m", "first_lost@1", "--json"))["parts"]
    assert part["metrics"]["first_lost@1"]["value"] == 0.5


def test_data_in_shards(quantdrift: Says, folder: Path, place: Path) -> None:
    table = folder / "table"
    table.mkdir()
    (table / "queries.jsonl").write_bytes((place / "a" / "queries.jsonl").read_bytes())
    rows = map(json.loads, (place / "a" / "corpus.jsonl").read_text().splitlines())
    (table / "corpus.csv").write_text("".join(["_id,text\n", *(f"{row['_id']},{row['text']}\n" for row in rows)]))
    words = ("run", place / "tiny@W3", "--json", "--quiet", "--data")
    whole, parts = (json.loads(quantdrift(*words, *at)) for at in ((place / "a",), (table, "--shard", "8")))
    assert (parts["data"]["shards"], parts["data"]["n_documents"]) == (4, whole["data"]["n_documents"])
    assert parts["metrics"]["flip@1"] == whole["metrics"]["flip@1"]


def test_what_a_part_cannot_do_is_refused(quantdrift: Says, folder: Path, place: Path, run: dict[str, Any]) -> None:
    (folder / "hashed").mkdir()
    (folder / "hashed" / "words.json").write_text('{"size": 64}')
    (folder / "lines.txt").write_text("#lines\nq1 d1 d2 d3\n")
    tiny, data = place / "tiny", ("--data", place / "a")
    for words, said in (
        (("run", f"{tiny}@W3-powres", *data), "did you mean powers?"),
        (("run", f"{tiny}@W3-powers+grid=paper", *data), "grid"),
        (("run", f"{tiny}@W4+norms=x", *data), "decimals that are kept"),
        (("quantize", f"{tiny}@W4+norms=2", "-o", "q"), "+norms= is about"),
        (("allocate", f"{tiny}@W3.5+gap+decimals=1", *data, "-o", "a.json"), "+decimals= is of searches"),
        (("run", "./hashed@W4", *data, "--shortlist", "run"), "hashed is a bag of words, which searches"),
        (("run", "minilm vs ./hashed", *data), "quantized self alone"),
        (("quantize", "./hashed@W4", "-o", "q"), "quantize writes"),
        (("diff", "hashed", "lines.txt"), "lines of documents behind #lines"),
    ):
        assert said in quantdrift(*words, code=2)


@pytest.mark.slow
def test_a_model_of_the_page_is_measured_anew_when_its_folder_changes(forks: Forks, folder: Path, place: Path) -> None:
    (folder / "hashes").mkdir()
    words = ("run", "./hashes@W2-gptq+calib=20", "--data", place / "a", "--out", "hashed-run", "--quiet")
    runs = []
    for size in (64, None, 32):
        if size is not None:
            (folder / "hashes" / "words.json").write_text(json.dumps({"size": size}))
        code, printed = forks.run(*words, cwd=folder, QUANTDRIFT_CACHE=str(folder / "kept"))
        assert code == 0, printed
        runs.append(json.loads((folder / "hashed-run" / "run.json").read_text()))
    assert (runs[0]["model"]["layers_quantized"], runs[0]["parts"]) == (1, {"drift-parts": "0.1"})
    assert "words are hashed" in runs[0]["data"]["warnings"]
    assert runs[1]["times"] == runs[0]["times"]
    assert runs[2]["model"]["fingerprint"] != runs[0]["model"]["fingerprint"]


@pytest.mark.slow
def test_study(quantdrift: Says, folder: Path, place: Path) -> None:
    (folder / "words").mkdir()
    (folder / "words" / "words.json").write_text('{"size": 64}')
    study = {
        "models": [str(place / "tiny"), {"model": "./words", "name": "words"}],
        "schemes": ["W3-powers", "fp+decimals=1"],
        "data": [str(place / "a")],
    }
    (folder / "study.yaml").write_text(json.dumps({**study, "settings": {"k": 10}}))
    quantdrift("study", "run", "study.yaml", "--out", "cells", "--quiet")
    words = ("-m", "first_lost@5", "--pooled", "first_lost@5", "--json")
    shown = json.loads(quantdrift("study", "results", "study.yaml", "--out", "cells", *words))
    assert [cell["first_lost@5"] is None for cell in shown["cells"]] == [False] * 4
    assert shown["pooled"][0]["scheme"] == "fp+decimals=1"
    quantdrift("report", "cells", "-o", "cells.html")


@pytest.mark.slow
def test_waterfall_and_repair(quantdrift: Says, place: Path) -> None:
    data = ("--data", place / "a", "--json", "--quiet")
    fall = json.loads(quantdrift("waterfall", place / SPEC, *data))["waterfalls"][0]
    assert [stage["name"] for stage in fall["stages"]] == ["weights", "decimals", "norms"]
    mended = json.loads(quantdrift("repair", place / "tiny@W3", *data, "--quantizers", "rtn,powers"))
    assert any("powers" in each["scheme"] for each in mended["tried"])
    assert any("+norms=1" in each["scheme"] for each in mended["deployments"])
    finer = json.loads(quantdrift("repair", place / "tiny@fp+decimals=1", *data, "--out", "finer"))["deployments"]
    assert [each["scheme"] for each in finer] == ["fp+decimals=1", "fp+decimals=2", "fp+decimals=3"]


@pytest.mark.slow
def test_mteb(forks: Forks, folder: Path, place: Path) -> None:
    pytest.importorskip("mteb", reason="the extra 'mteb' is not installed")
    model = f"quantdrift:{place / 'tiny'}@W3-powers+decimals=1"
    words = ("mteb", "run", "--model", model, "-t", "PythonDocsRetrieval", "--output-folder", "OUT")
    code, printed = forks.run(*words, cwd=folder, QUANTDRIFT_METRICS="first_lost@3", HF_HUB_OFFLINE="1")
    assert code == 0, printed
    (result,) = folder.glob("OUT/results/*/*/PythonDocsRetrieval.json")
    (scores,) = json.loads(result.read_text())["scores"]["test"]
    assert 0 < scores["drift_first_lost_at_5"] <= scores["drift_first_lost_at_3"] <= scores["drift_flip_at_1"]
    assert scores["drift_first_lost_at_5_low"] > 0


BEIR = """
import json, sys
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch
from beir.retrieval import models
from quantdrift_beir import QuantizedPair

corpus, queries = ({row["_id"]: row for row in map(json.loads, open(f"{sys.argv[2]}/{name}.jsonl"))}
                   for name in ("corpus", "queries"))
queries = {name: row["text"] for name, row in queries.items()}
pair = QuantizedPair(models.SentenceBERT(sys.argv[1]), "W3-powers+decimals=1")
evaluator = EvaluateRetrieval(DenseRetrievalExactSearch(pair, batch_size=8), score_function="cos_sim")
results = evaluator.retrieve(corpus, queries)
qrels = {name: {next(iter(corpus)): 1} for name in queries}
found = EvaluateRetrieval.evaluate_custom(qrels, results, [3, 5], metric="first_lost")
found["stored"] = results.drift["first_lost@5"].value
results.save("beir", qrels=qrels)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_beir(site: Path, folder: Path, place: Path) -> None:
    pytest.importorskip("beir", reason="the extra 'beir' is not installed")
    ended = warm().run("-c", BEIR, place / "tiny", place / "a", cwd=folder, **site_first(site))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert 0 < found["first_lost@5"] == found["stored"] <= found["first_lost@3"]
    assert json.loads((folder / "beir" / "run.json").read_text())["parts"] == {"drift-parts": "0.1"}
