"""`quantdrift run` with models on servers: what is printed, what is refused, and Ctrl-C."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

from support.beir_folder import write_beir_folder
from support.command_line import cli
from support.embedding_server import Server, of_letters, of_odd_letters, serving
from support.endpoint_samples import ASKED, sentences


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(one=of_letters, two=of_odd_letters) as server:
        yield server


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in BEIR layout, in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    return write_beir_folder(tmp_path / "data", ASKED, sentences(600), {query: ["d0"] for query in ASKED})


def test_a_run_is_named_by_its_servers_and_prints_what_it_is(server: Server) -> None:
    spec = f"{server.name('one')} vs openai:{server.url}/embeddings#two"
    options = ["--concurrency", "2", "--query-prefix", "q: ", "--no-noise-floor"]
    code, printed, _ = cli("run", spec, "--data", "data", *options)
    assert code == 0
    shown = " ".join(printed.split())
    assert f"{server.name('one')} vs {server.name('two')} on data 3 queries, 600" in shown
    assert "bits per weight: not known, a server has the weights" in shown
    assert f"note: {server.name('two')} gets 'q: ' before every query, as asked for" in shown
    assert {"q: cloudy fjord"} < set(server.texts())
    port = server.server_address[1]
    first, two = (f"openai_http_127.0.0.1_{port}_v1_{name}" for name in ("one", "two"))
    record = json.loads(Path(f"quantdrift-runs/{first}_vs_{two}_on_data/run.json").read_text())
    assert record["model"]["server"]["prefixes"] == {"query": "q: ", "document": ""}


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("minilm@W4", ["--concurrency", "2"], "--concurrency is for a model on a server; expected"),
        ("minilm vs x", ["--query-prefix", "q"], "--query-prefix is for a model on"),
        ("ONE@W4-rtn", [], "no scheme and two models, as a server quantizes its own"),
        ("ONE", [], "no scheme and two models"),
        ("ONE vs TWO", ["--revision", "v2"], "--revision is of a reference on the hub"),
        ("ONE vs ONE", [], "both are openai:http"),
        ("ONE vs THREE", [], "expected a server with that path and that model"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(server: Server, spec: str, options: list[str], message: str) -> None:
    for name in ("one", "two", "three"):
        spec = spec.replace(name.upper(), server.name(name))
    code, printed, said = cli("run", spec, "--data", "data", *options)
    assert (code, printed) == (2, "")
    assert message in said
    assert said.splitlines()[-1].startswith("quantdrift: ")
    assert not Path("quantdrift-runs").exists()
