"""`quantdrift run` with models on servers: what is printed, what is refused, and Ctrl-C."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

from quantdrift.cli import main
from support.beir_folder import write_beir_folder
from support.embedding_server import Server, of_letters, of_odd_letters, serving
from support.endpoint_samples import many

Command = Callable[..., int]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(one=of_letters, two=of_odd_letters) as found:
        yield found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = many(600)
    queries = dict(zip(made.query_ids, made.queries, strict=True))
    documents = dict(zip(made.document_ids, made.documents, strict=True))
    return write_beir_folder(tmp_path / "data", queries, documents, {key: ["d0"] for key in made.query_ids})


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))

    def run(spec: str, *options: str) -> int:
        words = ["quantdrift", "run", spec, "--data", str(data), *options]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    return run


def test_a_run_is_named_by_its_servers_and_prints_what_it_is(
    server: Server, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = f"{server.name('one')} vs openai:{server.url}/embeddings#two"
    options = ["--concurrency", "2", "--requests-per-minute", "60000", "--query-prefix", "q: "]
    assert command(spec, *options, "--no-noise-floor") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{server.name('one')} vs {server.name('two')} on data 3 queries, 600" in shown
    assert "bits per weight: not known, a server has the weights" in shown
    assert "another top-1 than of the reference" in shown  # which need not be more precise
    assert f"note: {server.name('two')} gets 'q: ' before every query, as asked for" in shown
    assert {"q: cloudy fjord"} < set(server.texts())
    port = server.server_address[1]
    one, two = (f"openai_http_127.0.0.1_{port}_v1_{name}" for name in ("one", "two"))
    record = json.loads((tmp_path / f"quantdrift-runs/{one}_vs_{two}_on_data" / "run.json").read_text())
    assert record["model"]["server"]["prefixes"] == {"query": "q: ", "document": ""}


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("minilm@W4", ["--concurrency", "2"], "--concurrency is for a model on a server; expected"),
        ("minilm vs x", ["--requests-per-minute", "9"], "--requests-per-minute is for a model on"),
        ("ONE@W4-rtn", [], "no scheme and two models, as a server quantizes its own"),
        ("ONE", [], "no scheme and two models"),
        ("ONE vs TWO", ["--revision", "v2"], "--revision is of a reference on the hub"),
        ("ONE vs ONE", [], "both are openai:http"),
        ("ONE vs THREE", [], "expected a server with that path and that model"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    *,
    server: Server,
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spec: str,
    options: list[str],
    message: str,
) -> None:
    for name in ("one", "two", "three"):
        spec = spec.replace(name.upper(), server.name(name))
    assert command(spec, *options) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.splitlines()[-1].startswith("quantdrift: ")
    assert not printed.out
    assert not (tmp_path / "quantdrift-runs").exists()
