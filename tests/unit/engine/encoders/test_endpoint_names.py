"""The names of models on servers, and the keys that servers get, by hand."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from quantdrift.engine.encoders.server_client import EndpointClient, Patience, find_key
from quantdrift.errors import MissingExtraError, SpecError, UnsupportedError
from quantdrift.spec import Versus, is_endpoint, parse, parse_pair, read_endpoint
from support.places import ROOT

PAGE = ROOT / "docs" / "servers.md"


@pytest.mark.parametrize(
    ("written", "url", "embeddings", "models"),
    [
        ("http://localhost:8000/v1", None, "/v1/embeddings", "/v1/models"),
        ("http://localhost:8000", "/v1", "/v1/embeddings", "/v1/models"),
        ("http://localhost:8000/", "/v1", "/v1/embeddings", "/v1/models"),
        ("HTTP://LocalHost:8000/v1/", "/v1", "/v1/embeddings", "/v1/models"),
        ("http://localhost:8000/v1/embeddings", "/v1", "/v1/embeddings", "/v1/models"),
        ("http://localhost:8000/v1/embeddings/", "/v1", "/v1/embeddings", "/v1/models"),
        ("http://localhost:8000/api/v2", "/api/v2", "/api/v2/embeddings", "/api/v2/models"),
        ("http://localhost:8000/embeddings", "/embeddings", "/embeddings", "/models"),
    ],
)
def test_a_url_has_one_form(written: str, url: str | None, embeddings: str, models: str) -> None:
    found = read_endpoint(f"openai:{written}#m")
    base = "http://localhost:8000"
    assert found.url == (written if url is None else base + url)
    assert (found.embeddings, found.models) == (base + embeddings, base + models)
    assert read_endpoint(str(found)) == found
    assert found.host == "localhost"


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("http://h:80/v1", "http://h/v1"),
        ("https://h:443", "https://h/v1"),
        ("https://h:80/v1", "https://h:80/v1"),
        ("http://[::1]:11434", "http://[::1]:11434/v1"),
    ],
)
def test_a_port_that_goes_without_saying_is_left_out(written: str, canonical: str) -> None:
    assert read_endpoint(f"openai:{written}#m").url == canonical


def test_a_pair_may_have_servers_on_either_side() -> None:
    found = parse_pair("minilm vs OpenAI:http://localhost:8000/#org/model:0.6b#x")
    assert found == Versus(reference="minilm", candidate="openai:http://localhost:8000/v1#org/model:0.6b#x")
    both = parse_pair(" openai:http://a#m   vs  openai:https://b:9/v1#m@v2 ")
    assert str(both) == "openai:http://a/v1#m vs openai:https://b:9/v1#m@v2"
    assert parse_pair(str(both)) == both
    made = Versus(reference="openai:HTTP://A/#m", candidate="b")
    assert made.reference == "openai:http://a/v1#m"
    assert is_endpoint(made.reference)
    assert not is_endpoint(made.candidate)


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("minilm vs openai:http://h/v1", 28, "missing #MODEL at character 29"),
        ("minilm vs openai:http://h/v1#", 29, "missing model at character 30"),
        ("openai:localhost:8000#m vs minilm", 7, "missing scheme at character 8: .*http:// or"),
        ("minilm vs openai:ftp://h/v1#m", 17, "missing scheme"),
        ("minilm vs openai:#m", 17, "missing URL"),
        ("minilm vs openai:http://#m", 17, "malformed URL 'http://'"),
        ("minilm vs openai:http://h:x/v1#m", 17, "malformed URL"),
        ("minilm vs openai:http://h/v1?key=3#m", 28, "without parameters"),
        ("minilm vs openai:http://h/v1#my model", 31, "unexpected ' ' .* without spaces"),
        ("minilm vs http://h/v1#m", 10, "missing 'openai:' at character 11"),
        ("minilm vs openai:http://h/v1#m@W4", 30, "unexpected '@W4' .* a candidate as it is"),
        ("openai:http://h/v1#m@W4-rtn", 20, "not here to be quantized; .*REFERENCE vs openai"),
        ("openai:http://h/v1#m", 0, "missing 'REFERENCE vs' .*not quantized here"),
    ],
)
def test_errors_point_at_what_is_wrong(text: str, at: int, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_pair(text)
    assert caught.value.start == at
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["me:secret@", "secret@"])
def test_what_is_secret_in_a_url_is_refused_and_not_shown_again(name: str) -> None:
    with pytest.raises(SpecError, match="a user or a password") as caught:
        parse_pair(f"minilm vs openai:http://{name}h/v1#m")
    assert "secret" not in str(caught.value) + caught.value.caret()


def test_where_one_model_is_quantized_a_server_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"no scheme, as the weights of a server's"):
        parse("openai:http://h/v1#m@W4")
    with pytest.raises(SpecError, match="two models are compared by quantdrift run only"):
        parse("openai:http://h/v1#m vs minilm")


def test_a_key_goes_to_the_host_it_was_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(host: str, *others: str) -> str | None:
        found = find_key(host, {host, *others})
        return None if found is None else found.value

    for name in ("QUANTDRIFT_OPENAI_KEY", "QUANTDRIFT_OPENAI_KEY_GPU_1_LAN", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert key("api.openai.com") is None
    monkeypatch.setenv("OPENAI_API_KEY", "users")
    assert key("api.openai.com") == "users"
    assert key("api.openai.com.evil.org") is None
    assert key("localhost") is None
    monkeypatch.setenv("QUANTDRIFT_OPENAI_KEY", " ours\n")
    assert key("localhost") == "ours"
    assert key("api.openai.com") == "ours"
    assert key("localhost", "api.openai.com") is None  # one key is not sent to two hosts
    assert key("api.openai.com", "localhost") == "users"
    monkeypatch.setenv("QUANTDRIFT_OPENAI_KEY_GPU_1_LAN", "its own")
    with pytest.raises(UnsupportedError, match="QUANTDRIFT_OPENAI_KEY_GPU_1_LAN holds no key") as e:
        key("gpu-1.lan")
    assert "its own" not in str(e.value)
    monkeypatch.setenv("QUANTDRIFT_OPENAI_KEY_GPU_1_LAN", "its-own")
    assert key("gpu-1.lan", "localhost") == "its-own"
    assert "its-own" not in repr(find_key("gpu-1.lan", {"gpu-1.lan"}))


@pytest.mark.parametrize("package", ["httpx", "tenacity"])
def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    endpoint = read_endpoint("openai:http://h/v1#m")
    with pytest.raises(MissingExtraError, match=rf"{package}.*quantdrift\[openai\]"):
        EndpointClient(endpoint, key=None, patience=Patience())


def test_import_is_light() -> None:
    code = "import sys, quantdrift.engine.encoders.server_client as _, quantdrift.spec; "
    code += "print(*{'torch', 'httpx', 'tenacity'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.strip() == b""


def test_the_page_for_users_shows_strings_that_can_be_read() -> None:
    shown = re.findall(r'quantdrift run "([^"]+)"', PAGE.read_text(encoding="utf-8"))
    assert len(shown) >= 3
    assert all("openai:" in str(parse_pair(text)) for text in shown)
