"""What is sent again and after how long, what is not, and what the user is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

from quantdrift.engine.encoders.server_client import (
    EndpointClient,
    Key,
    Patience,
    StoppedError,
    TooMuchError,
    seconds_asked,
)
from quantdrift.errors import ServerError
from quantdrift.spec import read_endpoint
from support.endpoint_script import OK, Script


def refused(script: Script, key: Key | None = None) -> str:
    with pytest.raises(ServerError) as caught:
        script.client(key=key).embed(["a"])
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith("https://api.example.org/v1/embeddings ")
    return message


def test_what_is_sent_is_what_openai_asks_for() -> None:
    script = Script([OK])
    found = script.client(key=Key(value="s3cret", variable="V")).embed(["a"])
    assert found.tolist() == [[1, 2]]
    (request,) = script.requests
    assert str(request.url) == "https://api.example.org/v1/embeddings"
    assert httpx.Response(200, content=request.content).json() == {
        "model": "m",
        "input": ["a"],
        "encoding_format": "float",
    }
    assert request.headers["authorization"] == "Bearer s3cret"
    script = Script([OK])
    script.client().embed(["a"])
    assert "authorization" not in script.requests[0].headers


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again_after_longer_and_longer(status: int) -> None:
    script = Script([status] * 4 + [OK])
    assert script.client().embed(["a"]).shape == (1, 2)
    assert len(script.requests) == 5
    for slept, least in zip(script.time.slept, (0.5, 1, 2, 4), strict=True):
        assert least <= slept <= least + 1


@pytest.mark.parametrize(
    "error",
    [httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("gone"), httpx.ReadError(""), httpx.ConnectError("refused")],
)
def test_a_connection_that_breaks_is_made_again(error: Exception) -> None:
    script = Script([OK, error, OK])
    client = script.client()
    client.embed(["a"])
    assert client.embed(["a"]).shape == (1, 2)
    assert len(script.requests) == 3


def test_it_ends_after_eight_times_and_says_how_to_go_on() -> None:
    script = Script([503] * 9)
    message = refused(script)
    assert "answered HTTP 503 (says 503) (8 attempts). What was finished is kept" in message
    assert len(script.requests) == 8
    assert len(script.time.slept) == 7
    assert sum(script.time.slept) < 75
    assert len(script.told) == 3  # the waits of 8, 16 and 32 seconds
    assert script.told[0].startswith("https://api.example.org/v1 answered HTTP 503 (says 503); ")


def test_a_server_that_is_not_there_is_given_up_early() -> None:
    script = Script([httpx.ConnectError("[Errno 111] Connection refused")] * 9)
    message = refused(script)
    assert "cannot be reached: [Errno 111] Connection refused (3 attempts). Is the server" in message
    assert len(script.requests) == 3


@pytest.mark.parametrize("status", [401, 403, 404, 410, 418, 501, 505])
def test_what_stays_is_sent_once(status: int) -> None:
    script = Script([status, OK])
    refused(script)
    assert len(script.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_inputs_that_are_refused_are_not_sent_again_as_they_are(status: int) -> None:
    script = Script([status, OK])
    with pytest.raises(TooMuchError, match=f"answered HTTP {status}"):
        script.client().embed(["a"])
    assert len(script.requests) == 1
    large = httpx.Response(500, json={"error": {"message": "input is too large to process"}})
    with pytest.raises(TooMuchError):
        Script([large]).client().embed(["a"])


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("2.5", 2.5),
        ("-3", 0),
        ("Fri, 15 Jan 2027 08:00:30 GMT", 30),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        ("soon", None),
        ("nan", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert seconds_asked(header, 1_800_000_000.0) == seconds


def test_the_wait_is_what_the_server_asks_for() -> None:
    busy = httpx.Response(429, headers={"retry-after": "20"}, json={})
    script = Script([busy, OK])
    script.client().embed(["a"])
    assert script.starts == [1000, 1020]
    assert script.told == ["https://api.example.org/v1 answered HTTP 429 ({}); next try in 20 s"]
    hours = httpx.Response(429, headers={"retry-after": "7200"}, json={})
    assert "asks to wait 7,200 s. What was finished is kept" in refused(Script([hours]))


def test_a_quota_that_is_used_up_is_no_rate_limit() -> None:
    error = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    script = Script([httpx.Response(429, json=error)])
    assert "You exceeded your quota" in refused(script)
    assert len(script.requests) == 1


def test_a_missing_key_is_said_by_the_name_of_its_variable() -> None:
    assert refused(Script([401])).endswith(
        "wants a key (HTTP 401): set QUANTDRIFT_OPENAI_KEY_API_EXAMPLE_ORG or QUANTDRIFT_OPENAI_KEY"
    )


@pytest.mark.parametrize("status", [401, 403, 404, 400, 418, 500])
def test_a_key_is_never_shown(status: int) -> None:
    key = Key(value="s3cret", variable="QUANTDRIFT_OPENAI_KEY")
    echo = httpx.Response(status, text="bad key: s3cret")
    script = Script([echo] * 8)
    message = refused(script, key)
    assert "s3cret" not in message + " ".join(script.told)
    assert ("refuses the key in QUANTDRIFT_OPENAI_KEY" in message) == (status in {401, 403})


def test_a_model_that_is_not_there_is_answered_with_those_that_are() -> None:
    script = Script([404], listed={"data": [{"id": "one"}, {"id": "two"}]})
    assert refused(script).endswith("(says 404): expected a server with that path and that model; "
                                    "the server lists one, two")  # fmt: skip
    many = {"data": [{"id": str(number)} for number in range(100)]}
    assert refused(Script([404], listed=many)).endswith("lists 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "
                                                        "11 and 88 more")  # fmt: skip
    assert refused(Script([404])).endswith("that model")
    assert refused(Script([404], listed={"data": [{"id": "m"}]})).endswith("that model")


def test_a_redirect_is_not_followed_as_the_key_would_go_along() -> None:
    moved = httpx.Response(307, headers={"location": "https://evil.example/v1/embeddings?k=v"})
    script = Script([moved, OK])
    message = refused(script, Key(value="s3cret", variable="V"))
    assert message.endswith("points to https://evil.example/v1/embeddings: give its address there")
    assert len(script.requests) == 1


def test_a_page_in_place_of_an_answer_is_an_error() -> None:
    page = httpx.Response(200, html="<title>Log in</title>")
    with pytest.raises(ServerError, match=r"embeddings: expected JSON; got text/html: Log in$"):
        Script([page]).client().embed(["a"])


def test_a_length_that_changes_is_an_error() -> None:
    other = {"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}]}
    client = Script([OK, other]).client()
    client.embed(["a"])
    with pytest.raises(ServerError, match="one model to answer all the time"):
        client.embed(["a"])


def test_no_minute_has_more_requests_than_allowed() -> None:
    script = Script([503] * 3 + [OK] * 20)
    client = script.client(per_minute=12)
    for _ in range(20):
        client.embed(["a"])
    starts = np.array(script.starts)
    assert len(starts) == 23  # those that are sent again count
    assert np.diff(starts).min() >= 5 - 1e-9
    assert max(((starts >= at) & (starts < at + 60)).sum() for at in starts) <= 12


def test_a_server_that_asks_to_wait_is_left_alone_by_all_threads() -> None:
    script = Script([httpx.Response(429, headers={"retry-after": "30"}, json={}), OK, OK])
    client, time = script.client(), script.time

    def other_thread() -> None:
        time.meanwhile = lambda: None
        client.embed(["b"])

    time.meanwhile = other_thread
    client.embed(["a"])
    assert script.starts == [1000, 1030, 1060]
    assert time.slept == [30, 30]


def test_who_waits_when_it_is_given_up_sends_nothing_any_more() -> None:
    script = Script([503, OK])
    client = script.client()
    script.time.meanwhile = client.stop  # Ctrl-C comes while it waits
    with pytest.raises(StoppedError):
        client.embed(["a"])
    assert len(script.requests) == 1


def test_proxies_are_not_asked_for_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")

    def transports(name: str) -> Sequence[Any]:
        client = EndpointClient(read_endpoint(name), key=None, patience=Patience())
        http = client._http
        return [http._transport_for_url(httpx.URL(client.endpoint.url)), http._transport]

    used, direct = transports("openai:http://localhost:8000/v1#m")
    assert used is direct
    used, direct = transports("openai:http://api.example.org/v1#m")
    assert used is not direct
