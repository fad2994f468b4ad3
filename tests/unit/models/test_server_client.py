"""Requests to a server: what is sent again, what its answers mean, and that its key stays with it."""

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

from quantdrift.base.errors import ServerError
from quantdrift.base.keys import Key, without_key
from quantdrift.models import server_client
from quantdrift.models.server_client import EndpointClient, OneInputError, RetryPolicy
from quantdrift.spec.grammar import read_endpoint

KEY = Key(value="sk-0123456789abcdef", variable="V")
OK = {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}


class Script:
    """Answers requests one after the other, and sleeps at once; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests, self.slept, self.said_so = list[Any](), list[float](), list[str]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": {"message": f"says {answer}"}})
        return httpx.Response(200, json=answer) if isinstance(answer, dict) else answer

    def client(self, key: Key | None = None, **more: Any) -> EndpointClient:
        transport = httpx.MockTransport(self)
        retry_policy = RetryPolicy(sleep=self.sleep, say=self.said_so.append, transport=transport, **more)
        return EndpointClient(read_endpoint("openai:https://api.example.org/v1#m"), key=key, retry_policy=retry_policy)


def refused(script: Script, key: Key | None = None) -> str:
    with pytest.raises(ServerError) as caught:
        script.client(key).embed(["a"])
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def test_what_is_sent_is_what_openai_asks_for() -> None:
    script = Script(OK)
    assert script.client(KEY).embed(["a"]).tolist() == [[1, 2]]
    (request,) = script.requests
    assert str(request.url) == "https://api.example.org/v1/embeddings"
    assert json.loads(request.content) == {"model": "m", "input": ["a"], "encoding_format": "float"}
    assert request.headers["authorization"] == f"Bearer {KEY.value}"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again_after_longer_and_longer(status: int) -> None:
    script = Script(*[status] * 4, OK)
    assert script.client().embed(["a"]).shape == (1, 2)
    for slept, least in zip(script.slept, (0.5, 1, 2, 4), strict=True):
        assert least <= slept <= least + 1


def test_a_server_may_ask_to_wait_but_not_for_ever() -> None:
    script = Script(httpx.Response(429, headers={"retry-after": "30"}), OK)
    script.client().embed(["a"])
    assert (script.slept, len(script.said_so)) == ([30], 1)
    for_ever = Script(httpx.Response(429, headers={"retry-after": "9" * 400}))
    assert "asks to wait longer than 600 s" in refused(for_ever)


def test_it_ends_after_eight_attempts_or_three_where_nothing_ever_answered() -> None:
    script = Script(*[503] * 9)
    assert "(8 attempts). What was finished is kept" in refused(script)
    assert (len(script.requests), len(script.slept)) == (8, 7)
    assert len(script.said_so) == 3  # the waits of 8, 16 and 32 seconds
    script = Script(*[httpx.ConnectError("[Errno 111] Connection refused")] * 9)
    assert "Connection refused (3 attempts). Is the server" in refused(script)


def test_it_ends_where_the_next_attempt_would_come_too_late() -> None:
    script = Script(*[503] * 9)
    with pytest.raises(ServerError, match=r"\(4 attempts\)"):  # after waits of 0.5, 1 and 2 seconds, and up to one more
        script.client(total=3.5).embed(["a"])
    assert len(script.requests) == 4


def answer(*embeddings: Any, index: list[Any] | None = None) -> bytes:
    places: list[Any] = list(range(len(embeddings))) if index is None else index
    return json.dumps(
        {"data": [{"embedding": e, "index": i} for e, i in zip(embeddings, places, strict=True)]}
    ).encode()


def test_embeddings_come_in_the_order_of_the_inputs() -> None:
    result = server_client.read_embeddings(answer([0.25, 3], [1, -0.5], [7, 8], index=[2, 0, 1]), 3, None, "url")
    assert (result.dtype, result.tolist()) == (np.float32, [[1, -0.5], [7, 8], [0.25, 3]])
    plain = b'{"data": [{"embedding": [5.0]}, {"embedding": [6.0]}]}'
    assert server_client.read_embeddings(plain, 2, 1, "url").tolist() == [[5], [6]]


@pytest.mark.parametrize("embedding", [None, [], [1, None], [1, float("nan")], [1, 1e300]])
def test_the_input_without_an_embedding_is_named(embedding: Any) -> None:
    with pytest.raises(OneInputError, match="finite numbers") as caught:
        server_client.read_embeddings(answer([1, 2], embedding), 2, 2, "url")
    assert caught.value.number == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (answer([1, 2]), "expected embeddings of 2 inputs"),
        (answer([1, 2], [1, 2], index=[0, 0]), "each index once"),
        (answer([1, 2], [1, 2, 3]), r"2 numbers and 3 \(input 1\)"),
        (answer([1], [1]), "lengths: 2 numbers and 1 .*one model to answer all the time"),
        (answer([[1, 2], [3, 4]], [1, 2]), "one vector for each input .*pooling"),
        *((answer([1, 2], bad), 'expected {"data"') for bad in (["a"], {"x": 1}, "AAA", 5, True, [[1], [2, 3]])),
        *((bad, 'expected {"data"') for bad in (b"[[1]]", b'{"data": null}', b"[" * 100_000, b"1" * 5000, b"\xff{}")),
        (b"", "got nothing"),
    ],
)
def test_what_is_no_answer_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        server_client.read_embeddings(content, 2, 2, "url")


def test_what_a_server_says_is_one_line_of_a_length() -> None:
    assert without_key("\x1b[31mplain\n text", None) == "\ufffd[31mplain text"
    assert without_key("y" * 1000, None) == "y" * 100 + "\u2026" + "y" * 99


@pytest.mark.parametrize("status", [200, 400, 401, 404, 418, 500])
@pytest.mark.parametrize("padding", [0, 168])
def test_a_key_that_a_server_repeats_is_not_passed_on_nor_is_its_beginning(status: int, padding: int) -> None:
    echo = httpx.Response(status, text=json.dumps(["x" * padding, f"Bearer {KEY.value}"]))
    script = Script(*[echo] * 8)
    message = refused(script, KEY)
    assert KEY.value[:4] not in message + " ".join(script.said_so)
    assert ("refuses the key in V" in message) == (status == 401)


def test_a_redirect_is_not_followed_as_the_key_would_go_along() -> None:
    script = Script(httpx.Response(307, headers={"location": "https://evil.example/v1/embeddings?k=v"}), OK)
    assert "redirects are not followed" in refused(script, KEY)
    assert len(script.requests) == 1
