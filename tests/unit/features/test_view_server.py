"""The server of finished runs: it answers this machine's browser, reads only, and knows no path of a file."""

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from integration.report.page_samples import search_run
from quantdrift.features.view.server import Server, Site

SECRET = "a secret beside the runs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("view")
    for name, noise in (("a", 0.3), ("b", 0.5)):
        search_run(root / "runs" / name, noise=noise, spec=f"minilm@{'W4' if name == 'a' else 'W3'}-g128-rtn")
    (root / "secret.html").write_text(SECRET)
    damaged = root / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text('{"format": "quantdrift-run", "spec": "<script>alert(1)</script>"}')
    (damaged / "evidence.parquet").write_bytes(b"no")
    with Server(Site(folder=root / "runs", beside=root)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@contextmanager
def opened(folder: Path, port: int = 0) -> Iterator[Server]:
    """A server of a folder."""
    with Server(Site(folder=folder, beside=folder), port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server: Server, target: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer; the target goes out as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, target, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


def raw(server: Server, text: str) -> str:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def content(html: str) -> dict[str, object]:
    found = json.loads(html.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    assert isinstance(found, dict)
    return found


def test_it_listens_on_loopback_alone_and_says_what_a_browser_may_do(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.server_port > 0
    status, html, headers = ask(server, "/")
    assert status == 200
    assert "default-src 'none'" in html
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


def test_another_host_is_refused(server: Server) -> None:
    port = server.server_port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert ask(server, "/", Host=host)[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}", ""):
        status, text, _ = ask(server, "/run/a%2Frun", Host=host)
        assert (status, "minilm" in text) == (403, False), host
    assert " 403 " in raw(server, "GET / HTTP/1.0\r\n\r\n")  # none at all
    assert " 403 " in raw(server, f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n")


def test_a_page_of_another_site_is_refused(server: Server) -> None:
    assert ask(server, "/", Sec_Fetch_Site="same-origin")[0] == 200
    for site in ("cross-site", "same-site"):
        assert ask(server, "/", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize(
    "target",
    [
        *("/../secret.html", "/secret.html", "/run/../secret.html", "/run/..%2fsecret.html"),
        *("/run/%2e%2e%2fsecret.html", "/run/..%2f..%2fsecret.html", "//secret.html", "/run/a%00"),
        *("/run/a/evidence.parquet", "/run/a%2fevidence.parquet", "/run/", "/run", "/gate/secret.html", "/study/.."),
        *("/pair/a", "/pair/a?b=..", "/pair/a?b=%2fetc%2fpasswd", "/run/%2fetc%2fpasswd", "/etc/passwd"),
        *("/run/damaged", "/page.css", "/run/%ff%fe", "/[", "/run/a%2Frun?b=;;&&%"),
    ],
)  # fmt: skip
def test_only_what_was_found_is_answered(server: Server, target: str) -> None:
    status, text, _ = ask(server, target)
    assert status == (200 if "?b=;" in target else 404)
    assert SECRET not in text
    assert "root:x:" not in text


def test_it_reads_only(server: Server) -> None:
    folder = server.site.beside
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"):
        assert ask(server, "/run/a%2Frun", method)[0] == 501
    assert ask(server, "/run/a%2Frun", "HEAD")[:2] == (200, "")
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_the_first_page_lists_runs_and_what_cannot_be_read(server: Server) -> None:
    sections = {section["name"]: section for section in content(ask(server, "/")[1])["sections"]}  # type: ignore[attr-defined]
    assert sorted(sections["runs"]["grids"][0]["links"]) == [
        f"/run/{quote(name, safe='')}" for name in ("a/run", "b/run")
    ]
    ((folder, why),) = sections["problems"]["grids"][0]["rows"]
    assert folder == "damaged"
    assert "run.json" in why


def test_a_run_has_the_page_of_report_and_a_link_to_those_beside_it(server: Server) -> None:
    status, html, _ = ask(server, "/run/a%2Frun")
    page = content(html)
    assert status == 200
    assert page["home"] is True
    assert [section["name"] for section in page["sections"]][:2] == ["changed", "closeness"]  # type: ignore[attr-defined]
    assert page["sections"][-1]["grids"][0]["links"] == ["/pair/a%2Frun?b=b%2Frun"]  # type: ignore[index]


def test_a_name_that_is_no_utf_8_stops_nothing(tmp_path: Path) -> None:
    for name, spec in ((b"bad\xff", "minilm@W4-g128-rtn"), (b"worse\xfe", "minilm@W3-g128-rtn")):
        search_run(tmp_path / "made", noise=0.3, spec=spec)
        (tmp_path / "made").rename(tmp_path / os.fsdecode(name))
    with opened(tmp_path) as server:
        status, html, _ = ask(server, "/")
        sections = {section["name"]: section for section in content(html)["sections"]}  # type: ignore[attr-defined]
        links = sections["runs"]["grids"][0]["links"]
        links += content(ask(server, links[0])[1])["sections"][-1]["grids"][0]["links"]  # type: ignore[attr-defined]
        pairs = [{"/pair/bad%FF%2Frun?b=worse%FE%2Frun"}, {"/pair/worse%FE%2Frun?b=bad%FF%2Frun"}]
        assert {*links[:2]} == {"/run/bad%FF%2Frun", "/run/worse%FE%2Frun"}
        assert {*links[2:]} in pairs
        assert [ask(server, link)[0] for link in links] == [200, 200, 200]
        (tmp_path / os.fsdecode(b"bad\xff") / "run" / "evidence.parquet").write_bytes(b"no")
        assert ask(server, "/run/bad%FF%2Frun")[0] == 422  # what it says names the folder
    assert status == 200


def test_one_run_that_cannot_be_told_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fine", "odd"):
        search_run(tmp_path / name, noise=0.3, spec=f"minilm@W4-g128-rtn+seed={len(name)}")
    record = tmp_path / "odd" / "run" / "run.json"
    record.write_text(record.read_text().replace('"times": {', '"times": [], "spent": {', 1))
    with opened(tmp_path) as server:
        sections = {section["name"]: section for section in content(ask(server, "/")[1])["sections"]}  # type: ignore[attr-defined]
    assert sections["runs"]["grids"][0]["links"] == ["/run/fine%2Frun"]
    ((folder, why),) = sections["problems"]["grids"][0]["rows"]
    assert folder == "odd/run"
    assert why


def test_any_error_of_a_request_is_a_page_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search_run(tmp_path / "a", noise=0.3, spec="minilm@W4-g128-rtn")
    monkeypatch.setattr("quantdrift.features.view.server.page_for", lambda *_: 1 / 0)
    with opened(tmp_path) as server:
        status, text, _ = ask(server, "/run/a%2Frun")
        assert ask(server, "/")[0] == 200
    assert status == 500
    assert "ZeroDivisionError" in text
    (line,) = capsys.readouterr().err.splitlines()
    assert "/run/a%2Frun" in line
    assert "ZeroDivisionError" in line


def test_a_target_that_is_no_address_is_refused(server: Server) -> None:
    answer = raw(server, f"GET http://[::1 HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n")
    assert " 400 " in answer.splitlines()[0]


def test_the_usual_port_need_not_be_named(tmp_path: Path) -> None:
    """Browsers leave it out."""
    try:
        on_80 = opened(tmp_path, 80)
        with on_80 as server:
            for host in ("127.0.0.1", "localhost", "LocalHost:80"):
                assert ask(server, "/", Host=host)[0] == 200
            assert ask(server, "/", Host="evil.example")[0] == 403
    except OSError as error:
        pytest.skip(f"port 80 cannot be listened on: {error}")
