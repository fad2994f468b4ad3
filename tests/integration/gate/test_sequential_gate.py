"""`quantdrift gate --sequential`: what the models are given, what is told, and what a stopped run is good for."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quantdrift.builtin.classifier.work import Classifier
from quantdrift.builtin.cross_encoder.work import CrossEncoderModel
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.models.endless import TRIED
from quantdrift.runs.folder import read_run
from support import classifier_samples
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import text
from support.command_line import cli
from support.embedding_server import of_letters, of_odd_letters, serving
from support.finished_samples import write_trec
from support.rerank_samples import save_cross_encoder
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]  # fixtures

N, N_DOCS, LISTED = 400, 30, 5
KINDS: dict[str, tuple[str, ...]] = {
    "classes": ("ROOT/bert@W2-channel", "--data", "ROOT/kinds"),
    "query": ("TINY@W4+query", "--data", "ROOT/many"),
    "reranker": ("ROOT/cross@W2", "--data", "ROOT/many", "--shortlist", "ROOT/first.trec"),
}
GATE = ("gate", *KINDS["query"], "--sequential", "-r", "flip@1 <= 0.05")
QUERIES = numbered("q", [f"{text(n, 7)} {n}" for n in range(N)])
DOCUMENTS = numbered("c", [f"{text(999 + n, 7)} {n}" for n in range(N_DOCS)])
Given = list[str]


@pytest.fixture(scope="module", autouse=True)
def _data(place: Path) -> None:
    """ROOT/many, ROOT/kinds, a classifier, a cross-encoder and its shortlists."""
    write_beir_folder(place / "many", QUERIES, DOCUMENTS)
    (place / "kinds").mkdir()
    words, labels = classifier_samples.WORDS, classifier_samples.LABELS
    texts = [" ".join(words[n // size % 11] for size in (1, 11, 121)) for n in range(N)]
    lines = [json.dumps({"text": line, "label": labels[n % 3]}) for n, line in enumerate(texts)]
    (place / "kinds" / "test.jsonl").write_text("\n".join(lines))
    classifier_samples.save_classifier(place / "bert")
    save_cross_encoder(place / "cross")
    lists = {f"q{n}": {f"c{(n + rank) % N_DOCS}": -float(rank) for rank in range(LISTED)} for n in range(N)}
    write_trec(place / "first.trec", lists)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """What the models are given, queries and what stands for them, by either arm."""
    seen: Given = []

    def watched(encode: Any) -> Any:
        def told(self: Any, items: Sequence[Any], role: str, batch_size: int) -> Any:
            seen.extend(str(item) for item in items if role != "document" and item != TRIED)
            return encode(self, items, role, batch_size)

        return told

    for kind in (Classifier, CrossEncoderModel, SentenceEncoder):
        monkeypatch.setattr(kind, "encode", watched(kind.encode))
    return seen


def told(quantdrift: Run, *words: str, code: int = 0) -> dict[str, Any]:
    """The report of a gate."""
    quantdrift(*words, "--report", "gate.json", code=code)
    return json.loads(Path("gate.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("limit", "code"), [("<= 0.02", 1), ("<= 0.98", 0)])
def test_what_is_not_needed_is_not_encoded(kind: str, limit: str, code: int, quantdrift: Run, given: Given) -> None:
    asked = ("gate", *KINDS[kind], "--sequential", "--seed", "3", "--no-cache", "-r", f"flip@1 {limit}")
    found = told(quantdrift, *asked, "--no-noise-floor", code=code)
    n = found["n_inputs"]
    each = LISTED if kind == "reranker" else 1
    assert found["sequential"] == {"n": n, "of": N, "seed": 3}
    assert n < N / 4
    assert len(set(given)) == each * n
    # both arms once, and the first two inputs to see which layers are reached
    assert len(given) == 2 * each * n + 2
    (rule,) = found["rules"]
    bound, p = ("low", "p_worse_holm") if code else ("high", "p_no_worse")
    assert (rule["outcome"], rule["n"]) == ("fail" if code else "pass", n)
    assert rule[p] < 0.05
    assert (rule["now"][bound] > 0.02) if code else (rule["now"][bound] < 0.98)
    data = read_run(Path(found["path"])).record["data"]
    assert {data[name] for name in data.keys() & {"n_queries", "n_inputs", "n_pairs"}} == {n, each * n}


def test_the_order_is_random_and_a_stopped_run_is_found_again(quantdrift: Run, given: Given) -> None:
    first = told(quantdrift, *GATE, code=1)
    names = read_run(Path(first["path"])).evidence(drawn=True).input_ids.tolist()
    assert names != [f"q{n}" for n in range(len(names))]
    given.clear()
    assert told(quantdrift, *GATE, code=1) == first
    assert given == []
    # other rules are another run
    other = told(quantdrift, *GATE[:-1], "flip@1 <= 0.01", "--seed", "1", code=1)
    assert read_run(Path(other["path"])).evidence(drawn=True).input_ids.tolist() != names


def test_nobody_takes_a_stopped_run_for_a_full_one(quantdrift: Run) -> None:
    run = told(quantdrift, *GATE, code=1)["path"]
    data = read_run(Path(run)).record["data"]
    full = json.loads(quantdrift("run", *KINDS["query"], "--json"))
    assert data["drawn"]["fingerprint"] == full["data"]["fingerprint"] != data["fingerprint"]
    assert read_run(Path(run)).verdict.word == "no verdict"
    for words in ("certify", "metrics", "report", "route", "gate --update", f"compare {full['path']}"):
        command, *more = words.split()
        said = quantdrift(command, *more, run, code=2, quiet=False)
        assert "had settled a gate" in " ".join(said.split())
    assert "The run stopped" in quantdrift("show", run, quiet=False)
    # and a finished run has nothing left to stop
    assert "does not apply" in quantdrift("gate", full["path"], "--sequential", "-r", "flip@1 <= 0.1", code=2)


def test_all_inputs_that_do_not_settle_it(quantdrift: Run) -> None:
    changed = json.loads(quantdrift("run", *KINDS["query"], "--json"))["metrics"]["flip@1"]["value"]
    found = told(quantdrift, *GATE[:-1], f"flip@1 <= {changed + 0.001:.3f}", code=4)
    (rule,) = found["rules"]
    assert (found["sequential"]["n"], rule["outcome"], rule["now"]["value"]) == (N, "underpowered", changed)
    assert rule["now"]["low"] < changed < rule["now"]["high"]
    # its number was fixed, so that it is as good as any run
    assert read_run(Path(found["path"]))["flip@1"].value == changed
    assert "drawn" not in read_run(Path(found["path"])).record["data"]


def test_a_slice_has_its_own_inputs(quantdrift: Run) -> None:
    ones = ("--slice", "ones=q1*", "-r", "flip@1 [ones] <= 0.02")
    found = told(quantdrift, *GATE, *ones, code=1)
    assert [rule["outcome"] for rule in found["rules"]] == ["fail", "fail"]
    assert 0 < found["rules"][1]["n"] < found["n_inputs"] < N


def test_what_was_answered_before_ctrl_c_is_kept(
    quantdrift: Run, given: Given, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    encode: Any = SentenceEncoder.encode

    def stops(*items: Any) -> Any:
        if len(given) >= 50:
            raise KeyboardInterrupt
        return encode(*items)

    slow = (*GATE[:-1], "flip@1 <= 0.25", "--no-noise-floor")
    with monkeypatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", stops)
        assert "what was finished is kept" in quantdrift(*slow, code=130)
    n = told(quantdrift, *slow, code=1)["n_inputs"]
    # nothing twice, but for the two by which layers are watched
    assert len(given) == 2 * n + 4


def test_a_server_is_sent_no_query_that_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx", reason="httpx is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", "off")
    write_beir_folder(tmp_path / "data", QUERIES, DOCUMENTS)
    with serving(one=of_letters, two=of_odd_letters) as server:
        words = ("gate", f"{server.name('one')} vs {server.name('two')}", "--data", "data", "--sequential")
        code, out, err = cli(*words, "-r", "flip@1 <= 0.05", "--no-noise-floor", "--quiet", "--json")
        sent = server.texts()
    assert code == 1, err
    n, queries = json.loads(out)["n_inputs"], [text for text in sent if text in QUERIES.values()]
    assert n < N / 4
    assert (len(queries), len(set(queries))) == (2 * n, n)
    assert all(sent.count(document) == 2 for document in DOCUMENTS.values())


@pytest.mark.parametrize(
    ("spec", "rules", "message"),
    [
        ("TINY@W2", ["flip@1 <= 0.1"], "encodes all documents"),
        ("TINY@fp+emb=int8", ["flip@1 <= 0.1"], "its index"),
        ("TINY@W3.5+gap+query", ["flip@1 <= 0.1"], "quantdrift allocate"),
        ("TINY@W2+query", [], "expected some"),
        ("TINY@W2+query --update", ["flip@1 <= 0.1"], "--update"),
        ("TINY@W2+query", ["flip@1 <= 0.1", "ndcg@10 >= 0.5"], "is no share"),
        ("TINY@W2+query", ["flip@1 no worse by 0.1"], "give a limit"),
        ("TINY@W2+query", ["flip@1 <= 0"], "0 or 1"),
        ("TINY@W2+query", ["accepted@0.05 >= 0.5"], "is known when"),
        ("TINY@W2+query", ["noise_floor <= 0.1"], "noise_floor"),
    ],
)
def test_what_is_not_judged_so(spec: str, rules: list[str], message: str, quantdrift: Run) -> None:
    asked = [word for rule in rules for word in ("-r", rule)]
    words = ("gate", *spec.split(), "--data", "ROOT/many", "--sequential", *asked)
    assert message in " ".join(quantdrift(*words, code=2).split())
