"""What a key, an address, a proxy or a long wait of another thread must not lead to."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

from quantdrift.engine.encoders.server_client import EndpointClient, Key, Pace, Patience, find_key, told
from quantdrift.errors import MissingExtraError, ServerError, UnsupportedError
from quantdrift.spec import read_endpoint
from support.endpoint_script import Script, Time

KEY = Key(value="sk-0123456789abcdef", variable="V")


def client(name: str) -> EndpointClient:
    return EndpointClient(read_endpoint(name), key=None, patience=Patience())


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("padding", range(140, 200, 7))
def test_a_key_that_a_server_repeats_is_not_passed_on_nor_is_its_beginning(status: int, padding: int) -> None:
    said = json.dumps({"padding": "x" * padding, "authorization": f"Bearer {KEY.value}"})
    echo = httpx.Response(status, text=said)
    with pytest.raises(ServerError) as caught:
        Script([echo] * 8).client(key=KEY).embed(["a"])
    assert "xxx" in str(caught.value)
    assert KEY.value[:4] not in str(caught.value)


def test_a_key_that_is_an_embedding_is_not_passed_on() -> None:
    echo = {"data": [{"index": 0, "embedding": f"Bearer {KEY.value}"}]}
    with pytest.raises(ServerError, match=r"input 0: .*Bearer \*\*\*"):
        Script([echo]).client(key=KEY).embed(["a"])


def test_words_are_not_taken_for_a_key_of_one_letter() -> None:
    said = "a page that ends early a..."
    assert told(said, Key(value="a", variable="V")) == said
    assert told(said, KEY) == said
    assert told("with EMPTY in it", Key(value="EMPTY", variable="V")) == "with *** in it"
    assert told("a field is required", Key(value="sk-no-key-required", variable="V")) == ("a field is required")


SECRET = "sk-proj-Zk3_9dQwX7vLr2TbYh5NcMa8"


@pytest.mark.parametrize(
    "said",
    [
        SECRET,
        SECRET.upper(),
        SECRET.lower(),
        " ".join(SECRET),
        "\u200b".join(SECRET),
        f"{SECRET[:13]}\n{SECRET[13:]}",
        json.dumps([SECRET[:20], SECRET[20:]]),
        json.dumps("\x1b\t\u202e".join(SECRET)),
        *(base64.b64encode(b"Bearer: "[n:] + SECRET.encode()).decode() for n in range(4)),
        base64.urlsafe_b64encode(SECRET.encode()).decode().lower(),
        "\n".join(textwrap.wrap(base64.b64encode(SECRET.encode()).decode(), 8)),
    ],
)
def test_a_key_is_recognized_whatever_form_it_comes_back_in(said: str) -> None:
    found = told(f"you sent {said} to me", Key(value=SECRET, variable="V"))
    assert found.startswith("you sent ")
    assert found.endswith(" to me")
    assert "***" in found
    assert len(found) < len("you sent  to me") + 18  # of base64 what stands before it is left


@pytest.mark.parametrize("at", range(8, len(SECRET) - 8))
def test_of_a_key_in_two_pieces_the_longer_one_is_not_passed_on(at: int) -> None:
    one, other = sorted((SECRET[:at], SECRET[at:]), key=len)
    for said in (f"{one} and {other}", f"{other} and {one}"):
        assert other not in told(said, Key(value=SECRET, variable="V"))


def test_text_that_is_made_to_take_long_does_not() -> None:
    key = Key(value="aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", variable="V")
    for said in ("a" * 10**5, "\\" * 10**5, "a " * 10**5, "a\\u0020" * 10**5):
        began = time.perf_counter()
        told(said, key)
        assert time.perf_counter() - began < 5


def test_a_host_that_is_none_is_an_error_of_one_line() -> None:
    with pytest.raises(UnsupportedError, match=r"exämple\.\.com/v1 is no address .*IDNA"):
        client("openai:http://exämple..com/v1#m")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALL_PROXY", "socks9://127.0.0.1:9"), ("SSL_CERT_FILE", "/no/such/file"), ("HTTPS_PROXY", "http://exämple..com")],
)
def test_settings_that_cannot_be_used_are_an_error_of_one_line_and_not_read_for_what_runs_here(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsupportedError, match=rf"api\.example\.org/v1 cannot .*{variable}"):
        client("openai:https://api.example.org/v1#m")
    client("openai:http://localhost:8000/v1#m")


def test_a_server_that_asks_to_wait_is_left_alone_by_who_waits_for_a_turn() -> None:
    time = Time()
    pace = Pace(time.patience(requests_per_minute=6))
    pace.wait()

    def another_thread_is_refused() -> None:
        time.meanwhile = lambda: None
        pace.hold(300)

    time.meanwhile = another_thread_is_refused
    pace.wait()
    assert time.at == 1300
    pace.wait()
    assert time.at == 1310


@pytest.mark.parametrize(
    ("hosts", "end"),
    [
        (["h"], "set QUANTDRIFT_OPENAI_KEY_H or QUANTDRIFT_OPENAI_KEY"),
        (["h", "g"], "set QUANTDRIFT_OPENAI_KEY_H. QUANTDRIFT_OPENAI_KEY is not used where a run asks two hosts"),
    ],
)
def test_of_two_hosts_it_is_said_that_the_common_key_is_for_neither(hosts: list[str], end: str) -> None:
    patience = Patience(transport=httpx.MockTransport(lambda _: httpx.Response(401)))
    asked = EndpointClient(read_endpoint("openai:http://h/v1#m"), key=None, patience=patience, hosts=hosts)
    with pytest.raises(ServerError) as caught:
        asked.embed(["a"])
    assert str(caught.value).endswith(end)


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


def test_without_httpx_its_extra_is_named_and_nothing_loads_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"httpx.*quantdrift\[openai\]"):
        client("openai:http://h/v1#m")
    code = "import sys, quantdrift.engine.encoders.server_client; print(*{'torch', 'httpx'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.strip() == b""
