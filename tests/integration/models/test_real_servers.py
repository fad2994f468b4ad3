"""Servers that others wrote, on loopback, with MiniLM: what every command makes of them.

xllamacpp holds the server of llama.cpp and installs from PyPI (34 MB): pip install xllamacpp. infinity-emb needs an
environment of its own, with an older transformers; QUANTDRIFT_INFINITY is the path of its infinity_emb.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

from quantdrift.models.files.named import resolve
from support.beir_folder import numbered, write_beir_folder
from support.command_line import cli

pytestmark = pytest.mark.very_slow
SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.model_alias, params.embedding = sys.argv[1], {"minilm"}, True
params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
params.n_ctx, params.n_ubatch, params.n_parallel = 2048, 512, 4
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more of them wait for each other on a busy machine
params.hostnames, params.port = ["127.0.0.1"], 0
server = xllamacpp.Server(params)
print("at", server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", params=["F32", "Q8_0"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The type of the file's matrices, and the server's name."""
    pytest.importorskip("xllamacpp", reason="xllamacpp, which holds llama.cpp's server, is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    from integration.models.checkpoint_makers import write_minilm  # noqa: PLC0415 -- imports torch

    file = write_minilm(tmp_path_factory.mktemp("llama") / "minilm.gguf", request.param)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", SERVE, str(file)], text=True, **pipes) as process:
        assert process.stdout
        assert process.stdin
        address = next(line for line in process.stdout if line.startswith("at ")).split()[1]
        yield request.param, f"openai:{address}/v1#minilm"
        process.stdin.close()


@pytest.fixture(scope="module")
def infinity() -> Iterator[str]:
    """The name of infinity-emb's server."""
    if (program := os.environ.get("QUANTDRIFT_INFINITY")) is None:
        pytest.skip("QUANTDRIFT_INFINITY, the path of an infinity_emb, is not set")
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    model = ["--model-id", resolve("minilm").location, "--served-model-name", "minilm", "--device", "cpu"]
    place = ["--host", "127.0.0.1", "--port", at.split(":")[2].removesuffix("/v1"), "--url-prefix", "/v1"]
    words = [program, "v2", *model, *place, "--engine", "torch", "--no-bettertransformer"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        for _ in range(240):
            with suppress(httpx.TransportError):
                if httpx.get(f"{at}/models").status_code == 200:
                    break
            time.sleep(0.5)
        yield f"openai:{at}#minilm"
        process.terminate()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "manual"
    subjects = ["a pump", "the ferry", "a museum", "heat", "a wing", "the contract", "a rash", "salt"]
    documents = [f"{subject} and {other} in the manual" for subject in subjects for other in subjects]
    write_beir_folder(folder, numbered("q", [f"what of {each}?" for each in subjects]), numbered("d", documents))
    return folder


def test_llama_cpp(served: tuple[str, str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name = served
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    exact = kind == "F32"

    code, out, _ = cli("canary", "save", name, "-o", "canary.json", "--timeout", "100")
    assert (code, "left out" in out) == (0, True)  # beyond 512 tokens
    assert cli("canary", "check", "canary.json", "--timeout", "100")[0] == 0
    code, out, _ = cli("canary", "check", "canary.json", "minilm", "--json")
    moved = json.loads(out)["moved"]
    assert code == 1
    assert max(moved) > 1e-2  # the server reads 512 tokens, the library 256
    assert (sorted(moved)[-2] < 1e-5) == exact

    code, out, _ = cli("run", f"minilm vs {name}", "--data", str(data), "--out", "run", "-q")
    assert code == 0, out
    assert "bits per weight: not known, a server has the weights" in out

    found = json.loads(cli("verify", name, "--of", "minilm@W8-g32", "--data", str(data), "-q", "--json")[1])
    assert (found["verdict"], found["to_reference"] < found["difference"]) == ("other", exact)


def test_infinity(infinity: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    assert cli("canary", "save", infinity, "-o", "canary.json", "--timeout", "100")[0] == 0
    assert cli("canary", "check", "canary.json", "minilm")[0] == 0
    code, out, _ = cli("run", f"minilm vs {infinity}", "--data", str(data), "--out", "run", "-q", "--json")
    assert (code, json.loads(out)["metrics"]["flip@1"]["value"]) == (0, 0)
    found = json.loads(cli("verify", infinity, "--of", "minilm@W8-g32", "--data", str(data), "-q", "--json")[1])
    assert (found["verdict"], found["to_reference"] < 1e-6) == ("other", True)
