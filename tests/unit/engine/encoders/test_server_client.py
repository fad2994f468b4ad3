"""Requests to a server: what is sent again, what its answers mean, and that its key stays with it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import textwrap
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

from quantdrift.engine.encoders.server_client import (
    EndpointClient,
    Key,
    OneInputError,
    Pace,
    Patience,
    StoppedError,
    TooMuchError,
    complaint_of,
    find_key,
    read_embeddings,
    read_json,
    seconds_asked,
    told,
)
from quantdrift.errors import MissingExtraError, ServerError, UnsupportedError
from quantdrift.spec import read_endpoint
from support.endpoint_script import OK, Script, Time

KEY = Key(value="sk-0123456789abcdef", variable="V")
SECRET = "sk-proj-Zk3_9dQwX7vLr2TbYh5NcMa8"


def client(name: str, *hosts: str, transport: Any = None) -> EndpointClient:
    return EndpointClient(read_endpoint(name), key=None, patience=Patience(transport=transport), hosts=hosts)


def refused(script: Script, key: Key | None = None) -> str:
    with pytest.raises(ServerError) as caught:
        script.client(key=key).embed(["a"])
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# --- what is sent, and sent again -----------------------------------------------------------------


def test_what_is_sent_is_what_openai_asks_for() -> None:
    script = Script([OK])
    assert script.client(key=KEY).embed(["a"]).tolist() == [[1, 2]]
    (request,) = script.requests
    assert str(request.url) == "https://api.example.org/v1/embeddings"
    assert json.loads(request.content) == {"model": "m", "input": ["a"], "encoding_format": "float"}
    assert request.headers["authorization"] == f"Bearer {KEY.value}"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again_after_longer_and_longer(status: int) -> None:
    script = Script([status] * 4 + [OK])
    assert script.client().embed(["a"]).shape == (1, 2)
    for slept, least in zip(script.time.slept, (0.5, 1, 2, 4), strict=True):
        assert least <= slept <= least + 1


@pytest.mark.parametrize(
    "error",
    [httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("gone"), httpx.ReadError(""), httpx.ConnectError("refused")],
)
def test_a_connection_that_breaks_is_made_again(error: Exception) -> None:
    client = Script([OK, error, OK]).client()
    client.embed(["a"])
    assert client.embed(["a"]).shape == (1, 2)


def test_it_ends_after_eight_attempts_or_three_where_nothing_ever_answered() -> None:
    script = Script([503] * 9)
    assert "answered HTTP 503 (says 503) (8 attempts). What was finished is kept" in refused(script)
    assert (len(script.requests), len(script.time.slept)) == (8, 7)
    assert len(script.told) == 3  # the waits of 8, 16 and 32 seconds
    script = Script([httpx.ConnectError("[Errno 111] Connection refused")] * 9)
    assert "Connection refused (3 attempts). Is the server" in refused(script)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413, 418, 422, 501, 505])
def test_what_stays_is_sent_once(status: int) -> None:
    script = Script([status, OK])
    with pytest.raises(TooMuchError if status in {400, 413, 422} else ServerError):
        script.client().embed(["a"])
    assert len(script.requests) == 1


def test_a_quota_that_is_used_up_and_inputs_that_are_too_large_are_no_reason_to_wait() -> None:
    spent = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    assert "You exceeded your quota" in refused(Script([httpx.Response(429, json=spent)]))
    large = httpx.Response(500, json={"error": {"message": "input is too large to process"}})
    with pytest.raises(TooMuchError):
        Script([large]).client().embed(["a"])


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("2.5", 2.5), ("-3", 0), ("Fri, 15 Jan 2027 08:00:30 GMT", 30), ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
     ("soon", None), ("nan", None), (None, None)],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert seconds_asked(header, 1_800_000_000.0) == seconds


def test_the_wait_is_what_the_server_asks_for() -> None:
    script = Script([httpx.Response(429, headers={"retry-after": "20"}, json={}), OK])
    script.client().embed(["a"])
    assert script.starts == [1000, 1020]
    assert script.told == ["https://api.example.org/v1 answered HTTP 429 ({}); next try in 20 s"]
    hours = httpx.Response(429, headers={"retry-after": "7200"}, json={})
    assert "asks to wait 7,200 s" in refused(Script([hours]))


def test_no_minute_has_more_requests_than_allowed() -> None:
    script = Script([503] * 3 + [OK] * 20)
    client = script.client(per_minute=12)
    for _ in range(20):
        client.embed(["a"])
    starts = np.array(script.starts)
    assert len(starts) == 23  # those that are sent again count
    assert np.diff(starts).min() >= 5 - 1e-9


def test_a_server_that_asks_to_wait_is_left_alone_by_all_threads() -> None:
    script = Script([httpx.Response(429, headers={"retry-after": "30"}, json={}), OK, OK])
    client, clock = script.client(), script.time

    def other_thread() -> None:
        clock.meanwhile = lambda: None
        client.embed(["b"])

    clock.meanwhile = other_thread
    client.embed(["a"])
    assert script.starts == [1000, 1030, 1060]

    clock = Time()
    pace = Pace(clock.patience(requests_per_minute=6))
    pace.wait()

    def is_refused() -> None:
        clock.meanwhile = lambda: None
        pace.hold(300)

    clock.meanwhile = is_refused
    pace.wait()
    assert clock.at == 1300


def test_who_waits_when_it_is_given_up_sends_nothing_any_more() -> None:
    script = Script([503, OK])
    client = script.client()
    script.time.meanwhile = client.stop  # Ctrl-C comes while it waits
    with pytest.raises(StoppedError):
        client.embed(["a"])
    assert len(script.requests) == 1


# --- what is answered -----------------------------------------------------------------------------


def answer(*embeddings: Any, index: list[Any] | None = None) -> dict[str, Any]:
    places: list[Any] = list(range(len(embeddings))) if index is None else index
    return {"data": [{"embedding": e, "index": i} for e, i in zip(embeddings, places, strict=True)]}


def test_numbers_and_base64_are_one_and_come_in_the_order_of_the_inputs() -> None:
    packed = base64.b64encode(np.array([1, -0.5], dtype="<f4").tobytes()).decode()
    found = read_embeddings(answer([0.25, 3], packed, [7, 8], index=[2, 0, 1]), 3, None)
    assert found.dtype == np.float32
    assert found.tolist() == [[1, -0.5], [7, 8], [0.25, 3]]
    plain = {"data": [{"embedding": [5.0]}, {"embedding": [6.0]}]}
    assert read_embeddings(plain, 2, 1).tolist() == [[5], [6]]


@pytest.mark.parametrize("index", [[0, 0], [1, 2], [0, None], ["0", "1"], [0.0, 1.0], [False, 1]])
def test_an_index_that_is_none_is_refused(index: list[Any]) -> None:
    with pytest.raises(ServerError, match="expected each index from 0 to 1 once"):
        read_embeddings(answer([1], [2], index=index), 2, None)


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        *((none, "no embedding of it") for none in (None, [], "")),
        *((bad, "null, NaN or infinity") for bad in ([1, None], [1, float("nan")], [1, 1e300])),
        ([[1, 2], [3, 4]], "gave 2 vectors for it; expected one. .*pooling"),
        *(
            (bad, "no list of numbers")
            for bad in (["a"], {"x": 1}, "AAA", "\ud800", 5, True, [10**4000], [[1], [2, 3]])
        ),
    ],
)
def test_the_input_without_an_embedding_is_named(embedding: Any, message: str) -> None:
    with pytest.raises(OneInputError, match=message) as caught:
        read_embeddings(answer([1, 2], embedding), 2, 2)
    assert caught.value.number == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (answer([1, 2]), "expected 2 embeddings for 2 inputs; got 1"),
        (answer([1, 2], [1, 2, 3]), r"2 numbers and 3 \(input 1\)"),
        (answer([1], [1]), "lengths: 2 numbers and 1 .*one model to answer all the time"),
        *(
            (bad, 'expected {"data"')
            for bad in ([[1]], {"embeddings": [[1]]}, {"data": [[1], [2]]}, {"data": None}, "x")
        ),
    ],
)
def test_what_is_no_answer_is_refused(content: Any, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        read_embeddings(content, 2, 2)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"1" * 5000, b"\xff{}", b"<title>502 Bad</title>" * 9, b""])
def test_what_is_no_json_is_no_answer(content: bytes) -> None:
    with pytest.raises(ServerError, match=r"^expected JSON; got text/html: (nothing|502 Bad$|.)"):
        read_json(content, "text/html; charset=utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error": {"message": "no such\\n model", "code": 7}}', "no such model"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": [{"msg": "field required"}]}', '[{"msg": "field required"}]'),
        (b'{"message": "one\\n::error::two \\u202e \\ud800"}', "one ::error::two \ufffd \ufffd"),
        (b"\x1b[31mplain\x00 text", "\ufffd[31mplain\ufffd text"),
        (b"<title>Not here</title>", "Not here"),
        (b"y" * 1000, "y" * 100 + "\u2026" + "y" * 99),
    ],
)
def test_complaints_are_one_line(content: bytes, said: str) -> None:
    assert told(complaint_of(content), None) == said


def test_a_model_that_is_not_there_is_answered_with_those_that_are() -> None:
    many = {"data": [{"id": str(number)} for number in range(100)]}
    assert refused(Script([404], listed=many)).endswith("lists 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 88 more")
    for listed in (None, {"data": [{"id": "m"}]}):
        assert refused(Script([404], listed=listed)).endswith("that model")


# --- the key, and where it goes -------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 418, 500])
@pytest.mark.parametrize("padding", [0, 147, 168, 189])
def test_a_key_that_a_server_repeats_is_not_passed_on_nor_is_its_beginning(status: int, padding: int) -> None:
    echo = httpx.Response(status, text=json.dumps(["x" * padding, f"Bearer {KEY.value}"]))
    script = Script([echo] * 8)
    message = refused(script, KEY)
    assert KEY.value[:4] not in message + " ".join(script.told)
    assert ("refuses the key in V" in message) == (status in {401, 403})


@pytest.mark.parametrize(
    "said",
    [
        *(SECRET, SECRET.upper(), SECRET.lower(), f"{SECRET[:13]}\n{SECRET[13:]}"),
        *(" ".join(SECRET), "\u200b".join(SECRET)),
        *(json.dumps([SECRET[:20], SECRET[20:]]), json.dumps("\x1b\t\u202e".join(SECRET))),
        *(base64.b64encode(b"Bearer: "[n:] + SECRET.encode()).decode() for n in range(4)),
        base64.urlsafe_b64encode(SECRET.encode()).decode().lower(),
        "\n".join(textwrap.wrap(base64.b64encode(SECRET.encode()).decode(), 8)),
    ],
)  # fmt: skip
def test_a_key_is_recognized_whatever_form_it_comes_back_in(said: str) -> None:
    found = told(f"you sent {said} to me", Key(value=SECRET, variable="V"))
    assert found.startswith("you sent ") and found.endswith(" to me") and "***" in found  # noqa: PT018 -- one finding
    assert len(found) < len("you sent  to me") + 18  # of base64 what stands before it is left


@pytest.mark.parametrize("at", range(8, len(SECRET) - 8))
def test_of_a_key_in_two_pieces_the_longer_one_is_not_passed_on(at: int) -> None:
    one, other = sorted((SECRET[:at], SECRET[at:]), key=len)
    for said in (f"{one} and {other}", f"{other} and {one}"):
        assert other not in told(said, Key(value=SECRET, variable="V"))


def test_words_are_not_taken_for_a_key() -> None:
    for key in ("a", KEY.value, "sk-no-key-required"):
        assert told("a field is required...", Key(value=key, variable="V")) == "a field is required..."
    assert told("with EMPTY in it", Key(value="EMPTY", variable="V")) == "with *** in it"


@pytest.mark.parametrize("said", ["a" * 10**5, "\\" * 10**5, "a " * 10**5, "a\\u0020" * 10**5], ids="1234")
def test_text_that_is_made_to_take_long_does_not(said: str) -> None:
    began = time.perf_counter()
    told(said, Key(value="aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", variable="V"))
    assert time.perf_counter() - began < 5


def test_a_key_goes_to_the_host_it_was_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(host: str, *others: str) -> str | None:
        found = find_key(host, {host, *others})
        return None if found is None else found.value

    for name in ("QUANTDRIFT_OPENAI_KEY", "QUANTDRIFT_OPENAI_KEY_GPU_1_LAN", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert key("api.openai.com") is None
    monkeypatch.setenv("OPENAI_API_KEY", "users")
    assert [key(host) for host in ("api.openai.com", "api.openai.com.evil.org", "localhost")] == ["users", None, None]
    monkeypatch.setenv("QUANTDRIFT_OPENAI_KEY", " ours\n")
    assert (key("localhost"), key("api.openai.com")) == ("ours", "ours")
    assert key("localhost", "api.openai.com") is None  # one key is not sent to two hosts
    assert key("api.openai.com", "localhost") == "users"
    monkeypatch.setenv("QUANTDRIFT_OPENAI_KEY_GPU_1_LAN", "its own")
    with pytest.raises(UnsupportedError, match="QUANTDRIFT_OPENAI_KEY_GPU_1_LAN holds no key") as caught:
        key("gpu-1.lan")
    assert "its own" not in str(caught.value)
    monkeypatch.setenv("QUANTDRIFT_OPENAI_KEY_GPU_1_LAN", "its-own")
    assert key("gpu-1.lan", "localhost") == "its-own"
    assert "its-own" not in repr(find_key("gpu-1.lan", {"gpu-1.lan"}))


@pytest.mark.parametrize(
    ("hosts", "end"),
    [
        (["h"], "set QUANTDRIFT_OPENAI_KEY_H or QUANTDRIFT_OPENAI_KEY"),
        (["h", "g"], "set QUANTDRIFT_OPENAI_KEY_H. QUANTDRIFT_OPENAI_KEY is not used where a run asks two hosts"),
    ],
)
def test_the_variable_that_a_key_belongs_in_is_named(hosts: list[str], end: str) -> None:
    asked = client("openai:http://h/v1#m", *hosts, transport=httpx.MockTransport(lambda _: httpx.Response(401)))
    with pytest.raises(ServerError) as caught:
        asked.embed(["a"])
    assert str(caught.value).endswith(end)


def test_a_redirect_is_not_followed_as_the_key_would_go_along() -> None:
    moved = httpx.Response(307, headers={"location": "https://evil.example/v1/embeddings?k=v"})
    script = Script([moved, OK])
    assert refused(script, KEY).endswith("points to https://evil.example/v1/embeddings: give its address there")
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALL_PROXY", "socks9://127.0.0.1:9"), ("SSL_CERT_FILE", "/no/such/file"), ("HTTPS_PROXY", "http://exämple..com")],
)
def test_settings_that_cannot_be_used_are_one_line_and_not_read_for_what_runs_here(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsupportedError, match=rf"api\.example\.org/v1 cannot .*{variable}"):
        client("openai:https://api.example.org/v1#m")
    client("openai:http://localhost:8000/v1#m")


def test_a_host_that_is_none_is_one_line_and_a_proxy_is_not_for_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match=r"exämple\.\.com/v1 is no address .*IDNA"):
        client("openai:http://exämple..com/v1#m")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    for host, by_proxy in (("localhost:8000", False), ("api.example.org", True)):
        http = client(f"openai:http://{host}/v1#m")._http
        assert (http._transport_for_url(httpx.URL(f"http://{host}/v1")) is not http._transport) == by_proxy


def test_without_httpx_its_extra_is_named_and_nothing_loads_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"httpx.*quantdrift\[openai\]"):
        client("openai:http://h/v1#m")
    code = "import sys, quantdrift.engine.encoders.server_client; print(*{'torch', 'httpx'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.strip() == b""
