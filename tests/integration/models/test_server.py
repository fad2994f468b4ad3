"""Models on servers: slow, full, down or not what they were; as they are typed; and beside the same models here."""

import gzip
import json
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from sentence_transformers import SentenceTransformer

from quantdrift.base.errors import QuantDriftError, ServerError
from quantdrift.base.progress import Progress, Silent
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence import perturbation
from quantdrift.models import store as embeddings
from quantdrift.models.inputs import Settings
from quantdrift.models.server import Servers
from quantdrift.models.server_client import EndpointClient, Key, RetryPolicy
from quantdrift.models.store import EmbeddingStore
from quantdrift.runs.folder import Run
from quantdrift.show.run import run_output
from quantdrift.spec.grammar import Versus, parse, read_endpoint
from quantdrift_paper.law import law_runs
from support.beir_folder import write_beir_folder
from support.candidate_samples import tiny
from support.command_line import cli
from support.embedding_server import Request, Server, of_letters, of_model, of_odd_letters, serving
from support.tiny_command_line import text
from support.versus_samples import DATASET, run_any


def run_servers(
    reference: str,
    candidate: str,
    out: Path,
    *,
    dataset: RetrievalDataset = DATASET,
    cache: Path | None = None,
    noise_floor: bool = False,
    batch_size: int = 8,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _line: None,
    **options: Any,
) -> Run:
    return run_any(
        Versus(reference=reference, candidate=candidate),
        out,
        dataset=dataset,
        settings=Settings(k=8, batch_size=batch_size, noise_floor=noise_floor),
        store=EmbeddingStore(cache),
        progress=progress or Silent(),
        servers=Servers(retry_policy=RetryPolicy(sleep=lambda _seconds: None, say=say), **options),
    )


ASKED = {"q0": "an eagle over a dune", "q1": "bricks and gloves", "q2": "cloudy fjord"}


def sentences(n: int) -> dict[str, str]:
    """A corpus of n sentences that differ in letters."""
    words = ("apple", "brick", "cloud", "dune", "eagle", "fjord", "glove")
    return {f"d{i}": f"{words[i % 7]} {words[i // 7 % 7]} {words[i // 49 % 7]} {'x' * (i % 5)} {i}" for i in range(n)}


KNOWN = 3
"""Requests that tell which model it is."""


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(one=of_letters, two=of_odd_letters) as outcome:
        yield outcome


def measured(server: Server, out: Path, **options: Any) -> Run:
    return run_servers(server.name("one"), server.name("two"), out, **options)


def refused(server: Server, out: Path, **options: Any) -> str:
    with pytest.raises(QuantDriftError) as caught:
        measured(server, out, **options)
    assert not out.exists()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def status(code: int, **headers: str) -> Callable[[Request], None]:
    return lambda request: request.reply(code, {"error": {"message": "busy"}}, **headers)


def hang_up(request: Request) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def cut_short(request: Request) -> None:
    request.wfile.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"data": [')
    hang_up(request)


def endless(head: bytes, part: bytes, pause: float = 0.0) -> Callable[[Request], None]:
    """Sends a head, and then a part again and again for as long as anybody listens."""

    def answer(request: Request) -> None:
        request.wfile.write(b"HTTP/1.1 " + head)
        while True:
            request.wfile.write(part)
            time.sleep(pause)

    return answer


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


CHUNKED = b"\r\ntransfer-encoding: chunked\r\n\r\n"
KEY = Key(value="sk-proj-Zk3_9dQwX7vLr2TbYh5NcMa8", variable="V")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (endless(b"200 OK\r\ncontent-length: 1000000\r\n\r\n", b" ", 0.02), "gave no answer within 0.2 s (8 attempts)"),
        (endless(b"200 OK\r\nx-long: ", b"a", 0.02), "gave no answer within 0.2 s (8 attempts)"),
        (endless(b"200 OK" + CHUNKED, chunk(b" " * 9999)), "the answer is larger than 1,000,000 bytes"),
        (endless(b"418 No" + CHUNKED, chunk(b"no, no " * 999)), "answered HTTP 418 (no, no no"),
        (lambda r: r.reply(200, gzip.compress(bytes(9**8)), content_encoding="gzip"), "compresses its answer"),
        (lambda r: r.reply(200, b"[" * 10**5), "got [[[["),
        (endless(b"200 OK\r\nx: ", b"a" * 10**6), "broke off: "),
    ],
)
def test_a_hostile_server_costs_little(server: Server, answer: Callable[[Request], None], message: str) -> None:
    server.always = answer
    retry_policy = RetryPolicy(sleep=lambda _seconds: None, timeout=0.2 if "0.2 s" in message else 60)
    client = EndpointClient(read_endpoint(server.name("one")), key=KEY, retry_policy=retry_policy)
    began = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(ServerError) as caught:
            client.embed(["a"])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 600
    assert time.perf_counter() - began < 30
    assert most < 200_000_000


