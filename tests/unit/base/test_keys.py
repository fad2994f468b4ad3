"""Which server gets a key: the one that the environment names with it."""

import pytest

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.keys import find_key, key_from, without_key

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


@pytest.fixture(autouse=True)
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def sent(url: str) -> str | None:
    key = find_key(url)
    return None if key is None else key.value


@pytest.mark.parametrize(
    ("there", "url", "goes"),
    [
        ("", "https://a.org", False),  # whose is it?
        ("", "http://127.0.0.1:9877", False),
        ("https://a.org:6333", "https://a.org:6333/", True),
        ("a.org:6333", "https://A.org", True),  # as some write it
        ("https://a.org", "https://a.org.evil.org", False),
        ("https://a.org", "https://evil.org/a.org", False),
        ("https://a.org", "http://127.0.0.1:9877", False),
        ("http://localhost:6333", "http://localhost:6333", True),
        ("http://[::1]:6333", "http://[::1]:6333", True),
        ("http://[::1", "http://[::1", False),
    ],
)
def test_a_key_goes_to_its_own_host(monkeypatch: pytest.MonkeyPatch, there: str, url: str, goes: bool) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " s3cret\n")
    monkeypatch.setenv("OPENAI_BASE_URL", there)
    assert sent(url) == ("s3cret" if goes else None)


def test_a_variable_with_a_host_in_its_name_is_of_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY_LOCALHOST", "here")
    assert sent("http://localhost:6333") == "here"
    monkeypatch.setenv("OPENAI_API_KEY_DB__1_A_ORG", "s3cret")
    hosts = ["db-1.a.org", "db.1.a.org", "db-1-a.org", "db_1.a.org", "db--1.a.org", "db-1.a-org"]
    assert [sent(f"https://{host}") for host in hosts] == ["s3cret", *[None] * 5]
    assert "OPENAI_API_KEY_DB__1_A_ORG" in key_from("https://db-1.a.org")


def test_the_key_of_openai_goes_where_its_own_client_would_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "users")
    hosts = ["https://api.openai.com/v1", "https://api.openai.com.evil.org/v1", "http://localhost:8000/v1"]
    assert [sent(host) for host in hosts] == ["users", None, None]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    assert [sent(host) for host in hosts] == [None, None, "users"]


@pytest.mark.parametrize("url", ["http://gpu-1.lan:6333", "http://10.0.0.5:6333", "http://127.0.0.1.evil.org"])
def test_no_key_crosses_the_network_unencrypted(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(UnsupportedError, match=r"OPENAI_API_KEY .*unencrypted") as caught:
        sent(url)
    assert "s3cret" not in str(caught.value)
    assert sent(url.replace("http:", "https:")) == "s3cret"


def test_what_is_no_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "its own")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://a.org")
    with pytest.raises(UnsupportedError, match="OPENAI_API_KEY holds no key") as caught:
        sent("https://a.org")
    assert "its own" not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    key = find_key("https://a.org")
    assert "s3cret" not in repr(key)
    assert without_key("you sent\ns3cret", key) == "you sent ***"
