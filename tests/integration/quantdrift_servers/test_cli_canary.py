"""`quantdrift canary`: is the model of a server, or of a folder, still the same? Exit codes 0, 1 and 2."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

from quantdrift.spec.grammar import parse
from support.beir_folder import write_beir_folder
from support.command_line import cli
from support.embedding_server import Request, Server, of_letters, of_model, of_odd_letters, serving

MODELS: dict[str, Any] = {
    "fine": of_letters,
    "other": of_odd_letters,
    "half": lambda texts: of_letters(texts).astype(np.float16).astype(np.float32),
    "long": lambda texts: 2 * of_letters(texts),
    "short": lambda texts: of_letters(texts)[:, :8],
    "cut": lambda texts: of_letters([text[:500] for text in texts]),
    "prompted": lambda texts: of_letters([f"passage: {text}" for text in texts]),
}


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    with serving(**MODELS) as running:
        yield running


@pytest.fixture
def server(started: Server) -> Iterator[Server]:
    started.forget()
    yield started
    started.always = None


@pytest.fixture(scope="module")
def saved(started: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    server, file = started, tmp_path_factory.mktemp("index") / "canary.json"
    code, out, _ = cli("canary", "save", server.name("fine"), "-o", file)
    assert code == 0
    assert "16 texts of openai:" in out
    return file


def check(file: Path, *words: object) -> tuple[int, dict[str, Any]]:
    code, out, err = cli("canary", "check", file, *words, "--json")
    return code, json.loads(out) if out else {"error": err}


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("fine", 0, ""),
        ("half", 0, ""),
        ("other", 1, ""),
        ("prompted", 1, ""),
        ("long", 1, "directions are the same, only lengths changed"),
        ("short", 1, "embeddings have 8 numbers, and had 26"),
        ("cut", 1, "texts changed"),
    ],
)
def test_another_model_behind_the_same_server(server: Server, saved: Path, model: str, code: int, message: str) -> None:
    ended, content = check(saved, server.name(model))
    assert (ended, content["verdict"]) == (code, "changed" if code else "same")
    shown = " ".join(cli("canary", "check", saved, server.name(model))[1].split())
    assert message in shown


def test_the_model_of_the_file_is_asked_with_its_prompts(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "canary.json"
    assert cli("canary", "save", server.name("fine"), "-o", file, "--query-prefix", "q: ")[0] == 0
    server.forget()
    assert check(file)[0] == 0
    assert {"q: which tablets cause a rash", "salt"} < set(server.texts())
    code, content = check(file, "--query-prefix", "")
    assert code == 1
    assert len(content["texts_changed"]) == 3  # the queries
    assert cli("canary", "check", file, "--query-prefix", "")[0] == 1
    assert check(file, "--query-prefix", "", "--tolerance", "1")[0] == 0


def test_a_text_that_is_refused_now(server: Server, saved: Path, tmp_path: Path) -> None:
    def picky(request: Request) -> None:
        if max(map(len, request.body["input"])) > 2000:
            request.reply(400, {"error": "too long"})
        else:
            request.embed()

    server.always = picky
    code, content = check(saved)
    assert (code, content["refused"]) == (1, [15])
    assert "1 of the texts are refused now" in cli("canary", "check", saved)[1]
    without = tmp_path / "canary.json"
    code, out, _ = cli("canary", "save", server.name("fine"), "-o", without)
    assert (code, "15 texts of" in out, "left out" in out) == (0, True, True)
    assert check(without)[0] == 0
    server.always = lambda request: request.reply(400, {"error": "no"})
    assert check(saved)[0] == 2  # none at all is no model


def test_what_could_not_be_asked(server: Server, saved: Path, tmp_path: Path) -> None:
    server.always = lambda request: request.reply(503, {"error": "loading"})
    gone = f"openai:http://127.0.0.1:{server.server_address[1]}/elsewhere#fine"
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    for words in (
        (saved, "--timeout", "0.2"),
        (saved, gone),
        (saved, "openai:http://127.0.0.1:1/v1#fine", "--timeout", "0.2"),
        (saved, "no-such-model"),
        (saved, "minilm", "--query-prefix", "x"),
        (empty,),
    ):
        code, out, err = cli("canary", "check", *words)
        assert (code, out) == (2, ""), words
        assert err.startswith("quantdrift: "), err
        assert len(err.splitlines()) == 1


def test_a_server_that_a_file_names_gets_no_key_of_another(
    server: Server, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-somebody-else")
    for address, sent in (("https://a.org", False), (server.url, True)):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        server.forget()
        assert check(saved)[0] == 0
        assert {"authorization" in headers for headers in server.headers} == {sent}


def test_texts_of_a_corpus(server: Server, tmp_path: Path) -> None:
    documents = {f"d{n}": f"document {n} " + "abc" * n for n in range(30)}
    data = write_beir_folder(tmp_path / "data", {"q0": "a question"}, documents, {"q0": ["d1"]})
    words = ("canary", "save", server.name("fine"), "-o", tmp_path / "own.json")
    assert cli(*words, "--data", data, "--texts", 9)[0] == 0
    kept = json.loads((tmp_path / "own.json").read_text())["texts"]
    texts = {(kept_text["role"], kept_text["text"]) for kept_text in kept}
    corpus = {("query", "a question"), *(("document", text) for text in documents.values())}
    assert len(texts) == 9
    assert {("query", "a question"), ("document", documents["d29"])} < texts < corpus  # the longest is among them
    assert check(tmp_path / "own.json")[0] == 0
    code, _, err = cli(*words, "--texts", 99)
    assert (code, "there are 16 built-in texts" in err) == (2, True)


def test_a_server_is_checked_where_torch_is_not_installed(server: Server, saved: Path) -> None:
    gone = "import sys; sys.modules.update(torch=None, transformers=None); from quantdrift.cli import main; main()"
    words: Sequence[str] = [sys.executable, "-c", gone, "canary", "check", str(saved), server.name("other")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("changed: ")


@pytest.mark.slow
def test_minilm_here_and_on_a_server(tmp_path: Path) -> None:
    from quantdrift.asking.opening import load_model  # noqa: PLC0415 -- torch, which only this test needs
    from quantdrift.candidate.pair import QuantizedPair  # noqa: PLC0415 -- likewise

    encoder: Any = load_model("minilm", None, device="cpu")
    file, model = tmp_path / "canary.json", encoder.model
    assert cli("canary", "save", "minilm", "-o", file)[0] == 0
    assert check(file)[0] == 0
    pair = QuantizedPair([encoder.module], parse("minilm@W8").scheme, name="minilm", encoder=encoder)
    with serving(minilm=of_model(model)) as running:
        code, same = check(file, running.name("minilm"))
        assert (code, max(same["turned"]) < 1e-9) == (0, True)
        with pair.candidate():
            code, quantized = check(file, running.name("minilm"))
        assert (code, len(quantized["texts_changed"])) == (1, 16)
        assert 1e-5 < max(quantized["turned"]) < 1e-2
        model.max_seq_length = 128
        assert len(check(file, running.name("minilm"))[1]["texts_changed"]) == 2