def test_what_goes_wrong_for_a_while_leaves_no_trace(server: Server, tmp_path: Path) -> None:
    wanted = measured(server, tmp_path / "a").evidence()
    lines: list[str] = []
    server.answer(*[None] * 2 * KNOWN, status(429, retry_after="30"), status(500), status(500))
    server.answer(None, hang_up, cut_short, None, None, status(503))
    server.forget()
    outcome = measured(server, tmp_path / "b", batch_size=2, say=lines.append, concurrency=1)
    np.testing.assert_array_equal(perturbation.epsilon(outcome.evidence()), perturbation.epsilon(wanted))
    assert (len(server.asked), len(lines)) == (2 * KNOWN + 2 * (2 + 4) + 6, 1)
    assert lines[0].endswith("next try in 30 s")


def test_the_input_that_a_server_refuses_is_named(server: Server, tmp_path: Path) -> None:
    def no_trains(request: Request) -> None:
        if any("Trains" in text for text in request.body["input"]):
            request.reply(400, {"error": {"message": "maximum context length is 5 tokens"}})
        else:
            request.embed()

    server.always = no_trains
    outcome = refused(server, tmp_path / "run")
    assert "document 'd6' (46 characters: 'Trains to the coast depart from" in outcome
    assert "the server answered HTTP 400" in outcome


def test_a_key_is_sent_and_left_nowhere(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    measured(server, tmp_path / "a")
    assert not any("authorization" in headers for headers in server.headers)
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    server.forget()
    outcome = measured(server, tmp_path / "b", cache=tmp_path / "cache")
    assert {headers["authorization"] for headers in server.headers} == {"Bearer s3cret"}
    for file in [*outcome.path.rglob("*"), *(tmp_path / "cache").rglob("*")]:
        assert file.is_dir() or b"s3cret" not in file.read_bytes()
    server.always = status(401)
    assert "refuses the key in OPENAI_API_KEY (HTTP 401)" in refused(server, tmp_path / "c")


def test_an_interrupted_run_goes_on(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def stage(name: str, _total: int) -> Iterator[Callable[[int], None]]:
        done: list[int] = []

        def tell(steps: int) -> None:
            done.append(steps)
            if name == "candidate: document embeddings" and sum(done) >= 64:
                raise KeyboardInterrupt

        yield tell

    monkeypatch.setattr("quantdrift.measuring.flow.CHUNK_ELSEWHERE", 32)
    data, cache = RetrievalDataset.of(ASKED, sentences(100)), tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        measured(server, tmp_path / "run", dataset=data, cache=cache, progress=SimpleNamespace(stage=stage))
    assert not (tmp_path / "run").exists()
    server.forget()
    # the number of inputs in a request is no reason to ask again
    outcome = measured(server, tmp_path / "run", dataset=data, cache=cache, batch_size=5)
    texts = [text for text in server.texts() if text in set(data.documents)]
    assert len(texts) == len(set(texts)) == 100 - 64
    assert not set(data.queries) & set(server.texts())
    fresh = measured(server, tmp_path / "fresh", dataset=data)
    np.testing.assert_array_equal(perturbation.epsilon(outcome.evidence()), perturbation.epsilon(fresh.evidence()))
    assert embeddings.CHUNK_ELSEWHERE < embeddings.CHUNK


# --- as typed: what is printed, and what is refused --------------------------------------------------


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in BEIR layout, in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    return write_beir_folder(tmp_path / "data", ASKED, sentences(600), {query: ["d0"] for query in ASKED})


@pytest.mark.usefixtures("data")
def test_a_run_is_named_by_its_servers_and_prints_what_it_is(server: Server) -> None:
    spec = f"{server.name('one')} vs openai:{server.url}/embeddings#two"
    options = ["--concurrency", "2", "--query-prefix", "q: ", "--no-noise-floor", "--all"]
    code, printed, _ = cli("run", spec, "--data", "data", *options)
    assert code == 0
    shown = " ".join(printed.split())
    assert f"{server.name('one')} vs {server.name('two')} on data: 3 queries, 600" in shown
    assert "bits per weight: not known, a server has the weights" in shown
    assert f"note: {server.name('two')} gets 'q: ' before every query, as asked for" in shown
    assert {"q: cloudy fjord"} < set(server.texts())
    port = server.server_address[1]
    first, two = (f"openai_http_127.0.0.1_{port}_v1_{name}" for name in ("one", "two"))
    record = json.loads(Path(f"quantdrift-runs/{first}_vs_{two}_on_data/run.json").read_text())
    assert record["model"]["server"]["prefixes"] == {"query": "q: ", "document": ""}


@pytest.mark.usefixtures("data")
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


# --- a tiny model and its quantized self behind a server give the evidence that they give here -------


QUERIES, DOCUMENTS = (tuple(text(start + n, 9) for n in range(count)) for start, count in ((0, 3), (100, 8)))
OF_WORDS = RetrievalDataset.of(QUERIES, DOCUMENTS, name="words")
PROMPT = "wing flow "
"""What the tiny model puts before a query."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny"
    tiny().save_pretrained(str(place))
    return place


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Server]:
    full, low = (SentenceTransformer(str(folder), device="cpu") for _ in range(2))
    with QuantizedPair([low], "W3").candidate(), serving(full=of_model(full), low=of_model(low)) as run:
        yield run


@pytest.fixture(scope="module")
def here(folder: Path) -> Run:
    return run_any(parse(f"{folder}@W3"), folder.parent / "run", dataset=OF_WORDS)


def same_evidence(run: Run, wanted: Run) -> None:
    served, here = run.evidence(), wanted.evidence()
    np.testing.assert_allclose(perturbation.epsilon(served), perturbation.epsilon(here), atol=1e-5)
    for arm in ("reference_top", "candidate_top"):
        names = [evidence.item_ids[getattr(evidence, arm).items].tolist() for evidence in (served, here)]
        assert names[0] == names[1]


def test_a_quantized_model_on_a_server_drifts_as_here(served: Server, here: Run, folder: Path, tmp_path: Path) -> None:
    run = run_servers(str(folder), served.name("low"), tmp_path / "run", dataset=OF_WORDS)
    assert perturbation.epsilon(run.evidence()).min() > 1e-3
    same_evidence(run, here)
    for name in ("fingerprint", "name", "canonical", "kind"):
        assert run.record["model"][name] == here.record["model"][name]
    assert run.record["settings"] == here.record["settings"]
    assert {PROMPT + query for query in QUERIES} <= set(served.texts())  # what the other model puts before a query
    assert set(DOCUMENTS) <= set(served.texts())
    note = f"{served.name('low')} gets {PROMPT!r} before every query, as the other model does"
    assert note in run.record["data"]["warnings"]


def test_both_models_may_be_on_servers(served: Server, here: Run, tmp_path: Path) -> None:
    served.forget()
    how = {"dataset": OF_WORDS, "noise_floor": True, "batch_size": 3, "prefixes": {"query": PROMPT}}
    run = run_servers(served.name("full"), served.name("low"), tmp_path / "run", **how)
    same_evidence(run, here)
    record = run.record
    assert record["metrics"]["noise_floor"]["value"] == 0
    assert record["bits_per_weight"] is None
    assert record["model"]["layers_quantized"] is None
    assert record["model"]["layers_never_reached"] is None
    assert record["model"]["kind"] == record["model"]["candidate"]["kind"] == "server"
    about = record["model"]["candidate"]["server"]
    assert (about["url"], about["prefixes"]) == (served.url, {"query": PROMPT, "document": ""})
    assert record["model"]["fingerprint"] != record["model"]["candidate_fingerprint"]
    # three requests to know each model; eight documents and three queries in threes, to both; and
    # for the noise floor once more the queries, and the documents that are the first or second of one: four of the
    # reference, three of the candidate, whose answers can depend on what a server batches
    assert sorted(len(request) for request in served.asked) == sorted(
        [8, 5, 3] * 2 + [3, 3, 3, 2] * 2 + [4, 3] + [3, 3]
    )
    assert "bits per weight: not known, a server has the weights" in run_output(run, everything=True).lines
    (point,) = law_runs([run])
    assert point.bits == "stored"
